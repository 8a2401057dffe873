"""Write and read image layers.

A layer written by this module is a compressed tar whose bytes depend only on its members. The
members are sorted by path. Their times, owners and modes are set explicitly, and never taken from
the build machine. The tar is hashed and compressed while it is being produced, and never stored
uncompressed. A layer to be read may come from anywhere, so its names, sizes and compression are
untrusted.
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
"""Number of bytes that one thread compresses at a time. It is constant, so that the output is
always the same."""
_THREADS = 8
"""Maximum number of compression threads.

A single thread hashes all input, and is not fast enough to keep more compression threads busy. Each
thread needs memory for its 8 MiB jobs. With 128 threads, 1.1 GiB were used.
"""
LARGEST = 8 << 30
"""Maximum size in bytes of the uncompressed tar of a layer. Registries and engines refuse blobs of
10 GB or more."""


class Source(Protocol):
    """A source of file content that is not in a file on disk."""

    @property
    def size(self) -> int:
        """The size of the content in bytes."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces. Raise `BuildError` if it cannot be read as expected."""


class Member(Struct, frozen=True, kw_only=True):
    """One entry of a layer: a file, a folder or a link."""

    path: str
    """Path relative to the image's root, without a leading slash."""
    kind: Kind = "file"
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    content: bytes = b""
    source: Path | Source | None = None
    """Source of a file's content, or None if the content is in the field `content`."""
    target: str = ""
    """Target of a link; empty for files and folders."""
    time: int | None = None
    """Modification time in seconds since 1970, or None to use the layer's own time.

    A time that is later than the layer's own time is replaced by it.
    """


class Layer(Struct, frozen=True, kw_only=True):
    """The digests and sizes of a written layer, both of the compressed blob and of the tar."""

    digest: types.Digest
    size: Bytes
    diff_id: types.Digest
    unpacked: Bytes
    """Size of the uncompressed tar in bytes."""

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor of the compressed blob, for use in a manifest."""
        return Descriptor(media_type=LAYER_ZSTD, digest=self.digest, size=self.size)


def compressor() -> Mapping[str, str | int]:
    """Return the version and the settings of the compressor.

    The bytes of a layer are determined only by these values and the layer's members.
    """
    import zstandard

    return {"zstd": ".".join(map(str, zstandard.ZSTD_VERSION)), "level": _LEVEL, "job": _JOB}


def write(
    members: Iterable[Member],
    path: Path,
    epoch: int,
    on_bytes: Callable[[int], object] = lambda amount: None,
) -> Layer:
    """Write a layer with the given members to `path`.

    No modification time in the layer is later than `epoch` (in seconds since 1970). `on_bytes` is
    called with the size in bytes of each piece of the tar. Raise `BuildError` if the layer becomes
    too large, a file changes while it is read, or a member is unsafe. Raise `OSError` if the disk
    is full.
    """
    return pack(_meanwhile(gathered(tar(clean(members), epoch))), path, on_bytes)


def pack(
    pieces: Iterable[bytes], path: Path, on_bytes: Callable[[int], object] = lambda amount: None
) -> Layer:
    """Compress a tar, which is given in pieces, into a layer at `path`.

    `on_bytes` is called with the size in bytes of each piece. Raise `BuildError` if the tar is
    larger than `LARGEST`.
    """
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
                    f"{path.name}: the layer is larger than {LARGEST >> 30} GiB, which registries"
                    " and engines refuse",
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
    """Yield the pieces unchanged, while a thread produces the next piece in advance."""
    rest = iter(pieces)
    with process.pool(1) as thread:
        coming = thread.submit(next, rest, None)
        while (piece := coming.result()) is not None:
            coming = thread.submit(next, rest, None)
            yield piece


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes, with small pieces joined into larger ones.

    This saves time, because a tar consists mostly of headers and small files, and each piece has a
    fixed cost.
    """
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
    """Yield the pieces of a tar that contains the given members, sorted by path.

    No modification time in the tar is later than `epoch` (in seconds since 1970). Raise
    `BuildError` if two members have the same path.
    """
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
    """Return the members sorted by path. Raise `BuildError` if a member is unsafe to unpack."""
    ordered = sorted(members, key=lambda m: os.fsencode(m.path))
    folders = archives.Folders()
    for member in ordered:
        wrong = archives.path_objection(member.path)
        wrong = wrong or folders.objection(member.path, is_folder=member.kind == "folder")
        if member.kind == "link" and not (member.target and member.target.isprintable()):
            wrong = wrong or f"{member.path!r} is a link with an invalid target: {member.target!r}"
        if wrong:
            raise BuildError(
                f"cannot create a layer: {wrong}",
                "Remove the package that causes this from the profile, or pin another version.",
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
        raise BuildError(f"{source} changed while it was being read")
    yield _padding(entry.size)


def _header(entry: tarfile.TarInfo) -> bytes:
    # PAX adds records only to the entries that need them.
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


# --- members from folders


def member(root: str, path: str, prefix: str) -> Member:
    """Return the file, folder or link `root/path` as a member with the path `prefix/path`.

    The member is owned by root. Its mode depends only on its kind and on whether it is executable.
    """
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
    raise BuildError(f"{source_path}: not a file, folder or link")


def tree(root: Path, prefix: str) -> Iterator[Member]:
    """Yield everything in a folder as members below `prefix`, without following links."""
    for path in root.rglob("*"):
        yield member(str(root), path.relative_to(root).as_posix(), prefix)


def folders_above(paths: Iterable[str]) -> Iterator[Member]:
    """Yield all parent folders of the given paths as members, parents first, each only once."""
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
    """Yield each member of a layer, with the archive from which its content can be read.

    The content must be read before the next member is requested. The layer is a tar, which may be
    compressed. The compression is recognized by the first bytes of the layer, because media types
    can be wrong. Raise `InvalidError` if the layer is damaged or exceeds the limits.
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
    """Return the digest of a layer's uncompressed bytes.

    `size` is the size in bytes of the layer as stored, and `where` identifies the layer in error
    messages. Raise `InvalidError` if the layer is damaged or exceeds the limits.
    """
    digest = hashlib.sha256()
    try:
        for piece in archives.pieces(archives.unpacked(layer), archives.unpacked_limit(size)):
            digest.update(piece)
    except archives.faults() as error:
        raise InvalidError(f"{where}: not a readable layer: {error}") from error
    return f"sha256:{digest.hexdigest()}"
