"""Record built images, outside of them, and which projects use what was built.

Engines identify an image by a digest of its content. So an image with a recorded id is the one that
was built, whatever its tags; any other image under the same tag is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds.plan import NATIVE
from envbuilder.core import decoding, files, types
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import PROJECT_FILE

if TYPE_CHECKING:
    from envbuilder.builds.plan import Plan, Recording
    from envbuilder.core.settings import Settings


LOADED = "loaded"
"""Subfolder of a fingerprint's folder: records of intermediate images put into the engine."""
CLAIMS = "envbuilder-data/"
"""Prefix of image names that show which data folders have records of the image."""
_VERSIONS = {
    "buildkit": re.compile(r"^BuildKit(?: version)?: *(\S+)", re.IGNORECASE | re.MULTILINE),
    "buildah": re.compile(r"^ *\"?buildahVersion\"?: *\"?([^\s\",]+)", re.MULTILINE),
}


class ImageRecord(Struct, frozen=True, kw_only=True):
    """A built image."""

    schema: Literal[1] = 1
    profile: types.Name
    fingerprint: types.Sha256
    ref: str
    digest: types.Digest
    """Digest of its configuration, which does not depend on the compression of its layers."""
    ids: tuple[types.Digest, ...]
    """Its ids in engines: the digest of its configuration (Docker's classic store, podman) or of
    its manifest (Docker's containerd store)."""
    builder: str
    made_by: dict[str, str]
    names: tuple[str, ...] = ()
    """All names that the build gave it."""

    @property
    def manifest_digest(self) -> types.Digest | None:
        """The digest of its manifest; None if its builder did not report it."""
        return next((digest for digest in self.ids if digest != self.digest), None)


class LoadedImage(Struct, frozen=True, kw_only=True):
    """An intermediate image that a build loaded into the engine: its base, or some layers."""

    schema: Literal[1] = 1
    profile: types.Name | None
    """None for a base, which belongs to no profile."""
    fingerprint: types.Sha256
    ref: str
    ids: tuple[types.Digest, ...]


_Record = TypeVar("_Record", ImageRecord, LoadedImage)


class _Metadata(Struct, frozen=True):
    """The fields of buildx's image metadata that are used here."""

    config: types.Digest = msgspec.field(name="containerimage.config.digest")
    image: types.Digest = msgspec.field(name="containerimage.digest")


def digests(text: str) -> tuple[str, ...]:
    """Return the digests that a client wrote for its image, that of the configuration first.

    buildx writes a JSON object, podman the bare id. Raise `BuildError` for anything else.
    """
    try:
        if not text.startswith("{"):
            bare = text.strip().removeprefix("sha256:")
            return (decoding.convert(f"sha256:{bare}", types.Digest),)
        metadata = decoding.from_json(text, _Metadata)
    except (ValueError, RecursionError) as error:
        raise BuildError(
            f"the builder did not report which image it built: {error}",
            "Build again with BuildKit or Buildah; no other builder is supported.",
        ) from error
    return tuple(dict.fromkeys((metadata.config, metadata.image)))


def versions(text: str) -> dict[str, str]:
    """Return builder → version as printed by `docker buildx inspect` or `podman info`, if known.

    Debian's Docker reports its BuildKit as v0.0.0+unknown, which is omitted; the engine's version
    has to identify the builder then.
    """
    reported: dict[str, str] = {}
    for name, pattern in _VERSIONS.items():
        match = pattern.search(text)
        if match and "unknown" not in match[1]:
            reported[name] = match[1]
    return reported


def claim(fingerprint: str, settings: Settings) -> str:
    """Return the name that an image keeps while this data folder has a record of it.

    Several data folders, of one user or of several, may build the same image on one engine.
    """
    folder = files.folder_identity(settings.data_dir)
    return f"{CLAIMS}{folder[:12]}:{fingerprint[:12]}"


def keep_built(
    step: Recording,
    ref: str,
    ids: tuple[types.Digest, ...],
    names: tuple[str, ...] = (),
    made_by: Mapping[str, str] | None = None,
) -> None:
    """Record the image that a step delivered as `ref`; `ids`: its configuration's digest first.

    `made_by` adds versions of programs to those that the step states.
    """
    record = ImageRecord(
        profile=step.profile,
        fingerprint=step.fingerprint,
        ref=ref,
        digest=ids[0],
        ids=ids,
        builder=step.builder,
        made_by={**step.made_by, **(made_by or {})},
        names=names,
    )
    keep(Path(step.folder), record)


def keep(folder: Path, record: ImageRecord) -> None:
    """Write a record into the folder of its fingerprint; `OSError` on a full disk.

    Keep the names that an earlier build gave the same image.
    """
    path = folder / f"{record.digest.removeprefix('sha256:')}.json"
    names = list(record.names)
    for earlier in _read_files([path], ImageRecord):
        names += earlier.names
    record = replace(record, names=tuple(dict.fromkeys(names)))
    content = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    files.ensure_folder(folder.parent)
    files.write(path, content)


def note(folder: Path, image: LoadedImage) -> Path:
    """Record an intermediate image in the folder of its fingerprint; return the file."""
    path = folder / LOADED / f"{image.ids[0].removeprefix('sha256:')}.json"
    files.ensure_folder(folder.parent)
    files.write(path, msgspec.json.encode(image) + b"\n")
    return path


def loaded(folder: Path) -> tuple[LoadedImage, ...]:
    """Return the images that `note` recorded in the folder of a fingerprint."""
    parts = _read_files((folder / LOADED).glob("*.json"), LoadedImage)
    return tuple(image for image in parts if image.fingerprint == folder.name)


def forget(folder: Path, ref: str) -> None:
    """Remove `note`'s record of an image that the engine no longer has under this name."""
    for path in (folder / LOADED).glob("*.json"):
        if any(image.ref == ref for image in _read_files([path], LoadedImage)):
            path.unlink(missing_ok=True)


def read(folder: Path) -> tuple[ImageRecord, ...]:
    """Return the records in the folder of a fingerprint; damaged ones are skipped."""
    records = _read_files(folder.glob("*.json"), ImageRecord)
    return tuple(record for record in records if record.fingerprint == folder.name)


def _read_files(paths: Iterable[Path], kind: type[_Record]) -> list[_Record]:
    """Return the records in files, in the order of their paths; damaged ones are skipped."""
    records = []
    for path in sorted(paths):
        with suppress(OSError, ValueError, RecursionError):
            records.append(decoding.from_json(path.read_bytes(), kind))
    return records


# --- which projects use what was built: for each, a small file with its path, beside it
# All projects with the same lock share what was built; one that is no longer there uses nothing.


USERS = "users"
"""Subfolder of a fingerprint's image folder with records of the image's users."""


def users_of(prefix: Path) -> Path:
    """Return the folder that records the users of a native environment."""
    return prefix.with_name(f".{prefix.name}.{USERS}")


def record_user(plan: Plan, settings: Settings) -> None:
    """Record that the current project, if any, uses a plan's artifact on this machine.

    Errors are ignored.
    """
    if settings.project is None or plan.artifact.kind not in NATIVE | {"image"}:
        return
    folder = settings.records_dir / plan.fingerprint / USERS
    if plan.artifact.kind in NATIVE:
        folder = users_of(Path(plan.artifact.ref))
    entry = folder / files.folder_identity(settings.project)
    with suppress(OSError):
        if not entry.exists():
            files.ensure_folder(folder)
            files.write(entry, os.fsencode(settings.project), files.PRIVATE)


def has_venv(profile: str, settings: Settings) -> bool:
    """Return whether the current project uses a venv of a profile."""
    if settings.project is None:
        return False
    user = files.folder_identity(settings.project)
    prefixes = settings.envs_dir.glob(f"{profile}-py*")
    return any((users_of(prefix) / user).exists() for prefix in prefixes)


def users_in(folder: Path) -> tuple[Path, ...]:
    """Return the projects in a folder of records that still exist, sorted."""
    projects = []
    for entry in folder.glob("[0-9a-f]*"):
        with suppress(OSError):
            project = Path(os.fsdecode(entry.read_bytes()))
            if entry.name == files.folder_identity(project) and _is_there(project):
                projects.append(project)
    return tuple(sorted(projects))


def _is_there(project: Path) -> bool:
    """Return whether a folder still holds a project, or cannot be read."""
    try:
        (project / PROJECT_FILE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
