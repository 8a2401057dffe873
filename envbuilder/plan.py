"""What a build will do, as data: computed purely, printed by `--dry-run`, run by `execute`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder import words
from envbuilder.lockfile import File

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class _Step(Struct, frozen=True, kw_only=True, tag=True):
    """One action; `what` is shown while it runs."""

    what: str


class Write(_Step, frozen=True, kw_only=True):
    """Write text to a file, making its folder."""

    path: str
    text: str


class WritePayload(_Step, frozen=True, kw_only=True):
    """Write `payload.pyz`."""

    path: str


class LinkFiles(_Step, frozen=True, kw_only=True):
    """Put files of the store into a folder under their own names."""

    files: tuple[File, ...]
    folder: str


class UnpackTool(_Step, frozen=True, kw_only=True):
    """Take the executable `name` out of a wheel of the store."""

    file: File
    name: str
    path: str


class UnpackLibraries(_Step, frozen=True, kw_only=True):
    """Take shared libraries out of .deb files of the store."""

    files: tuple[File, ...]
    libraries: tuple[str, ...]
    folder: str


class Run(_Step, frozen=True, kw_only=True):
    """Run a command; a failing one ends the build."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    hints: dict[str, str] = {}
    """What a failing command may print → what to do about it."""
    output: str = ""
    """A file for what it prints, besides the log."""


class Seal(_Step, frozen=True, kw_only=True):
    """Write down what a finished environment holds, with facts about it."""

    folder: str
    facts: dict[str, Any]


class Remove(_Step, frozen=True, kw_only=True):
    """Remove a folder of our own, if it is there."""

    path: str


class Move(_Step, frozen=True, kw_only=True):
    """Move a finished folder to its place, replacing what was there."""

    source: str
    target: str


class RecordImage(_Step, frozen=True, kw_only=True):
    """Keep what a build says of the image that it made, outside of the image."""

    profile: words.Name
    fingerprint: words.Sha256
    ref: str
    builder: str
    metadata: str
    """The file in which the client tells the image's digests."""
    versions: str
    """The file with what the client says of its builder."""
    folder: str


Step = (
    Write
    | WritePayload
    | LinkFiles
    | UnpackTool
    | UnpackLibraries
    | Run
    | Seal
    | RecordImage
    | Remove
    | Move
)


class Artifact(Struct, frozen=True, kw_only=True):
    """What a build makes: an image's tag or a prefix; the digest once it is known."""

    kind: str
    ref: str
    digest: str | None = None
    """Of an image: of its configuration, which names its layers by their uncompressed bytes, so
    that neither a compression nor a kind of engine changes it. Of a prefix: of its tree."""


class UsedBase(Struct, frozen=True, kw_only=True):
    """The image that an image is built on."""

    ref: str
    digest: str
    """Its digest, or its id in the engine where no registry names it; empty in a dry run."""


class Room(Struct, frozen=True, kw_only=True):
    """Disk space that a build takes in one place, besides its downloads."""

    folder: str
    bytes: int
    """At least: files whose size no source states are not in it."""


UNPACKED = 1.8
"""Bytes of an installed wheel per byte of the wheel, at the least: measured 1.8 for the files of
`cuda`, 3.6 for torch's CPU wheel."""


def unpacked(files: Iterable[File]) -> int:
    """Bytes that files take when they are installed, at the least."""
    return int(UNPACKED * sum(f.size or 0 for f in files))


class Plan(Struct, frozen=True, kw_only=True):
    """Everything one build will do."""

    schema: int = 1
    profile: words.Name
    backend: words.Backend
    builder: str
    platform: words.Platform
    python: words.PythonVersion
    fingerprint: str
    artifact: Artifact
    lock: str = ""
    """Digest of the lock that names the files."""
    base: UsedBase | None = None
    workdir: str
    files: tuple[File, ...]
    steps: tuple[Step, ...]
    room: tuple[Room, ...] = ()
    notes: tuple[str, ...] = ()


class BuildResult(Struct, frozen=True, kw_only=True):
    """What a build did (`build --json`)."""

    schema: int = 1
    status: str
    profile: str
    backend: str
    builder: str
    artifact: Artifact
    documents: dict[str, str] = {}
    """Where the artifact's documents are: `sbom` and `provenance`."""
    fingerprint: str
    seconds: float
    made_by: dict[str, str] = {}
    """The programs that decide the artifact's bytes → their versions when it was built."""


def fingerprint(facts: Mapping[str, Any]) -> str:
    """sha256 over everything that decides the result."""
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()
