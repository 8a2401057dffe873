"""The members of a layer from any source: streamed, decompressed, and bounded.

A layer's names, sizes and compression are untrusted; a small file may claim to hold terabytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envbuilder.core import types

LAYER_LIMIT = 64 << 30
"""Maximum bytes of one layer after decompression."""
READ_LIMIT = 64 << 20
"""Maximum bytes read in one piece: a header, or a file whose content is needed."""
_PIECE = 1 << 20


def members(layer: Path) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Yield each member of a layer, with the archive from which its content can be read at once.

    The layer is a tar, plain or compressed with gzip or zstd, detected by its first bytes, since
    media types can be wrong. Raise `InvalidError` if it is damaged or exceeds the limits.
    """
    where = str(layer)
    faults = _faults()
    try:
        with layer.open("rb") as raw:
            stream = cast("IO[bytes]", _Forward(plain(raw), where))
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    yield member, archive
                    cast("Any", archive).members.clear()  # a layer may have millions
    except faults as error:
        raise InvalidError(f"{where}: not a readable layer: {error}") from error


def content(member: tarfile.TarInfo, archive: tarfile.TarFile) -> bytes:
    """Return a regular file's bytes; raise `InvalidError` if it is none or over `READ_LIMIT`."""
    stream = archive.extractfile(member) if member.isreg() else None
    if stream is None:
        raise InvalidError(f"{member.name}: not a regular file in its layer; not read")
    if member.size > READ_LIMIT:
        raise InvalidError(f"{member.name}: {member.size} bytes; at most {READ_LIMIT} are read")
    try:
        return stream.read()
    except _faults() as error:
        raise InvalidError(f"{member.name}: not a readable layer: {error}") from error


def diff_id(layer: Path) -> types.Digest:
    """Return the digest of a layer's decompressed bytes; raise `InvalidError` as `members` does."""
    digest = hashlib.sha256()
    try:
        with layer.open("rb") as raw:
            stream = _Forward(plain(raw), str(layer))
            while piece := stream.read(_PIECE):
                digest.update(piece)
    except _faults() as error:
        raise InvalidError(f"{layer}: not a readable layer: {error}") from error
    return f"sha256:{digest.hexdigest()}"


def _faults() -> tuple[type[Exception], ...]:
    """Return the exceptions that a damaged tar or compressed stream raises."""
    import zstandard

    return tarfile.TarError, OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError


def plain(raw: IO[bytes]) -> IO[bytes]:
    """Return a layer's tar stream, decompressed if necessary."""
    magic = raw.read(4)
    raw.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if magic == b"\x28\xb5\x2f\xfd":
        import zstandard

        packed = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        reader = cast("io.RawIOBase", packed.stream_reader(raw, read_across_frames=True))
        return cast("IO[bytes]", io.BufferedReader(reader, _PIECE))
    return raw


class _Forward:
    """A stream that can only be skipped forward, and refuses to be read in one huge piece.

    tarfile takes a header's length from the archive, which could otherwise claim all memory.
    """

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream, self._where, self._at = stream, where, 0

    def read(self, size: int) -> bytes:
        """Return `size` bytes, or what is left."""
        if not 0 <= size <= READ_LIMIT:
            raise InvalidError(f"{self._where}: a header of {size} bytes; not read")
        data = bytearray()
        while len(data) < size and (piece := self._stream.read(min(_PIECE, size - len(data)))):
            data += piece
        self._at += len(data)
        if self._at > LAYER_LIMIT:
            raise InvalidError(f"{self._where}: more than {LAYER_LIMIT} bytes; not read")
        return bytes(data)

    def tell(self) -> int:
        """Return the number of bytes read or skipped."""
        return self._at

    def seek(self, position: int) -> None:
        """Skip to a later position."""
        if position < self._at:
            raise tarfile.StreamError("a layer can only be read forward")
        while self._at < position and self.read(min(_PIECE, position - self._at)):
            pass
