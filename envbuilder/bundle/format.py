"""The bundle format, with a writer and a reader.

A bundle is a tar file in which a manifest determines every byte. The manifest comes first. Its file
name contains its own sha256. The members follow in the order of the manifest, each with a header
that contains only a path and a size. The reader therefore does not parse headers. Instead, it
computes the expected bytes and compares them with the bytes in the file. Path traversal, links,
devices, duplicate members and trailing data differ from the expected bytes and are rejected.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from envbuilder.builds import mnist
from envbuilder.core import decoding, files, types
from envbuilder.core.errors import BuildError, Hint, InvalidError, shown
from envbuilder.packages.store import Room, require_rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from envbuilder.core.console import Progress

SCHEMA = 2
WITH_PROJECT = 3
"""The schema of a bundle that contains a project's environment. A bundle that contains only
profiles keeps the earlier schema, so that older versions of envbuilder, which do not support
projects, can read it."""
SIGNED_TYPE = "urn:envbuilder:bundle:v1"
"""The predicate type of a statement about a bundle. Its subjects are the bundle file and the
manifest."""
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
LARGEST_MANIFEST = 16 << 20
"""Maximum size of a manifest in bytes. This size and the sizes below are limited because the author
of a bundle is not trusted."""
LARGEST_TEXT = 16 << 20
"""Maximum size in bytes of a profile, a lock or a project file. These files are read into
memory."""
LARGEST_TEXTS = 64 << 20
"""Maximum total size in bytes of all profiles, locks and project files, because all of them are in
memory at the same time."""
LARGEST_MEMBER = 1 << 36
"""Maximum size in bytes of any member. The limit is the same as for a locked file."""

Kind = Literal["profile", "lock", "project", "wheel", "file", "dataset", "base"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TEXTS: frozenset[Kind] = frozenset({"profile", "lock", "project"})
"""Kinds of members that are checked together before anything is stored."""
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
_CHUNK = 1 << 20
_AGAIN = (
    "The bundle was damaged in transit or changed: copy it again from the machine that made it."
)


class Member(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file in a bundle, as listed in the manifest."""

    path: str
    size: Annotated[int, Meta(ge=0, le=LARGEST_MEMBER)]
    sha256: types.Sha256
    kind: Kind
    what: types.Sentence

    @property
    def name(self) -> str:
        """The last component of the member's path."""
        return self.path.rpartition("/")[2]


class Part(Struct, frozen=True, kw_only=True):
    """A member together with its content, which is either bytes or a file on this machine."""

    member: Member
    content: bytes | Path


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The contents of a bundle, and the targets for which it was made.

    A manifest contains no timestamps, so that bundles are reproducible.
    """

    schema: int
    made_by: types.Sentence
    profiles: tuple[types.Name, ...]
    platforms: tuple[types.Platform, ...]
    pythons: tuple[types.PythonVersion, ...]
    lacks: tuple[types.Sentence, ...]
    """Descriptions of what was unavailable when the bundle was made."""
    members: tuple[Member, ...]
    environment: types.Name | None = None
    """The name of the project's environment in the bundle, or None if the bundle contains only
    profiles."""

    def of_kind(self, kind: Kind) -> tuple[Member, ...]:
        """Return the members of one kind, in the order of the manifest."""
        return tuple(m for m in self.members if m.kind == kind)


def order(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return the members in the order in which a bundle contains them.

    Members that are checked first come before the large ones.
    """
    return tuple(sorted(members, key=lambda m: (KINDS.index(m.kind), m.path)))


def problem(manifest: Manifest) -> str:
    """Return the first problem found in a manifest that its types do not rule out.

    Return an empty string if there is no problem.
    """
    if manifest.members != order(manifest.members):
        return "its members are not in order"
    holds_project = bool(manifest.of_kind("project"))
    stated_project = manifest.environment is not None
    if not (manifest.schema == WITH_PROJECT) == stated_project == holds_project:
        return "its schema, environment and project's files contradict each other"
    return next(_problems_of_members(manifest.members), "")


def _problems_of_members(members: Sequence[Member]) -> Iterator[str]:
    """Yield the problems with individual members and with their combination."""
    paths: set[str] = set()
    for member in members:
        matched = _PATHS[member.kind].match(member.path)
        if matched is None or member.path in paths:
            yield f"{shown(member.path)} is not a valid path of a {member.kind}, or appears twice"
            return
        paths.add(member.path)
        name_part = matched[1] if matched.re.groups else None
        expected = mnist.SHA256.get(name_part or "") if member.kind == "dataset" else name_part
        if name_part is not None and expected != member.sha256:
            yield f"{member.path} does not have the sha256 in its name"
        if member.kind in TEXTS and member.size > LARGEST_TEXT:
            yield f"{member.path} is too large: {member.size} bytes"
    for path in paths:
        above = next((str(p) for p in PurePosixPath(path).parents if str(p) in paths), None)
        if above is not None:
            yield f"{shown(above)} is both a file and a folder"
    texts = sum(m.size for m in members if m.kind in TEXTS)
    if texts > LARGEST_TEXTS:
        yield f"its profiles, locks and project's files have {texts} bytes together"


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def manifest_name(sha256: str) -> str:
    """Return the path of a bundle's manifest within the bundle.

    `sha256` is the hash of the manifest.
    """
    return f"manifest-{sha256}.json"


def manifest_stated(block: bytes) -> tuple[str, int] | None:
    """Return the manifest's sha256 and size, as given in the first block of a bundle.

    Return None if the block is not the beginning of a bundle.
    """
    matched = _MANIFEST.match(block[:_FIELD].rstrip(b"\0").decode("ascii", "replace"))
    size = re.match(rb"([0-7]{11})\0", block[124:136])
    return (matched[1], int(size[1], 8)) if matched and size else None


def is_bundle(content: bytes) -> bool:
    """Return whether the content of a file begins like a bundle."""
    return manifest_stated(content) is not None


def header(path: str, size: int) -> bytes:
    """Return the tar header of a regular file, which contains only the file's path and size.

    If a value is too long for its ustar field, a pax header precedes the tar header. In Python 3.11
    to 3.13, `tarfile` always writes the same bytes (tested). Image digests also rely on this.
    """
    entry = tarfile.TarInfo(path)
    entry.size = size
    return entry.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """Return the zero bytes that follow a file of `size` bytes to fill its last tar block."""
    return bytes(-size % BLOCK)


# --- writing


def write(path: Path, manifest: Manifest, parts: Iterable[Part], progress: Progress) -> str:
    """Write a bundle that consists of `parts`, and return the sha256 of its manifest.

    The file appears at `path` only when it is complete. Raise `BuildError` if the disk is full. If
    the bytes of a part do not match the manifest, raise a `BuildError` that names the part.
    """
    text = encode(manifest)
    sha256 = hashlib.sha256(text).hexdigest()
    contents = {p.member.path: p.content for p in parts}
    total = sum(m.size for m in manifest.members)
    require_rooms([Room(folder=str(path.absolute().parent), bytes=total)])
    try:
        with (
            files.appearing(path) as out,
            progress.task(f"write {path.name}", total, unit="bytes") as task,
        ):
            files.write_all(out, header(manifest_name(sha256), len(text)))
            files.write_all(out, text + padding(len(text)))
            for member in manifest.members:
                files.write_all(out, header(member.path, member.size))
                for chunk in _checked(member, contents[member.path]):
                    files.write_all(out, chunk)
                    task.advance(len(chunk))
                files.write_all(out, padding(member.size))
            files.write_all(out, END)
    except OSError as error:
        message = files.full_or_broken(error, path).message
        raise BuildError(message, "Use --output to name a file on another disk.") from error
    return sha256


def _checked(member: Member, content: bytes | Path) -> Iterator[bytes]:
    """Yield the bytes of a part while comparing them with the manifest.

    Raise `BuildError` after the last byte if the size or the hash is wrong.
    """
    digest = hashlib.sha256()
    size = 0
    for chunk in [content] if isinstance(content, bytes) else _chunks(content):
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    if (digest.hexdigest(), size) != (member.sha256, member.size):
        raise BuildError(
            f"{member.path} ({member.what}) was changed or damaged: expected sha256"
            f" {member.sha256}, found {digest.hexdigest()}",
            f"Remove {content}, then run the same command again."
            if isinstance(content, Path)
            else "",
        )


def _chunks(path: Path) -> Iterator[bytes]:
    with files.explained(path, BuildError), path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


# --- reading


class Reader:
    """An open bundle, from which the manifest and then the members can be read in order."""

    def __init__(self, stream: IO[bytes], where: Path) -> None:
        self._stream = stream
        self._where = where
        self._size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        self.digest, self.manifest = self._manifest()
        self._first = stream.tell()

    def members(
        self, on_bytes: Callable[[int], None] = lambda count: None
    ) -> Iterator[tuple[Member, Iterator[bytes]]]:
        """Yield each member with an iterator over its bytes, which are hashed as they are read.

        The bytes of a member are skipped if the caller does not read them. This method can be
        called repeatedly. If the bundle is damaged, raise a `BuildError` that names the member. If
        only the hash is wrong, the iterator raises this error after the last byte.
        """
        self._stream.seek(self._first)
        for member in self.manifest.members:
            self._expect(header(member.path, member.size), member.path)
            end = self._stream.tell() + member.size
            yield member, self._pieces(member, on_bytes)
            if left := end - self._stream.tell():
                on_bytes(left)
            if self._stream.seek(end) > self._size:
                raise self._damaged(member.path, "the bundle ends in the middle of this member")
            self._expect(padding(member.size), member.path)
        if self._read(len(END) + 1) != END:
            raise self._damaged("its end")

    def _pieces(self, member: Member, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
        """Yield a member's bytes in pieces.

        Raise `BuildError` if the bundle ends within the member. If the hash is wrong, raise
        `BuildError` after the last byte.
        """
        remaining = member.size
        digest = hashlib.sha256()
        while remaining:
            chunk = self._read(min(_CHUNK, remaining))
            if not chunk:
                raise self._damaged(member.path, "the bundle ends in the middle of this member")
            remaining -= len(chunk)
            digest.update(chunk)
            on_bytes(len(chunk))
            yield chunk
        if digest.hexdigest() != member.sha256:
            raise self._damaged(
                f"{member.path} ({member.what})",
                f"expected sha256 {member.sha256}, found {digest.hexdigest()}",
            )

    def _damaged(self, what: str, reason: str = "") -> BuildError:
        return BuildError(f"{self._where}: damaged: {what}{reason and f': {reason}'}", _AGAIN)

    def _read(self, size: int) -> bytes:
        with files.explained(self._where, BuildError):
            return self._stream.read(size)

    def _expect(self, expected: bytes, what: str) -> None:
        if self._read(len(expected)) != expected:
            raise self._damaged(what)

    def _manifest(self) -> tuple[str, Manifest]:
        block = self._read(BLOCK)
        manifest_id = manifest_stated(block)
        if manifest_id is None:
            raise InvalidError(
                f"{self._where}: not an envbuilder bundle",
                Hint("Make one", ("bundle", "--output", "FILE.tar")),
            )
        sha256, size = manifest_id
        if size > LARGEST_MANIFEST or block != header(manifest_name(sha256), size):
            raise self._damaged("its manifest")
        text = self._read(size)
        if hashlib.sha256(text).hexdigest() != sha256:
            raise self._damaged("its manifest")
        self._expect(padding(size), "its manifest")
        return sha256, parse(text, str(self._where))


def parse(text: bytes, where: str) -> Manifest:
    """Parse a manifest. Raise `InvalidError` if it is invalid or its schema is unknown."""
    try:
        data = decoding.strict_json(text)
    except ValueError as error:
        raise InvalidError(f"{where}: its manifest is not valid JSON: {error}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    schemas = (SCHEMA, WITH_PROJECT)
    if schema not in schemas:
        raise InvalidError(
            f"{where}: bundle schema {str(schema)[:20]} is not supported (supported:"
            f" {' and '.join(map(str, schemas))})",
            "Install the envbuilder that is in the bundle: tar -xf FILE wheels, then"
            " pip install --no-index --find-links wheels envbuilder-ml",
        )
    try:
        manifest = decoding.convert(data, Manifest)
    except msgspec.ValidationError as error:
        raise decoding.explain(error, Manifest, where, "") from error
    wrong = problem(manifest)
    if wrong:
        raise InvalidError(f"{where}: its manifest is invalid: {wrong}")
    return manifest


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    """Open a bundle file, and yield a reader for it.

    Raise `InvalidError` if the file cannot be opened or is not a bundle.
    """
    with files.explained(path):
        stream = path.open("rb")
    if not stream.seekable():
        stream.close()
        raise InvalidError(f"{path}: a pipe cannot be checked before use", "Name a file instead.")
    with stream:
        yield Reader(stream, path)
