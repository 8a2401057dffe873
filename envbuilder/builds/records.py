"""Record which images were built, and which projects use an artifact.

The records are outside of the images. Engines identify an image by a digest of its content. An
image with a recorded id is therefore the image that was built, whatever its tags. Another image
under the same tag is not.
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
"""Subfolder of a fingerprint's folder, for records of intermediate images put into the engine."""
CLAIMS = "envbuilder-data/"
"""Prefix of the image names that mark an image as recorded in a data folder."""
_VERSIONS = {
    "buildkit": re.compile(r"^BuildKit(?: version)?: *(\S+)", re.IGNORECASE | re.MULTILINE),
    "buildah": re.compile(r"^ *\"?buildahVersion\"?: *\"?([^\s\",]+)", re.MULTILINE),
}


class ImageRecord(Struct, frozen=True, kw_only=True):
    """The record of a built image."""

    schema: Literal[1] = 1
    profile: types.Name
    fingerprint: types.Sha256
    ref: str
    digest: types.Digest
    """Digest of the image's configuration, which does not depend on the layers' compression."""
    ids: tuple[types.Digest, ...]
    """Ids that engines may give to the image.

    The id is the digest of its configuration in Docker's classic store and in podman, and the
    digest of its manifest in Docker's containerd store.
    """
    builder: str
    made_by: dict[str, str]
    names: tuple[str, ...] = ()
    """All names that the build gave to the image."""

    @property
    def manifest_digest(self) -> types.Digest | None:
        """The digest of the image's manifest; None if the builder did not report it."""
        return next((digest for digest in self.ids if digest != self.digest), None)


class LoadedImage(Struct, frozen=True, kw_only=True):
    """The record of an intermediate image that a build loaded into the engine.

    This is a base image, or the lower layers of an image.
    """

    schema: Literal[1] = 1
    profile: types.Name | None
    """The profile; None for a base image, which belongs to no profile."""
    fingerprint: types.Sha256
    ref: str
    ids: tuple[types.Digest, ...]


_Record = TypeVar("_Record", ImageRecord, LoadedImage)


class _Metadata(Struct, frozen=True):
    """The fields of buildx's image metadata that envbuilder reads."""

    config: types.Digest = msgspec.field(name="containerimage.config.digest")
    image: types.Digest = msgspec.field(name="containerimage.digest")


def digests(text: str) -> tuple[str, ...]:
    """Parse the digests that a client wrote for its image; the configuration's digest is first.

    buildx writes a JSON object, and podman writes the bare id. Raise `BuildError` for other text.
    """
    try:
        if not text.startswith("{"):
            bare = text.strip().removeprefix("sha256:")
            return (decoding.convert(f"sha256:{bare}", types.Digest),)
        metadata = decoding.from_json(text, _Metadata)
    except (ValueError, RecursionError) as error:
        raise BuildError(
            f"the builder did not report which image it built: {error}",
            "Build with BuildKit or Buildah: no other builder is supported.",
        ) from error
    return tuple(dict.fromkeys((metadata.config, metadata.image)))


def versions(text: str) -> dict[str, str]:
    """Parse the builder's version from the output of `docker buildx inspect` or `podman info`.

    Return the versions by name; empty if unknown. Debian's Docker reports its BuildKit as
    v0.0.0+unknown. That version is omitted, so the engine's version must identify the builder.
    """
    reported: dict[str, str] = {}
    for name, pattern in _VERSIONS.items():
        match = pattern.search(text)
        if match and "unknown" not in match[1]:
            reported[name] = match[1]
    return reported


def claim(fingerprint: str, settings: Settings) -> str:
    """Return a name for an image, which the image keeps while this data folder has its record.

    The name is unique to the data folder, because several data folders, of one user or of several,
    may build the same image on one engine.
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
    """Record the image that a step delivered under the name `ref`.

    `ids` are the image's digests; the configuration's digest is first. `made_by` adds versions of
    programs to the step's own.
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
    """Write a record into the folder of its fingerprint. Raise `OSError` if the disk is full.

    Keep the names that earlier builds gave to the same image.
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
    """Record an intermediate image in the folder of its fingerprint; return the record's path."""
    path = folder / LOADED / f"{image.ids[0].removeprefix('sha256:')}.json"
    files.ensure_folder(folder.parent)
    files.write(path, msgspec.json.encode(image) + b"\n")
    return path


def loaded(folder: Path) -> tuple[LoadedImage, ...]:
    """Return the intermediate images that `note` recorded in the folder of a fingerprint."""
    parts = _read_files((folder / LOADED).glob("*.json"), LoadedImage)
    return tuple(image for image in parts if image.fingerprint == folder.name)


def forget(folder: Path, ref: str) -> None:
    """Remove the record that `note` wrote about the image `ref`, which has left the engine."""
    for path in (folder / LOADED).glob("*.json"):
        if any(image.ref == ref for image in _read_files([path], LoadedImage)):
            path.unlink(missing_ok=True)


def read(folder: Path) -> tuple[ImageRecord, ...]:
    """Return the image records in the folder of a fingerprint, skipping damaged files."""
    records = _read_files(folder.glob("*.json"), ImageRecord)
    return tuple(record for record in records if record.fingerprint == folder.name)


def _read_files(paths: Iterable[Path], kind: type[_Record]) -> list[_Record]:
    """Return the records in the files, sorted by path, skipping damaged files."""
    records = []
    for path in sorted(paths):
        with suppress(OSError, ValueError, RecursionError):
            records.append(decoding.from_json(path.read_bytes(), kind))
    return records


# --- which projects use what was built: for each, a small file with its path, beside it
# All projects with the same lock share what was built; one that is no longer there uses nothing.


USERS = "users"
"""Subfolder of a fingerprint's image folder that records which projects use the image."""


def users_of(prefix: Path) -> Path:
    """Return the folder that records which projects use a native environment."""
    return prefix.with_name(f".{prefix.name}.{USERS}")


def record_user(plan: Plan, settings: Settings) -> None:
    """Record that the current project, if any, uses the plan's artifact on this machine.

    Ignore errors of writing the record.
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
    """Return whether the current project already uses a venv of the profile."""
    if settings.project is None:
        return False
    user = files.folder_identity(settings.project)
    prefixes = settings.envs_dir.glob(f"{profile}-py*")
    return any((users_of(prefix) / user).exists() for prefix in prefixes)


def users_in(folder: Path) -> tuple[Path, ...]:
    """Return the projects recorded in a folder that still exist, sorted by path."""
    projects = []
    for entry in folder.glob("[0-9a-f]*"):
        with suppress(OSError):
            project = Path(os.fsdecode(entry.read_bytes()))
            if entry.name == files.folder_identity(project) and _is_there(project):
                projects.append(project)
    return tuple(sorted(projects))


def _is_there(project: Path) -> bool:
    """Return whether a folder still contains a project. If it cannot be read, assume so."""
    try:
        (project / PROJECT_FILE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
