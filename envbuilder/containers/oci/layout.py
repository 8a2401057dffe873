"""OCI images: their JSON documents (descriptors, manifests, indexes) and their layouts on disk.

The JSON is validated when it is read. Unknown keys are ignored, as the OCI specification requires.
Documents are passed on with exactly the bytes that were read. Docker's older media types for the
same structures are accepted as well.

A layout is a folder that contains `oci-layout`, `index.json` and `blobs/sha256/…`. Blobs are hashed
before an atomic rename adds them to the layout, and `checked` hashes them again before they are
used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import filterfalse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.core import decoding, files, types
from envbuilder.core.errors import BuildError, InvalidError, WrongHashError

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER_ZSTD = f"{LAYER}+zstd"
EMPTY = "application/vnd.oci.empty.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"

INDEXES = frozenset({INDEX, DOCKER_INDEX})
MANIFESTS = frozenset({MANIFEST, DOCKER_MANIFEST})

JSON_LIMIT = 4 << 20
"""Maximum size in bytes of an image's manifest, index or configuration. Registries do not accept
larger documents."""

MediaType = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9!#$&^_.+-]+\Z")
]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 50)]
_T = TypeVar("_T")
MARK = "oci-layout"
_VERSION = {"imageLayoutVersion": "1.0.0"}
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_DEPTH = 4
"""Maximum depth to which nested indexes are followed."""
_MARK_LIMIT = 1 << 10
"""Maximum size in bytes of the file `oci-layout`, which may come from an untrusted source."""
_FULL = "The disk may be full."


class Platform(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The platform of an image, as defined by the OCI specification."""

    architecture: str
    os: str
    variant: str = ""

    def is_of(self, platform: types.Platform) -> bool:
        """Return whether this is the given envbuilder platform, ignoring the variant."""
        return f"{self.os}/{self.architecture}" == platform


class Descriptor(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A reference to a blob by its media type, digest and size."""

    media_type: MediaType
    digest: types.Digest
    size: Bytes
    annotations: dict[str, str] = {}
    platform: Platform | None = None
    artifact_type: MediaType | None = None


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The manifest of an image or another artifact: its configuration and its layers.

    The lowest layer comes first.
    """

    schema_version: Literal[2]
    media_type: MediaType | None = None
    artifact_type: MediaType | None = None
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """The descriptors of the configuration and of all layers."""
        return (self.config, *self.layers)


class Index(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A list of images, usually one per platform. A layout's index lists all of its images."""

    schema_version: Literal[2]
    media_type: MediaType | None = None
    manifests: tuple[Descriptor, ...]
    annotations: dict[str, str] = {}


def oci_platform(ours: types.Platform) -> Platform:
    """Convert an envbuilder platform to an OCI platform."""
    os, _, architecture = ours.partition("/")
    return Platform(architecture=architecture, os=os)


def only_image(
    descriptors: Iterable[Descriptor], platform: types.Platform, where: str
) -> Descriptor:
    """Return the only image for a platform.

    Raise `InvalidError` if there is no image or more than one. `where` identifies the index in
    error messages.
    """
    images = {d.digest: d for d in descriptors if d.media_type in MANIFESTS and d.platform}
    fitting = [d for d in images.values() if d.platform and d.platform.is_of(platform)]
    if len(fitting) == 1:
        return fitting[0]
    platforms = {
        f"{d.platform.os}/{d.platform.architecture}" for d in images.values() if d.platform
    }
    raise InvalidError(
        f"{where}: expected one image for {platform}, found {len(fitting) or 'none'}",
        f"It contains: {', '.join(sorted(platforms)) or 'no images'}.",
    )


def digest_of(data: bytes) -> types.Digest:
    """Return the sha256 digest of `data`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode(value: object) -> bytes:
    """Encode a value as canonical JSON, so that the same value always gives the same bytes."""
    return msgspec.json.encode(value, order="sorted")


def decode(data: bytes, kind: type[_T], where: str) -> _T:
    """Decode and validate JSON. Raise `InvalidError` if the JSON is invalid.

    `where` identifies the source of the JSON in error messages.
    """
    try:
        return decoding.from_json(data, kind)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{where}: does not follow the OCI specification: {error}") from error


class Layout:
    """An OCI layout: a folder that contains blobs, named by digest, and an index of the images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> Layout:
        """Open the layout in `folder`. If there is none, create an empty layout."""
        layout = cls(folder)
        if not (folder / MARK).is_file():
            (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
            layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=()))
            files.save(folder / MARK, json.dumps(_VERSION).encode(), BuildError, _FULL)
        return layout

    @classmethod
    def open(cls, folder: Path) -> Layout:
        """Open an existing layout. Raise `InvalidError` if `folder` is not a layout."""
        try:
            version = json.loads(files.read(folder / MARK, _MARK_LIMIT))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidError(
                f"{folder}: not an OCI image layout (a folder with {MARK} and index.json)"
            ) from error
        if version != _VERSION:
            raise InvalidError(f"{folder}: unsupported version of the OCI image layout")
        layout = cls(folder)
        layout.index()
        return layout

    # --- blobs

    def blob(self, digest: types.Digest) -> Path:
        """Return the path of the blob with this digest, whether or not the blob exists.

        Raise `InvalidError` if the digest is malformed.
        """
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise InvalidError(f"{digest!r}: not a sha256 digest")
        return self._blobs / match[1]

    @property
    def _blobs(self) -> Path:
        return self.folder / "blobs" / "sha256"

    def has(self, of: Descriptor) -> bool:
        """Return whether a blob exists and has the right size, without checking its hash."""
        path = self.blob(of.digest)
        return path.is_file() and path.stat().st_size == of.size

    def add(self, content: bytes | Path, media_type: str, **fields: Any) -> Descriptor:
        """Add bytes or a file to the layout as a blob, and return the blob's descriptor.

        A file is added as a hard link if possible. `fields` are additional fields for the
        descriptor. Raise `OSError` if the disk is full.
        """
        if isinstance(content, bytes):
            digest = digest_of(content)
            size = len(content)
        else:
            digest = f"sha256:{files.file_sha256(content)}"
            size = content.stat().st_size
        descriptor = Descriptor(media_type=media_type, digest=digest, size=size, **fields)
        if self.has(descriptor):
            return descriptor
        target = self.blob(digest)
        if isinstance(content, bytes):
            files.write(target, content)
        else:
            place(content, target)
        return descriptor

    def checked(self, of: Descriptor) -> Path:
        """Check the size and the hash of a blob, and return its path.

        Raise `BuildError` if the blob is missing, and `WrongHashError` if it is damaged.
        """
        path = self.blob(of.digest)
        if not path.is_file():
            raise BuildError(f"{of.digest} is missing from the OCI layout {self.folder}")
        size = path.stat().st_size
        if size != of.size:
            raise WrongHashError(
                f"{path}: damaged: {of.digest} has {of.size} bytes, but the file has {size}"
            )
        found = files.file_sha256(path)
        if f"sha256:{found}" != of.digest:
            raise WrongHashError(f"{path}: damaged: expected {of.digest}, found sha256:{found}")
        return path

    def read(self, of: Descriptor) -> bytes:
        """Check and return the content of a small blob: a manifest, an index or a configuration.

        Raise `InvalidError` if the blob exceeds the size limit. Raise the same errors as `checked`
        if the blob is missing or damaged.
        """
        if of.size > JSON_LIMIT:
            raise InvalidError(f"{of.digest}: {of.size} bytes exceed the limit of {JSON_LIMIT}")
        return self.checked(of).read_bytes()

    # --- images

    def index(self) -> Index:
        """Read and return the layout's index, `index.json`."""
        path = self.folder / "index.json"
        with files.explained(path):
            data = files.read(path, JSON_LIMIT)
        return decode(data, Index, str(path))

    def write_index(self, index: Index) -> None:
        """Write the layout's index atomically."""
        files.save(self.folder / "index.json", encode(index), BuildError, _FULL)

    def images(self) -> Iterator[Descriptor]:
        """Yield the descriptors of all images in the layout, each with its platform.

        This includes images in nested indexes, but not artifacts other than images, such as
        attestations and signatures.
        """
        for image in self._walk(self.index().manifests, _DEPTH, set()):
            platform = image.platform or self._platform(image)
            if platform and platform.os not in {"", "unknown"}:
                yield replace(image, platform=platform)

    def missing(self) -> tuple[types.Digest, ...]:
        """Return the digests of the blobs that belong to the layout's images but are missing."""
        lacking: list[Descriptor] = []
        for image in self.images():
            lacking += filterfalse(self.has, self.read_manifest(image).blobs)
        return tuple(dict.fromkeys(d.digest for d in lacking))

    def find(self, platform: types.Platform) -> Descriptor:
        """Return the only image for a platform.

        Raise `InvalidError` if there is no image or more than one.
        """
        return only_image(self.images(), platform, str(self.folder))

    def manifest(self, platform: types.Platform) -> Manifest:
        """Return the manifest of the only image for a platform."""
        return self.read_manifest(self.find(platform))

    def read_manifest(self, of: Descriptor) -> Manifest:
        """Return the manifest to which a descriptor refers, after checking the manifest's hash."""
        return decode(self.read(of), Manifest, of.digest)

    def read_config(self, manifest: Manifest) -> dict[str, Any]:
        """Return the image configuration that a manifest lists, as an unvalidated JSON object."""
        return decode(self.read(manifest.config), dict[str, Any], manifest.config.digest)

    def _walk(
        self, descriptors: tuple[Descriptor, ...], depth: int, seen: set[types.Digest]
    ) -> Iterator[Descriptor]:
        """Yield the manifests among the descriptors, and those that the indexes among them list.

        Indexes in indexes are included. Each manifest is yielded only once, even if several indexes
        list it.
        """
        for descriptor in descriptors:
            if descriptor.digest in seen:
                continue
            seen.add(descriptor.digest)
            if descriptor.media_type in MANIFESTS:
                yield descriptor
            elif descriptor.media_type in INDEXES and depth and self.has(descriptor):
                within = decode(self.read(descriptor), Index, descriptor.digest)
                # A layout need not hold all of an index: the other platforms may be elsewhere.
                yield from self._walk(tuple(filter(self.has, within.manifests)), depth - 1, seen)

    def _platform(self, of: Descriptor) -> Platform | None:
        """Return the platform in an image's configuration, or None if it is unknown."""
        manifest = self.read_manifest(of)
        if not self.has(manifest.config):
            return None
        config = self.read_config(manifest)
        os_name = config.get("os")
        architecture = config.get("architecture")
        if isinstance(os_name, str) and isinstance(architecture, str):
            return Platform(architecture=architecture, os=os_name)
        return None


def place(source: Path, target: Path, *, link: bool = True) -> None:
    """Put a file at `target` atomically.

    The file is a hard link if `link` is true and linking is possible, otherwise a copy. Raise
    `OSError` if the disk is full.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".part-", dir=target.parent) as scratch:
        temporary = Path(scratch) / "blob"
        if link:
            with suppress(OSError):
                os.link(source, temporary)
        if not temporary.exists():
            shutil.copyfile(source, temporary)
        temporary.replace(target)
