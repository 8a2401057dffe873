"""What a bundle looks like: a plain tar whose every byte follows from its manifest.

First comes the manifest, under a name that holds its own sha256; then its members, in its order,
each with a header that holds nothing but path and size. A reader therefore needs to parse no
header: it computes what must be there and compares. Names that lead elsewhere, links, devices,
members that appear twice and anything behind the end differ from that, and so are refused.
"""

from __future__ import annotations

import re
import tarfile
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import types as words
from envbuilder.core.strict_yaml import shown
from envbuilder.payload.training.dataset import MNIST_SHA256

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = 2
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
LARGEST_MANIFEST = 16 << 20
LARGEST_TEXT = 16 << 20
"""Bytes of a member that is read into memory: a profile, a lock, an index of images."""
LARGEST_TEXTS = 64 << 20
"""Bytes of all profiles and locks together, which are in memory at the same time."""
LARGEST_MEMBER = 1 << 36
"""Bytes of any member, as of any file of a lock."""

Kind = Literal["profile", "lock", "wheel", "file", "dataset", "base"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_PATHS: dict[Kind, re.Pattern[str]] = {
    "profile": re.compile(r"profiles/_?[a-z0-9][a-z0-9-]{0,62}\.yaml\Z"),
    "lock": re.compile(r"locks/_?[a-z0-9][a-z0-9-]{0,62}(?:\.conda)?\.json\Z"),
    "wheel": re.compile(r"wheels/[A-Za-z0-9][A-Za-z0-9._+-]{0,200}\.whl\Z"),
    "file": re.compile(r"files/([0-9a-f]{64})\Z"),
    "dataset": re.compile(r"datasets/mnist/([a-z0-9-]+)\Z"),
    "base": re.compile(
        r"bases/(?:[0-9a-f]{64}-linux-(?:amd64|arm64)\.json|blobs/sha256/([0-9a-f]{64}))\Z"
    ),
}
_MANIFEST = re.compile(r"manifest-([0-9a-f]{64})\.json\Z")
_FIELD = 100  # bytes of a name in a tar header


class Member(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a bundle."""

    path: str
    size: Annotated[int, Meta(ge=0, le=LARGEST_MEMBER)]
    sha256: words.Sha256
    kind: Kind
    what: words.Sentence

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a bundle holds and for whom; without a time, so that it depends on its content alone."""

    schema: int
    made_by: words.Sentence
    profiles: tuple[words.Name, ...]
    platforms: tuple[words.Platform, ...]
    pythons: tuple[words.PythonVersion, ...]
    lacks: tuple[words.Sentence, ...]
    """What could not be had when it was made."""
    members: tuple[Member, ...]

    def of_kind(self, kind: Kind) -> tuple[Member, ...]:
        """The members of one kind, in order."""
        return tuple(m for m in self.members if m.kind == kind)


def order(members: Iterable[Member]) -> tuple[Member, ...]:
    """Members as they follow each other: what decides comes before what is large."""
    return tuple(sorted(members, key=lambda m: (KINDS.index(m.kind), m.path)))


def problem(manifest: Manifest) -> str:
    """What is wrong with a manifest that types cannot say; empty for nothing."""
    if manifest.members != order(manifest.members):
        return "its members are not in order"
    seen: set[str] = set()
    for member in manifest.members:
        matched = _PATHS[member.kind].match(member.path)
        if matched is None or member.path in seen:
            return f"{shown(member.path)} is no path of a {member.kind}, or is there twice"
        seen.add(member.path)
        named = matched[1] if matched.re.groups else None
        stated = MNIST_SHA256.get(named or "") if member.kind == "dataset" else named
        if named is not None and stated != member.sha256:
            return f"{member.path} has another sha256 than its name says"
        if member.kind in {"profile", "lock"} and member.size > LARGEST_TEXT:
            return f"{member.path} is too large: {member.size} bytes"
    texts = sum(m.size for m in manifest.members if m.kind in {"profile", "lock"})
    if texts > LARGEST_TEXTS:
        return f"its profiles and locks have {texts} bytes together"
    return ""


def encode(manifest: Manifest) -> bytes:
    """A manifest as JSON, one member a line."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def manifest_name(sha256: str) -> str:
    """The path of a manifest in its bundle."""
    return f"manifest-{sha256}.json"


def manifest_stated(block: bytes) -> tuple[str, int] | None:
    """sha256 and size of the manifest that a bundle's first block announces; None for no bundle."""
    name = block[:_FIELD].rstrip(b"\0").decode("ascii", "replace")
    matched = _MANIFEST.match(name)
    size = re.match(rb"([0-7]{11})\0", block[124:136])
    return (matched[1], int(size[1], 8)) if matched and size else None


def header(path: str, size: int) -> bytes:
    """Return the tar header of a regular file that holds nothing but its path and size.

    A pax header comes before it where a field of ustar is too short. `tarfile` writes the same
    bytes in Python 3.11 to 3.13 (tried); the digests of images rely on that, too.
    """
    entry = tarfile.TarInfo(path)
    entry.size = size
    return entry.tobuf(tarfile.PAX_FORMAT, "ascii", "strict")


def padding(size: int) -> bytes:
    """What follows a file's content up to the next block."""
    return bytes(-size % BLOCK)
