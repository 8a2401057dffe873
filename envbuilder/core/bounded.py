"""Limits for everything that comes from outside: files, and what compressed files unpack to.

The size of a download is in the lock, so what it unpacks to is bounded by that size. Archives and
compressed streams state sizes of their own; none of them is believed.
"""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ALLOWANCE = 64 << 20
"""Bytes that any file may unpack to, however small it is."""
RATIO = 100
"""Bytes that a file may unpack to for each of its own. Packages and layers unpack to 2 to 20 times
their size; deflate can reach 1,032, and zstd, xz and bzip2 10,000 and more."""
PIECE = 1 << 20
"""Maximum bytes that are read or unpacked at once."""
_XZ_MEMORY = 128 << 20
"""Maximum memory for an xz stream, which states what it needs; `xz -9` needs 65 MiB."""
_ZSTD_WINDOW = 128 << 20
"""Maximum window of a zstd stream: that of `zstd --long`."""


def unpacked_limit(packed: int) -> int:
    """Return the maximum number of bytes that a file of `packed` bytes may unpack to."""
    return ALLOWANCE + RATIO * packed


def unpacked(raw: IO[bytes]) -> IO[bytes]:
    """Return a stream's content, decompressed if it begins like gzip, bzip2, xz or zstd.

    Its length is not limited here, but each read unpacks little more than it returns. Damage
    raises one of `faults`.
    """
    # Loaded where they are needed: most commands open no archive.
    magic = raw.read(6)
    raw.seek(0)
    if magic[:2] == b"\x1f\x8b":
        import gzip

        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if magic[:3] == b"BZh":
        import bz2

        return _buffered(_Stream(raw, bz2.BZ2Decompressor))
    if magic == b"\xfd7zXZ\x00":
        import lzma

        return _buffered(_Stream(raw, lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)))
    if magic[:4] == b"\x28\xb5\x2f\xfd":
        import zstandard

        packed = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        return _buffered(cast("io.RawIOBase", packed.stream_reader(raw, read_across_frames=True)))
    return raw


def pieces(stream: IO[bytes], limit: int) -> Iterator[bytes]:
    """Yield a stream's bytes; raise `ValueError` if it has more than `limit`."""
    while piece := stream.read(PIECE):
        limit -= len(piece)
        if limit < 0:
            raise ValueError("it unpacks to more bytes than it may have")
        yield piece


def faults() -> tuple[type[Exception], ...]:
    """Return the exceptions that damaged or hostile compressed bytes raise."""
    import lzma
    import zlib

    import zstandard

    return OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError


def _buffered(raw: io.RawIOBase) -> IO[bytes]:
    return cast("IO[bytes]", io.BufferedReader(raw, PIECE))


class _Stream(io.RawIOBase):
    """The content of bzip2 or xz streams, one after the other.

    `BZ2File` and `LZMAFile` would do, but the latter has no limit on memory.
    """

    def __init__(self, raw: IO[bytes], decompressor: Callable[[], Any]) -> None:
        self._raw, self._decompressor = raw, decompressor
        self._unpacker = decompressor()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes; return their number, 0 at the end."""
        while True:
            if self._unpacker.eof:
                rest = self._unpacker.unused_data or self._raw.read(PIECE)
                if not rest.strip(b"\0"):  # xz pads its streams with zeros
                    return 0
                self._unpacker = self._decompressor()
            else:
                rest = self._raw.read(1 << 16) if self._unpacker.needs_input else b""
                if not rest and self._unpacker.needs_input:
                    raise EOFError("the compressed stream ends too early")
            data = self._unpacker.decompress(rest, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
