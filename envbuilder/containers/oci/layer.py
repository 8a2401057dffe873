"""Write and read layers.

A written layer is a compressed tar whose bytes depend only on its members: they are sorted by path;
time, owner and mode are set explicitly, never taken from the build machine. The tar is hashed and
compressed while it is produced, and never stored uncompressed. A layer to read may come from
anywhere: its names, sizes and compression are untrusted.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO, Literal, Protocol

from msgspec import Struct

from envbuilder.containers.oci.layout import LAYER_ZSTD, Bytes, Descriptor
from envbuilder.core import archives, process, types
from envbuilder.core.errors import BuildError, InvalidError

Kind = Literal["file", "folder", "link"]
_TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}
_PIECE = 1 << 20
_LEVEL = 3
_JOB = 8 << 20
"""Bytes that one thread compresses at a time; constant, so that the output is always the same."""
_THREADS = 8
"""Maximum number of compressing threads. One thread hashes all input, which cannot keep more of
them busy, and each takes 8 MiB: 128 took 1.1 GiB."""
LARGEST = 8 << 30
"""Maximum bytes of a layer's tar, which packages determine: registries and engines refuse blobs of
10 GB and more."""


class Source(Protocol):
    """A source of a file's bytes other than a file on disk."""

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's bytes; raise `BuildError` if they cannot be read as expected."""


class Member(Struct, frozen=True, kw_only=True):
    """One entry of a layer."""

    path: str
    """Relative to the image's root, without a leading slash."""
    kind: Kind = "file"
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    content: bytes = b""
    source: Path | Source | None = None
    """The source of a file's bytes; without it, they are `content`."""
    target: str = ""
    """The target of a link."""
    time: int | None = None
    """Its own time in seconds, used if it is before that of the layer."""


class Layer(Struct, frozen=True, kw_only=True):
    """A written layer: the compressed blob and the tar in it."""

    digest: types.Digest
    size: Bytes
    diff_id: types.Digest
    unpacked: Bytes
    """Bytes of the tar."""

    @property
    def descriptor(self) -> Descriptor:
        """Return the descriptor of the blob, for a manifest."""
        return Descriptor(media_type=LAYER_ZSTD, digest=self.digest, size=self.size)


def compressor() -> Mapping[str, str | int]:
    """Return what determines a layer's bytes beside its members: the compressor's settings."""
    import zstandard

    return {"zstd": ".".join(map(str, zstandard.ZSTD_VERSION)), "level": _LEVEL, "job": _JOB}


def write(
    members: Iterable[Member],
    path: Path,
    epoch: int,
    on_bytes: Callable[[int], object] = lambda amount: None,
) -> Layer:
    """Write a layer; no time in it is later than `epoch` (seconds).

    `on_bytes` receives the bytes of its tar as they are written.
    Raise `BuildError` if it gets too large, a file changes meanwhile or a member is unsafe,
    `OSError` on a full disk.
    """
    return pack(_meanwhile(gathered(tar(clean(members), epoch))), path, on_bytes)


def pack(
    pieces: Iterable[bytes], path: Path, on_bytes: Callable[[int], object] = lambda amount: None
) -> Layer:
    """Write a layer from the pieces of its tar."""
    import zstandard

    # With one or more threads, zstd cuts the input into jobs: the number of threads changes the
    # speed, not the output. Without threads, the bytes would differ.
    settings = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        threads=min(os.cpu_count() or 1, _THREADS),
        job_size=_JOB,
        write_content_size=False,
        write_checksum=True,
    )
    packer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    unpacked = hashlib.sha256()
    packed = hashlib.sha256()
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
            on_bytes(len(piece))
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
    """Yield the same pieces; a thread produces the next while the caller uses one."""
    rest = iter(pieces)
    with process.pool(1) as thread:
        coming = thread.submit(next, rest, None)
        while (piece := coming.result()) is not None:
            coming = thread.submit(next, rest, None)
            yield piece


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join small pieces: a tar is mostly headers and small files, and every call costs time."""
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
    """Yield a tar in pieces; no time in it is later than `epoch` (seconds)."""
    last = None
    for member in sorted(members, key=lambda m: os.fsencode(m.path)):
        if member.path == last:
            raise BuildError(f"{member.path}: appears twice in one layer")
        last = member.path
        entry = tarfile.TarInfo(member.path + ("/" if member.kind == "folder" else ""))
        entry.type = _TYPES[member.kind]
        entry.mode = member.mode
        entry.uid = member.uid
        entry.gid = member.gid
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
    """Return the members sorted by path; raise `BuildError` if one is unsafe to unpack."""
    ordered = sorted(members, key=lambda m: os.fsencode(m.path))
    folders = archives.Folders()
    for member in ordered:
        wrong = archives.path_objection(member.path)
        wrong = wrong or folders.objection(member.path, is_folder=member.kind == "folder")
        if member.kind == "link" and not (member.target and member.target.isprintable()):
            wrong = wrong or f"{member.path!r} is a link to {member.target!r}"
        if wrong:
            raise BuildError(
                f"a layer cannot be created: {wrong}",
                "It comes from a package: leave that out of the profile, or pin another version.",
            )
    return ordered


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
    # PAX adds records only to the entries that need them.
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


# --- members from folders


def member(root: str, path: str, prefix: str) -> Member:
    """Return a path below `root` as a member below `prefix`: owned by root, with a plain mode."""
    source_path = f"{root}/{path}"
    mode = os.lstat(source_path).st_mode
    member_name = f"{prefix}/{path}"
    if stat.S_ISREG(mode):
        return Member(
            path=member_name, mode=0o755 if mode & stat.S_IXUSR else 0o644, source=Path(source_path)
        )
    if stat.S_ISDIR(mode):
        return Member(path=member_name, kind="folder", mode=0o755)
    if stat.S_ISLNK(mode):
        return Member(
            path=member_name, kind="link", mode=0o777, target=str(Path(source_path).readlink())
        )
    raise BuildError(f"{source_path}: neither a file nor a folder nor a link")


def tree(root: Path, prefix: str) -> Iterator[Member]:
    """Yield everything below a folder as members below `prefix`; links are not followed."""
    for path in root.rglob("*"):
        yield member(str(root), path.relative_to(root).as_posix(), prefix)


def folders_above(paths: Iterable[str]) -> Iterator[Member]:
    """Yield the parent folders of these paths, each once."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    for folder in sorted(folders):
        yield Member(path=folder, kind="folder", mode=0o755)


# --- reading


def members(layer: Path) -> Iterator[tuple[tarfile.TarInfo, archives.Tar]]:
    """Yield each member of a layer, with the archive from which its content can be read at once.

    The layer is a tar, plain or compressed, detected by its first bytes, since media types can be
    wrong. Raise `InvalidError` if it is damaged or exceeds the limits.
    """

    def failure(reason: str) -> InvalidError:
        return InvalidError(f"{layer}: not a readable layer: {reason}")

    try:
        with layer.open("rb") as raw:
            archive = archives.Tar(raw, layer.stat().st_size, failure)
            for member in archive:
                yield member, archive
    except OSError as error:
        raise failure(error.strerror or str(error)) from error


def diff_id(layer: IO[bytes], size: int, where: str) -> types.Digest:
    """Return the digest of a layer's decompressed bytes; raise `InvalidError` as `members` does.

    `size` is the size of the layer as stored, `where` names it in errors.
    """
    digest = hashlib.sha256()
    try:
        for piece in archives.pieces(archives.unpacked(layer), archives.unpacked_limit(size)):
            digest.update(piece)
    except archives.faults() as error:
        raise InvalidError(f"{where}: not a readable layer: {error}") from error
    return f"sha256:{digest.hexdigest()}"
