"""The JSON of OCI images: descriptors, manifests and indexes, validated when read.

Unknown keys are ignored, as the specification requires; documents are passed on as the exact bytes
that were read. Docker's older media types for the same structures are accepted.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding, types
from envbuilder.core.errors import InvalidError

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
"""Maximum bytes of a manifest, index or configuration: what registries accept."""

MediaType = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9!#$&^_.+-]+\Z")
]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 50)]
_T = TypeVar("_T")


class Platform(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The platform of an image in OCI terms."""

    architecture: str
    os: str
    variant: str = ""

    def is_of(self, platform: types.Platform) -> bool:
        """Return whether this is the given platform, ignoring the variant."""
        return f"{self.os}/{self.architecture}" == platform


class Descriptor(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A reference to bytes: their media type, digest and size."""

    media_type: MediaType
    digest: types.Digest
    size: Bytes
    annotations: dict[str, str] = {}
    platform: Platform | None = None
    artifact_type: MediaType | None = None


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The manifest of one image or artifact: its configuration and its layers, lowest first."""

    schema_version: Literal[2]
    media_type: MediaType | None = None
    artifact_type: MediaType | None = None
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}


class Index(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A list of images, usually one per platform; in a layout, all that it holds."""

    schema_version: Literal[2]
    media_type: MediaType | None = None
    manifests: tuple[Descriptor, ...]
    annotations: dict[str, str] = {}


def platform(ours: types.Platform) -> Platform:
    """Return an envbuilder platform in OCI terms."""
    os, _, architecture = ours.partition("/")
    return Platform(architecture=architecture, os=os)


def digest_of(data: bytes) -> types.Digest:
    """Return the sha256 digest of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode(value: object) -> bytes:
    """Return a value as canonical JSON: the same value gives the same bytes."""
    return msgspec.json.encode(value, order="sorted")


def decode(data: bytes, kind: type[_T], where: str) -> _T:
    """Return decoded and validated JSON; raise `InvalidError` naming `where` if it is invalid."""
    if len(data) > JSON_LIMIT:
        raise InvalidError(f"{where}: {len(data)} bytes of JSON; at most {JSON_LIMIT} are read")
    try:
        return decoding.from_json(data, kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidError(f"{where}: does not follow the OCI specification: {error}") from error
