"""Records of built images: what a build made, kept outside of the image.

Engines name an image by a digest of its content. So an image whose id was recorded is what was
built, whatever its tags say; any other under the same tag is not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from envbuilder import atomic, words
from envbuilder.errors import BuildError

if TYPE_CHECKING:
    from pathlib import Path

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
    atomic.write(folder / f"{record.digest.removeprefix('sha256:')}.json", content)


def read(folder: Path) -> tuple[ImageRecord, ...]:
    """The records in the folder of a fingerprint; a damaged one says nothing and is left out."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            with path.open("rb") as stream:
                found.append(msgspec.json.decode(stream.read(_LIMIT), type=ImageRecord))
        except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
    return tuple(r for r in found if r.fingerprint == folder.name)
