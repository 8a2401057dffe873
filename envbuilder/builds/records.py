"""Record which images were built, and which projects use an artifact.

The records are kept outside the images. Engines identify an image by a digest of its content.
Therefore, an image is known to come from a build if a record contains its ID, whatever tags it has.
Another image with the same tag does not match the record.
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
"""Subfolder of a fingerprint's folder for records of intermediate images loaded into the engine."""
CLAIMS = "envbuilder-data/"
"""Prefix of image names that show that the image is recorded in a data folder."""
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
    """Digest of the image's configuration, which does not depend on how the layers are
    compressed."""
    ids: tuple[types.Digest, ...]
    """The IDs that engines may give to the image.

    The ID is the digest of the image's configuration in Docker's classic store and in podman, and
    the digest of its manifest in Docker's containerd store.
    """
    builder: str
    made_by: dict[str, str]
    names: tuple[str, ...] = ()
    """All names that builds have given to the image."""

    @property
    def manifest_digest(self) -> types.Digest | None:
        """The digest of the image's manifest, or None if the builder did not report it."""
        return next((digest for digest in self.ids if digest != self.digest), None)


class LoadedImage(Struct, frozen=True, kw_only=True):
    """The record of an intermediate image that a build loaded into the engine.

    This is either a base image or an image that contains the lower layers of another image.
    """

    schema: Literal[1] = 1
    profile: types.Name | None
    """The profile, or None for a base image, which belongs to no profile."""
    fingerprint: types.Sha256
    ref: str
    ids: tuple[types.Digest, ...]


_Record = TypeVar("_Record", ImageRecord, LoadedImage)


class _Metadata(Struct, frozen=True):
    """The fields that envbuilder reads from the image metadata written by buildx."""

    config: types.Digest = msgspec.field(name="containerimage.config.digest")
    image: types.Digest = msgspec.field(name="containerimage.digest")


def digests(text: str) -> tuple[str, ...]:
    """Return the digests that a client reported for its image, the configuration's digest first.

    buildx writes a JSON object, whereas podman writes only the ID. Raise `BuildError` for any other
    text.
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

    Return a mapping from the builder's name to its version, which is empty if the version is
    unknown. Debian's Docker reports the version of its BuildKit as v0.0.0+unknown. That version is
    omitted, so the builder must be identified by the engine's version.
    """
    reported: dict[str, str] = {}
    for name, pattern in _VERSIONS.items():
        match = pattern.search(text)
        if match and "unknown" not in match[1]:
            reported[name] = match[1]
    return reported


def claim(fingerprint: str, settings: Settings) -> str:
    """Return a name that an image keeps as long as this data folder contains the image's record.

    The name is different for each data folder, because one engine may be used with several data
    folders, whether of one user or of several, and each data folder may contain a record of the
    same image.
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

    `ids` are the digests of the image, the configuration's digest first. `made_by` contains the
    versions of programs to record in addition to those in the step.
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
    """Write a record to `folder`, which is the folder of the record's fingerprint.

    Names that earlier builds gave to the same image are kept. Raise `OSError` if the disk is full.
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
    """Record an intermediate image in `folder`, which is the folder of the image's fingerprint.

    Return the path of the record.
    """
    path = folder / LOADED / f"{image.ids[0].removeprefix('sha256:')}.json"
    files.ensure_folder(folder.parent)
    files.write(path, msgspec.json.encode(image) + b"\n")
    return path


def loaded(folder: Path) -> tuple[LoadedImage, ...]:
    """Return the intermediate images that `note` recorded in a fingerprint's folder."""
    parts = _read_files((folder / LOADED).glob("*.json"), LoadedImage)
    return tuple(image for image in parts if image.fingerprint == folder.name)


def forget(folder: Path, ref: str) -> None:
    """Remove the record that `note` wrote for the image `ref`.

    Call this when the image has been removed from the engine.
    """
    for path in (folder / LOADED).glob("*.json"):
        if any(image.ref == ref for image in _read_files([path], LoadedImage)):
            path.unlink(missing_ok=True)


def read(folder: Path) -> tuple[ImageRecord, ...]:
    """Return the image records in a fingerprint's folder. Damaged files are skipped."""
    records = _read_files(folder.glob("*.json"), ImageRecord)
    return tuple(record for record in records if record.fingerprint == folder.name)


def _read_files(paths: Iterable[Path], kind: type[_Record]) -> list[_Record]:
    """Return the records in the files, sorted by path. Damaged files are skipped."""
    records = []
    for path in sorted(paths):
        with suppress(OSError, ValueError, RecursionError):
            records.append(decoding.from_json(path.read_bytes(), kind))
    return records


# --- which projects use what was built: for each, a small file with its path, beside it
# All projects with the same lock share what was built; one that is no longer there uses nothing.


USERS = "users"
"""Name of the folder that records which projects use an artifact."""


def users_of(prefix: Path) -> Path:
    """Return the folder that records which projects use a native environment."""
    return prefix.with_name(f".{prefix.name}.{USERS}")


def record_user(plan: Plan, settings: Settings) -> None:
    """Record that the current project, if any, uses the plan's artifact on this machine.

    Errors when writing the record are ignored.
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
    """Return whether the current project already uses a venv built from the profile."""
    if settings.project is None:
        return False
    user = files.folder_identity(settings.project)
    prefixes = settings.envs_dir.glob(f"{profile}-py*")
    return any((users_of(prefix) / user).exists() for prefix in prefixes)


def users_in(folder: Path) -> tuple[Path, ...]:
    """Return the projects recorded in `folder` that still exist, sorted by path."""
    projects = []
    for entry in folder.glob("[0-9a-f]*"):
        with suppress(OSError):
            project = Path(os.fsdecode(entry.read_bytes()))
            if entry.name == files.folder_identity(project) and _is_there(project):
                projects.append(project)
    return tuple(sorted(projects))


def _is_there(project: Path) -> bool:
    """Return whether a folder still contains a project.

    Return True if the folder cannot be read.
    """
    try:
        (project / PROJECT_FILE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
