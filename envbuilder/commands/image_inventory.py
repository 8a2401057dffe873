"""The images that `envbuilder clean` may remove: those that this installation recorded.

An image built on one of envbuilder's inherits its labels, and so does one made from it by `docker
commit`. Labels therefore only select candidates; an id in a record proves what envbuilder built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.build import conventions as facts
from envbuilder.build.attestation import documents
from envbuilder.build.image import records as images
from envbuilder.commands.inventory import BUSY, Item, Kept
from envbuilder.containers.engine.interface import LABEL
from envbuilder.core import folders

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


class Known(Struct, frozen=True):
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
    kept: tuple[Kept, ...] = ()
    gone: frozenset[str] = frozenset()
    there: frozenset[str] = frozenset()


def written_down(settings: Settings, leftovers: Iterable[Path] = ()) -> tuple[Known, ...]:
    """Return the images of all records, also those of killed `reproduce` runs in `leftovers`."""
    trials = (p / side / "data" / "records" for p in leftovers for side in ("first", "second"))
    found: list[Known] = []
    for above in (settings.records_dir, *trials):
        if not folders.is_folder(above) or settings.data_dir.is_symlink():
            continue
        for folder in sorted(p for p in above.iterdir() if folders.is_folder(p)):
            for record in images.read(folder):
                names = record.names or (record.ref, f"envbuilder/{record.profile}:latest")
                found.append(Known(record.ids, names, record.profile, folder))
            for part in images.loaded(folder):
                work = f"{part.profile}-{part.fingerprint[:12]}" if part.profile else ""
                found.append(Known(part.ids, (part.ref,), part.profile, folder, work))
    return tuple(found)


def choose(
    there: Sequence[Image],
    known: Sequence[Known],
    profile: str | None,
    busy: Iterable[str] = (),
    is_built: Callable[[Image], bool] | None = None,
) -> Listed:
    """Return which of the labelled images `there` (of one profile) to remove; pure.

    `is_built` decides, for images of other installations, whether a build made them: if so, the
    names that a build gives are removed. Without it, these images stay.
    """
    removals: list[Removal] = []
    kept: list[Kept] = []
    for image in there:
        own = [k for k in known if image.id in k.ids]
        others = profile is not None and not any(k.profile == profile for k in own)
        if others and (own or image.labels.get(f"{LABEL}profile") != profile):
            continue
        if any(k.work and k.work in busy for k in own):
            kept += [Kept(name, BUSY) for name in image.tags or (image.id,)]
            continue
        if own:
            given = {_full(name) for k in own for name in k.names}
            mine = [t for t in image.tags if _full(t) in given]
        elif is_built is None or not is_built(image):
            reason = ELSEWHERE if is_built is None and _given(image) else DERIVED
            kept += [Kept(name, reason) for name in image.tags or (image.id,)]
            continue
        else:
            mine = _given(image)
        removals += [Removal(image.id, name) for name in (mine if image.tags else (image.id,))]
        kept += [Kept(name, NAMED) for name in image.tags if name not in mine]
    staying = {k.name for k in kept}
    gone = {i.id for i in there if not staying & {*i.tags, i.id}} & {r.id for r in removals}
    return Listed(tuple(removals), tuple(kept), frozenset(gone), frozenset(i.id for i in there))


def _given(image: Image) -> list[str]:
    """Return the names of an image that a build gives, according to its labels.

    Empty if the labels are incomplete or none of the names has the fingerprint.
    """
    profile = image.labels.get(f"{LABEL}profile", "")
    fingerprint = image.labels.get(f"{LABEL}fingerprint", "")
    if not re.fullmatch(_HEX, fingerprint) or not profile:
        return []
    name = f"envbuilder/{profile}"
    own = re.compile(rf"{re.escape(name)}:py3\.\d+-{fingerprint[:12]}")
    if not any(own.fullmatch(_short(t)) for t in image.tags):
        return []
    return [t for t in image.tags if own.fullmatch(_short(t)) or _short(t) == f"{name}:latest"]


def is_result(image: Image, last_step: Callable[[Image], str]) -> bool:
    """Return whether an image is the result of a build, and not built on top of one.

    It has the name that a build gives to its result, and its last step is the last one of a build.
    """
    return bool(_given(image)) and last_step(image) in _LAST_STEPS


_LAST_STEPS = frozenset(
    {"envbuilder: payload", "CMD [{}]".format(" ".join(f'"{c}"' for c in facts.COMMAND))}
)


def _short(ref: str) -> str:
    """Return a reference without the registry that an engine adds to it."""
    for registry in ("docker.io/library/", "docker.io/", "localhost/"):
        if ref.startswith(registry):
            return ref.removeprefix(registry)
    return ref


def _full(ref: str) -> str:
    """Return a reference with its tag, in the same form for all engines."""
    short = _short(ref)
    return short if ":" in short.rpartition("/")[2] else f"{short}:latest"


def records(known: Sequence[Known], listed: Listed, inventory: Inventory) -> list[Records]:
    """Return the records of images to remove and, in the same folders, of images long gone.

    Other records stay, as their images may be in another engine.
    """
    above, root = inventory.settings.records_dir, inventory.settings.data_dir
    found: list[Records] = []
    for folder in sorted({k.folder for k in known if k.folder.parent == above}):
        written = [k for k in known if k.folder == folder]
        if any(listed.gone.intersection(k.ids) for k in written):
            staying = listed.there - listed.gone
            ids = frozenset(i for k in written if not staying.intersection(k.ids) for i in k.ids)
            digests = [i.removeprefix("sha256:") for i in ids]
            items = inventory.known_files(folder, root, _names(digests))
            found.append(Records(tuple(items), ids))
    return found


def _names(digests: Iterable[str]) -> str:
    ends = "|".join(re.escape(end) for end in documents.SUFFIXES.values())
    either = "|".join(sorted(digests))
    return rf"(?:{either})(?:\.json|{ends})|{images.LOADED}/(?:{either})\.json"
