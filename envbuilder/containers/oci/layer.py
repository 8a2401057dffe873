"""One layer: members in, a compressed tar out, whose bytes depend on nothing but the members.

Members are sorted by path; time, owner and mode are stated, never taken from the machine that
builds. The tar is hashed and compressed as it is written, and is never on disk as such.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from msgspec import Struct

from envbuilder.containers.oci.descriptor import LAYER_ZSTD, Bytes, Descriptor
from envbuilder.core import types as words
from envbuilder.core.errors import BuildError
from envbuilder.core.member_paths import Folders, objection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Kind = Literal["file", "folder", "link"]
_TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}
_PIECE = 1 << 20
_LEVEL = 3
_JOB = 8 << 20
"""Bytes that one thread compresses on its own: stated, so that it is the same everywhere."""
LARGEST = 8 << 30
"""Bytes of one layer's tar at most: registries and engines refuse blobs of 10 GB and more."""


class Source(Protocol):
    """Where a file's bytes come from besides the disk."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's bytes; `BuildError` if they cannot be read as they should be."""


class Member(Struct, frozen=True, kw_only=True):
    """One entry of a layer."""

    path: str
    """Below the image's root, without a leading slash."""
    kind: Kind = "file"
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    content: bytes = b""
    source: Path | Source | None = None
    """A file's bytes: those of this file, else `content`."""
    target: str = ""
    """Where a link points."""
    time: int | None = None
    """Its own time in seconds; it is written where it is before that of the layer."""


class Layer(Struct, frozen=True, kw_only=True):
    """A written layer: the compressed blob, and the tar that is in it."""

    digest: words.Digest
    size: Bytes
    diff_id: words.Digest
    unpacked: Bytes
    """Bytes of the tar."""

    @property
    def descriptor(self) -> Descriptor:
        """What a manifest says of it."""
        return Descriptor(media_type=LAYER_ZSTD, digest=self.digest, size=self.size)


def compressor() -> Mapping[str, str | int]:
    """What decides a layer's bytes besides its members."""
    import zstandard

    version = ".".join(str(n) for n in zstandard.ZSTD_VERSION)
    return {"zstd": version, "level": _LEVEL, "job": _JOB}


def write(members: Iterable[Member], path: Path, epoch: int) -> Layer:
    """Write a layer; no time in it is after `epoch`, in seconds.

    Raises `BuildError` where it gets too large, a file changes meanwhile or a member is not clean,
    `OSError` on a full disk.
    """
    return pack(_meanwhile(gathered(tar(clean(members), epoch))), path)


def pack(pieces: Iterable[bytes], path: Path) -> Layer:
    """Write a layer from the pieces of its tar."""
    import zstandard

    # With one thread or more zstd cuts the input into jobs: their number of threads changes how
    # fast it is, not what comes out. No thread at all would give other bytes.
    settings = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        threads=os.cpu_count() or 1,
        job_size=_JOB,
        write_content_size=False,
        write_checksum=True,
    )
    packer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    unpacked, packed = hashlib.sha256(), hashlib.sha256()
    total = size = 0
    with path.open("wb") as out:
        for piece in pieces:
            total += len(piece)
            if total > LARGEST:
                raise BuildError(
                    f"{path.name}: a layer of more than {LARGEST >> 30} GiB, which registries and"
                    " engines refuse",
                    "Use --builder buildkit for this profile.",
                )
            unpacked.update(piece)
            size += _write(out, packer.compress(piece), packed)
        size += _write(out, packer.flush(), packed)
    return Layer(
        digest=f"sha256:{packed.hexdigest()}",
        size=size,
        diff_id=f"sha256:{unpacked.hexdigest()}",
        unpacked=total,
    )


def _write(out: BinaryIO, data: bytes, hashed: hashlib._Hash) -> int:
    if data:
        hashed.update(data)
        out.write(data)
    return len(data)


def _meanwhile(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same pieces: each is made, in a thread, while the one before is hashed and compressed."""
    rest = iter(pieces)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, rest, None)
        while (piece := coming.result()) is not None:
            coming = thread.submit(next, rest, None)
            yield piece


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Larger pieces: a tar is mostly headers and small files, and every call costs."""
    held = bytearray()
    for piece in pieces:
        if len(piece) >= _PIECE:
            yield bytes(held)
            yield piece
            held.clear()
            continue
        held += piece
        if len(held) >= _PIECE:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def tar(members: Iterable[Member], epoch: int) -> Iterator[bytes]:
    """A tar in pieces; no time in it is after `epoch`, in seconds."""
    last = None
    for member in sorted(members, key=lambda m: os.fsencode(m.path)):
        if member.path == last:
            raise BuildError(f"{member.path}: twice in one layer")
        last = member.path
        entry = tarfile.TarInfo(member.path + ("/" if member.kind == "folder" else ""))
        entry.type = _TYPES[member.kind]
        entry.mode, entry.uid, entry.gid = member.mode, member.uid, member.gid
        entry.mtime = epoch if member.time is None else min(member.time, epoch)
        entry.linkname = member.target
        if member.kind != "file":
            yield _header(entry)
        elif isinstance(member.source, Path):
            yield from _file(entry, member.source)
        else:
            packed = member.source
            entry.size = len(member.content) if packed is None else packed.size
            yield _header(entry)
            yield from [member.content] if packed is None else packed.pieces()
            yield _padding(entry.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def clean(members: Iterable[Member]) -> list[Member]:
    """Return the members by path; `BuildError` where one would do something else than be there."""
    found = sorted(members, key=lambda m: os.fsencode(m.path))
    folders = Folders()
    for member in found:
        wrong = objection(member.path)
        wrong = wrong or folders.objection(member.path, is_folder=member.kind == "folder")
        if member.kind == "link" and not (member.target and member.target.isprintable()):
            wrong = wrong or f"{member.path!r} is a link to {member.target!r}"
        if wrong:
            raise BuildError(
                f"a layer cannot be made: {wrong}",
                "A package brings it: leave it out of the profile, or pin another version.",
            )
    return found


def _file(entry: tarfile.TarInfo, source: Path) -> Iterator[bytes]:
    with source.open("rb") as stream:
        entry.size = os.fstat(stream.fileno()).st_size
        yield _header(entry)
        read = 0
        while piece := stream.read(_PIECE):
            read += len(piece)
            yield piece
    if read != entry.size:
        raise BuildError(f"{source}: changed while it was read")
    yield _padding(entry.size)


def _header(entry: tarfile.TarInfo) -> bytes:
    # PAX, which adds records only to the entries that need them.
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


# --- members from folders


def member(root: str, path: str, prefix: str) -> Member:
    """What lies at `path` below a folder, as a member below `prefix`: root's, with a plain mode."""
    place = f"{root}/{path}"
    mode = os.lstat(place).st_mode
    where = f"{prefix}/{path}"
    if stat.S_ISREG(mode):
        return Member(path=where, mode=0o755 if mode & stat.S_IXUSR else 0o644, source=Path(place))
    if stat.S_ISDIR(mode):
        return Member(path=where, kind="folder", mode=0o755)
    if stat.S_ISLNK(mode):
        return Member(path=where, kind="link", mode=0o777, target=str(Path(place).readlink()))
    raise BuildError(f"{place}: neither a file nor a folder nor a link")


def tree(root: Path, prefix: str) -> Iterator[Member]:
    """Everything below a folder as members below `prefix`; links are not followed."""
    for place in root.rglob("*"):
        yield member(str(root), place.relative_to(root).as_posix(), prefix)


def folders_above(paths: Iterable[str]) -> Iterator[Member]:
    """The folders that lead to these paths, each once."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    for folder in sorted(found):
        yield Member(path=folder, kind="folder", mode=0o755)
