"""Open zip archives from any source, within limits.

`zipfile` reads the whole directory into objects, and inflates what a member's compressed bytes
hold before it compares their number with the stated one.
"""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from envbuilder.core import bounded
from envbuilder.core.text import binary_size, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIRECTORY = 16 << 20
"""Maximum bytes of the directory, which has 130 to 170 for each member; that of torch's CPU wheel
with 12,000 members has 1.5 MB."""
DAMAGED = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, ValueError, RuntimeError),
    *(OverflowError, LookupError, lzma.LZMAError),
)
"""Exceptions from reading a damaged or hostile archive. `RuntimeError`: encrypted, or of a later
version of the format."""


@contextmanager
def opened(source: Path | io.RawIOBase) -> Iterator[zipfile.ZipFile]:
    """Open an archive in a file; raise one of `DAMAGED` if it is none, or exceeds the limits."""
    with File(source) as stream, archive_in(stream) as archive:
        yield archive


def archive_in(stream: File) -> zipfile.ZipFile:
    """Return the archive in an open file; raise as `opened` does."""
    try:
        archive = zipfile.ZipFile(stream)
    except OSError as error:
        raise zipfile.BadZipFile(f"its directory cannot be read: {error}") from error
    entries = archive.infolist()
    packed = stream.size
    if sum(e.compress_size for e in entries) > packed:
        raise zipfile.BadZipFile("its members overlap")
    limit = bounded.unpacked_limit(packed)
    if sum(e.file_size for e in entries) > limit:
        raise zipfile.BadZipFile(f"it unpacks to more than {limit} bytes")
    for entry in entries:
        if not 0 <= entry.header_offset < packed:
            raise zipfile.BadZipFile("a member begins outside of it")
    return archive


def content(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Return a member's bytes; raise one of `DAMAGED` if it is damaged or has more than `limit`."""
    size = archive.getinfo(name).file_size
    if size > limit:
        raise ValueError(f"{shown(name)} is larger than {binary_size(limit)}")
    return b"".join(pieces(archive, name))


def pieces(archive: zipfile.ZipFile, member: str | zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield a member's bytes, no more than it states; raise one of `DAMAGED` if it is damaged."""
    try:
        with archive.open(member) as stream:  # `ZipFile.read` would inflate more than that
            while piece := stream.read(bounded.PIECE):
                yield piece
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        # bzip2 has no error of its own for damaged data.
        raise zipfile.BadZipFile(str(error)) from error


class File(io.BufferedReader):
    """A file from which no part larger than the limit for the directory is read."""

    def __init__(self, source: Path | io.RawIOBase) -> None:
        super().__init__(source if isinstance(source, io.RawIOBase) else io.FileIO(source))

    @property
    def size(self) -> int:
        """The number of its bytes."""
        position = self.tell()
        end = self.seek(0, io.SEEK_END)
        self.seek(position)
        return end

    def read(self, size: int | None = -1, /) -> bytes:
        """Return `size` bytes, or what is left."""
        if size is None or size < 0:
            size = min(max(self.size - self.tell(), 0), DIRECTORY)
        if size > DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has {size} bytes; not read")
        return super().read(size)
