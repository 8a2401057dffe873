"""The images that `envbuilder clean` may remove: those that this installation recorded.

An image built on one of envbuilder's inherits its labels, and so does one made from it by `docker
commit`. Labels therefore only select candidates; an id in a record proves what envbuilder built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.build import conventions
from envbuilder.build.attestation import documents
from envbuilder.build.image import project_record, records
from envbuilder.build.image.base import LATEST
from envbuilder.build.project_layer import NEWEST
from envbuilder.commands.inventory import BUSY, Item, Kept
from envbuilder.containers.engine.interface import LABEL
from envbuilder.containers.oci.reference import familiar
from envbuilder.core import files
from envbuilder.core.files import Owned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from envbuilder.commands.inventory import Inventory
    from envbuilder.containers.engine.interface import Image
    from envbuilder.core.settings import Settings

ELSEWHERE = "not built by this installation (--all-images removes it, too)"
DERIVED = "labelled by envbuilder, but not built by this installation"
NAMED = "also has a name that envbuilder did not give it"
_HEX = "[0-9a-f]{64}"


class Removal(Struct, frozen=True):
    """A name to remove from an image, or an image without names."""

    id: str
    ref: str


class Recorded(Struct, frozen=True):
    """A recorded image: its ids, its names, and the folder of the record."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    profile: str | None
    folder: Path
    work: str = ""
    """The working folder of the build that still needs it; empty if it is the build's result."""


class Records(Struct, frozen=True):
    """Records to remove once the images with these ids are gone."""

    items: tuple[Item, ...]
    ids: frozenset[str]


class Listed(Struct, frozen=True):
    """What to remove from the engine, what stays, and the ids of images gone after that."""

    removals: tuple[Removal, ...] = ()
    staying: tuple[Kept, ...] = ()
    gone: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()


def recorded_images(settings: Settings, leftovers: Iterable[Path] = ()) -> tuple[Recorded, ...]:
    """Return the images of all records, also those of killed `reproduce` runs in `leftovers`."""
    trials = (p / side / "data" / "records" for p in leftovers for side in ("first", "second"))
    images: list[Recorded] = []
    for above in (settings.records_dir, *trials):
        if not files.is_folder(above) or settings.data_dir.is_symlink():
            continue
        for folder in sorted(p for p in above.iterdir() if files.is_folder(p)):
            for record in records.read(folder):
                names = record.names or (record.ref, f"envbuilder/{record.profile}:latest")
                images.append(Recorded(record.ids, names, record.profile, folder))
            for part in records.loaded(folder):
                work = f"{part.profile}-{part.fingerprint[:12]}" if part.profile else ""
                images.append(Recorded(part.ids, (part.ref,), part.profile, folder, work))
    return tuple(images)


def choose(
    images: Sequence[Image],
    recorded: Sequence[Recorded],
    profile: str | None,
    busy: Iterable[str] = (),
    is_built: Callable[[Image], bool] | None = None,
) -> Listed:
    """Return which of the labelled images (of one profile) to remove; pure.

    `is_built` decides, for images of other installations, whether a build made them: if so, the
    names that a build gives are removed. Without it, these images stay.
    """
    removals: list[Removal] = []
    staying: list[Kept] = []
    for image in images:
        matching = [k for k in recorded if image.id in k.ids]
        others = profile is not None and not any(k.profile == profile for k in matching)
        if others and (matching or image.labels.get(f"{LABEL}profile") != profile):
            continue
        if any(k.work and k.work in busy for k in matching):
            staying += [Kept(name, BUSY) for name in image.tags or (image.id,)]
            continue
        if matching:
            recorded_names = {familiar(name) for k in matching for name in k.names}
            removable = [t for t in image.tags if familiar(t) in recorded_names]
        elif is_built is None or not is_built(image):
            reason = ELSEWHERE if is_built is None and _build_names(image) else DERIVED
            staying += [Kept(name, reason) for name in image.tags or (image.id,)]
            continue
        else:
            removable = _build_names(image)
        removals += [Removal(image.id, name) for name in (removable if image.tags else (image.id,))]
        staying += [Kept(name, NAMED) for name in image.tags if name not in removable]
    names = {k.name for k in staying}
    gone = {i.id for i in images if not names & {*i.tags, i.id}} & {r.id for r in removals}
    return Listed(tuple(removals), tuple(staying), frozenset(gone), frozenset(i.id for i in images))


def _build_names(image: Image) -> list[str]:
    """Return the names of an image that a build gives, according to its labels.

    Empty if the labels are incomplete or none of the names has the fingerprint.
    """
    profile = image.labels.get(f"{LABEL}profile", "")
    fingerprint = image.labels.get(f"{LABEL}fingerprint", "")
    if not re.fullmatch(_HEX, fingerprint) or not profile:
        return []
    # In a project, and before that without its name.
    name = rf"envbuilder/([a-z0-9-]+-[0-9a-f]{{6}}/)?{re.escape(profile)}"
    pattern = re.compile(rf"{name}:py3\.\d+-{fingerprint[:12]}")
    if not any(pattern.fullmatch(familiar(t)) for t in image.tags):
        return []
    given = re.compile(rf"{pattern.pattern}|{name}:({LATEST}|{NEWEST})")
    return [t for t in image.tags if given.fullmatch(familiar(t))]


def is_result(image: Image, last_step: Callable[[Image], str]) -> bool:
    """Return whether an image is the result of a build, and not built on top of one.

    It has the name that a build gives to its result, and its last step is the last one of a build.
    """
    return bool(_build_names(image)) and last_step(image) in _LAST_STEPS


_LAST_STEPS = frozenset(
    {
        "envbuilder: payload",
        "envbuilder: project",
        "CMD [{}]".format(" ".join(f'"{c}"' for c in conventions.COMMAND)),
    }
)


def removable_records(
    recorded: Sequence[Recorded], listed: Listed, inventory: Inventory
) -> list[Records]:
    """Return the records of images to remove and, in the same folders, of images long gone.

    Other records stay, as their images may be in another engine.
    """
    parent, root = inventory.settings.records_dir, inventory.settings.data_dir
    result: list[Records] = []
    for folder in sorted({k.folder for k in recorded if k.folder.parent == parent}):
        written = [k for k in recorded if k.folder == folder]
        if any(listed.gone.intersection(k.ids) for k in written):
            staying = listed.present - listed.gone
            ids = frozenset(i for k in written if not staying.intersection(k.ids) for i in k.ids)
            digests = [i.removeprefix("sha256:") for i in ids]
            items = inventory.known_files(folder, root, _owned(digests))
            result.append(Records(tuple(items), ids))
    return result


def _owned(digests: Iterable[str]) -> Owned:
    beside = (".json", *documents.SUFFIXES.values(), project_record.SUFFIX)
    ends = "|".join(re.escape(end) for end in beside)
    either = "|".join(sorted(digests))
    return Owned("records", (rf"({either})({ends})", rf"{records.LOADED}/({either})\.json"))
