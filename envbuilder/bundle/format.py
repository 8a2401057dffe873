"""The bundle format: a plain tar in which every byte is determined by the manifest.

The manifest comes first, under a name that contains its own sha256, then the members in the
manifest's order, each with a header that holds only path and size. A reader therefore parses no
headers: it computes the expected bytes and compares. Path traversal, links, devices, duplicate
members and trailing data differ from the expected bytes, and are refused.
"""

from __future__ import annotations

import re
import tarfile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import types
from envbuilder.core.text import shown
from envbuilder.payload.training.dataset import MNIST_SHA256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SCHEMA = 2
WITH_PROJECT = 3
"""The schema of a bundle of a project's environment; one of profiles alone keeps the other, so that
versions that know no projects read it."""
SIGNED_TYPE = "urn:envbuilder:bundle:v1"
"""The predicate type of a statement about a bundle: its subjects are the file and its manifest."""
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
LARGEST_MANIFEST = 16 << 20
LARGEST_TEXT = 16 << 20
"""Maximum bytes of a profile, a lock or a project's file, which is read into memory."""
LARGEST_TEXTS = 64 << 20
"""Maximum bytes of all of these, which are in memory at the same time."""
LARGEST_MEMBER = 1 << 36
"""Maximum bytes of any member, the same as of a locked file."""

Kind = Literal["profile", "lock", "project", "wheel", "file", "dataset", "base"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TEXTS: frozenset[Kind] = frozenset({"profile", "lock", "project"})
"""Kinds that are checked as a whole before anything is stored."""
_PATHS: dict[Kind, re.Pattern[str]] = {
    "profile": re.compile(r"profiles/_?[a-z0-9][a-z0-9-]{0,62}\.yaml\Z"),
    "lock": re.compile(r"locks/_?[a-z0-9][a-z0-9-]{0,62}(?:\.conda)?\.json(?:\.intoto\.jsonl)?\Z"),
    "project": re.compile(
        r"project/(?!(?:.*/)?\.{0,2}(?:/|\Z))[^\x00-\x1f\x7f\"'\\`$:*?<>|]{1,250}\Z"
    ),
    "wheel": re.compile(r"wheels/[A-Za-z0-9][A-Za-z0-9._+-]{0,200}\.whl\Z"),
    "file": re.compile(r"files/([0-9a-f]{64})\Z"),
    "dataset": re.compile(r"datasets/mnist/([a-z0-9-]+)\Z"),
    "base": re.compile(
        r"bases/(?:[0-9a-f]{64}-linux-(?:amd64|arm64)\.json|blobs/sha256/([0-9a-f]{64}))\Z"
    ),
}
_MANIFEST = re.compile(r"manifest-([0-9a-f]{64})\.json\Z")
_FIELD = 100  # bytes of the name field in a tar header


class Member(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a bundle."""

    path: str
    size: Annotated[int, Meta(ge=0, le=LARGEST_MEMBER)]
    sha256: types.Sha256
    kind: Kind
    what: types.Sentence

    @property
    def name(self) -> str:
        """Return the last component of the path."""
        return self.path.rpartition("/")[2]


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a bundle holds and for which targets; without a time, so that it is reproducible."""

    schema: int
    made_by: types.Sentence
    profiles: tuple[types.Name, ...]
    platforms: tuple[types.Platform, ...]
    pythons: tuple[types.PythonVersion, ...]
    lacks: tuple[types.Sentence, ...]
    """What was unavailable when the bundle was made."""
    members: tuple[Member, ...]
    environment: types.Name | None = None
    """The environment of a project that it holds; None for profiles alone."""

    def of_kind(self, kind: Kind) -> tuple[Member, ...]:
        """Return the members of one kind, in order."""
        return tuple(m for m in self.members if m.kind == kind)


def order(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return members in bundle order: those that are checked first come before large ones."""
    return tuple(sorted(members, key=lambda m: (KINDS.index(m.kind), m.path)))


def problem(manifest: Manifest) -> str:
    """Return what is wrong with a manifest beyond its types; empty if nothing is."""
    if manifest.members != order(manifest.members):
        return "its members are not in order"
    holds_project = bool(manifest.of_kind("project"))
    stated_project = manifest.environment is not None
    if not (manifest.schema == WITH_PROJECT) == stated_project == holds_project:
        return "its schema, environment and project's files do not belong together"
    return next(_problems_of_members(manifest.members), "")


def _problems_of_members(members: Sequence[Member]) -> Iterator[str]:
    """Yield what is wrong with members, one by one and together."""
    paths: set[str] = set()
    for member in members:
        matched = _PATHS[member.kind].match(member.path)
        if matched is None or member.path in paths:
            yield f"{shown(member.path)} is not a valid path of a {member.kind}, or appears twice"
            return
        paths.add(member.path)
        named = matched[1] if matched.re.groups else None
        stated = MNIST_SHA256.get(named or "") if member.kind == "dataset" else named
        if named is not None and stated != member.sha256:
            yield f"the sha256 of {member.path} is not the one in its name"
        if member.kind in TEXTS and member.size > LARGEST_TEXT:
            yield f"{member.path} is too large: {member.size} bytes"
    for path in paths:
        above = next((str(p) for p in PurePosixPath(path).parents if str(p) in paths), None)
        if above is not None:
            yield f"{shown(above)} is a file and a folder"
    texts = sum(m.size for m in members if m.kind in TEXTS)
    if texts > LARGEST_TEXTS:
        yield f"its profiles, locks and project's files have {texts} bytes together"


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def manifest_name(sha256: str) -> str:
    """Return the path of a manifest in its bundle."""
    return f"manifest-{sha256}.json"


def manifest_stated(block: bytes) -> tuple[str, int] | None:
    """Return sha256 and size of the manifest from the first block; None if it is not a bundle."""
    name = block[:_FIELD].rstrip(b"\0").decode("ascii", "replace")
    matched = _MANIFEST.match(name)
    size = re.match(rb"([0-7]{11})\0", block[124:136])
    return (matched[1], int(size[1], 8)) if matched and size else None


def header(path: str, size: int) -> bytes:
    """Return the tar header of a regular file that holds nothing but its path and size.

    A pax header precedes it if a ustar field is too short. `tarfile` writes the same bytes in
    Python 3.11 to 3.13 (tested); image digests rely on that as well.
    """
    entry = tarfile.TarInfo(path)
    entry.size = size
    return entry.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """Return the padding from the end of a file's content to the next block."""
    return bytes(-size % BLOCK)
