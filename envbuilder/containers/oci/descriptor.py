"""The JSON of OCI images: descriptors, manifests and indexes, checked when they are read.

Keys that are not named here are ignored, as the specification asks; what is passed on is passed on
as the bytes that were read. Docker's older media types of the same structures are understood.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import types as words
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
"""Bytes of a manifest, index or configuration at most: what registries accept."""

MediaType = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9!#$&^_.+-]+\Z")
]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 50)]
_T = TypeVar("_T")


class Platform(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an image runs on, as OCI names it."""

    architecture: str
    os: str
    variant: str = ""

    def is_of(self, platform: words.Platform) -> bool:
        """Whether this is one of ours, whatever its variant."""
        return f"{self.os}/{self.architecture}" == platform


class Descriptor(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Names bytes: what they are, their digest and their number."""

    media_type: MediaType
    digest: words.Digest
    size: Bytes
    annotations: dict[str, str] = {}
    platform: Platform | None = None
    artifact_type: MediaType | None = None


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One image (or artifact): its configuration and its layers, the lowest first."""

    schema_version: Literal[2]
    media_type: MediaType | None = None
    artifact_type: MediaType | None = None
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}


class Index(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Several images, mostly of several platforms; in a layout, everything that is in it."""

    schema_version: Literal[2]
    media_type: MediaType | None = None
    manifests: tuple[Descriptor, ...]
    annotations: dict[str, str] = {}


def platform(ours: words.Platform) -> Platform:
    """A platform of ours as OCI names it."""
    os, _, architecture = ours.partition("/")
    return Platform(architecture=architecture, os=os)


def digest_of(data: bytes) -> words.Digest:
    """The digest of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode(value: object) -> bytes:
    """Canonical JSON: the same value gives the same bytes."""
    return msgspec.json.encode(value, order="sorted")


def decode(data: bytes, kind: type[_T], where: str) -> _T:
    """Checked JSON; `InvalidError` naming `where` when it is something else."""
    if len(data) > JSON_LIMIT:
        raise InvalidError(f"{where}: {len(data)} bytes of JSON; at most {JSON_LIMIT} are read")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidError(f"{where}: not what OCI says: {error}") from error
