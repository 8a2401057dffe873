"""Records of built images: what a build made, kept outside of the image.

Engines name an image by a digest of its content. So an image whose id was recorded is what was
built, whatever its tags say; any other under the same tag is not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec import Struct

from envbuilder.core import files as atomic
from envbuilder.core import folders
from envbuilder.core import types as words
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

LOADED = "loaded"
"""In the folder of a fingerprint: images that a build gave to the engine on the way."""
_LIMIT = 1 << 20
_VERSIONS = {
    "buildkit": re.compile(r"^BuildKit(?: version)?: *(\S+)", re.IGNORECASE | re.MULTILINE),
    "buildah": re.compile(r"^ *\"?buildahVersion\"?: *\"?([^\s\",]+)", re.MULTILINE),
}


class ImageRecord(Struct, frozen=True, kw_only=True):
    """One image that was built."""

    schema: Literal[1] = 1
    profile: words.Name
    fingerprint: words.Sha256
    ref: str
    digest: words.Digest
    """Of its configuration: the same whatever its layers are compressed with."""
    ids: tuple[words.Digest, ...]
    """How engines name it: by its configuration (Docker's classic store, podman) or by its
    manifest (Docker's containerd store)."""
    builder: str
    made_by: dict[str, str]
    names: tuple[str, ...] = ()
    """Every name that the build gave it; records of earlier versions have none."""


class LoadedImage(Struct, frozen=True, kw_only=True):
    """An image that a build gave to the engine on the way: its base, or a part of it."""

    schema: Literal[1] = 1
    profile: words.Name | None
    """None for a base, which is no profile's."""
    fingerprint: words.Sha256
    ref: str
    ids: tuple[words.Digest, ...]


_Record = TypeVar("_Record", ImageRecord, LoadedImage)


class _Metadata(Struct, frozen=True):
    """What buildx tells of an image."""

    config: words.Digest = msgspec.field(name="containerimage.config.digest")
    image: words.Digest = msgspec.field(name="containerimage.digest")


def digests(text: str) -> tuple[str, ...]:
    """The digests that a client wrote of its image, that of the configuration first.

    buildx writes a JSON object, podman the bare id. Raises `BuildError` for anything else.
    """
    try:
        if not text.startswith("{"):
            bare = text.strip().removeprefix("sha256:")
            return (msgspec.convert(f"sha256:{bare}", words.Digest),)
        told = msgspec.json.decode(text, type=_Metadata)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BuildError(
            f"the builder did not tell which image it made: {error}",
            "Build again; a builder that is neither BuildKit nor Buildah will not do.",
        ) from error
    return tuple(dict.fromkeys((told.config, told.image)))


def versions(text: str) -> dict[str, str]:
    """The builder and its version, as far as `docker buildx inspect` or `podman info` tell.

    Debian's Docker calls its BuildKit v0.0.0+unknown: there the engine's version has to do.
    """
    found = {name: pattern.search(text) for name, pattern in _VERSIONS.items()}
    known = {name: match[1] for name, match in found.items() if match}
    return {name: version for name, version in known.items() if "unknown" not in version}


def keep(folder: Path, record: ImageRecord) -> None:
    """Write a record into the folder of its fingerprint; `OSError` on a full disk."""
    content = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    folders.ensure(folder.parent)
    atomic.write(folder / f"{record.digest.removeprefix('sha256:')}.json", content)


def note(folder: Path, image: LoadedImage) -> Path:
    """Write down an image that is loaded on the way, in the folder of its fingerprint."""
    name = image.ids[0].removeprefix("sha256:")
    folders.ensure(folder.parent)
    atomic.write(folder / LOADED / f"{name}.json", msgspec.json.encode(image) + b"\n")
    return folder / LOADED / f"{name}.json"


def loaded(folder: Path) -> tuple[LoadedImage, ...]:
    """Return what `note` wrote into the folder of a fingerprint."""
    return _read(folder / LOADED, LoadedImage, folder.name)


def forget(folder: Path, ref: str) -> None:
    """Remove what `note` wrote about an image that the engine has no more under this name."""
    for path in (folder / LOADED).glob("*.json"):
        if any(i.ref == ref for i in _read_file(path, LoadedImage)):
            path.unlink(missing_ok=True)


def read(folder: Path) -> tuple[ImageRecord, ...]:
    """The records in the folder of a fingerprint; a damaged one says nothing and is left out."""
    return _read(folder, ImageRecord, folder.name)


def _read(folder: Path, kind: type[_Record], fingerprint: str) -> tuple[_Record, ...]:
    found = (r for path in sorted(folder.glob("*.json")) for r in _read_file(path, kind))
    return tuple(r for r in found if r.fingerprint == fingerprint)


def _read_file(path: Path, kind: type[_Record]) -> tuple[_Record, ...]:
    try:
        with path.open("rb") as stream:
            return (msgspec.json.decode(stream.read(_LIMIT), type=kind),)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ()
