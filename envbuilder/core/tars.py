"""Read tar archives from any source: forward only, decompressed if necessary, and bounded.

Names, sizes, types and the number of members are untrusted, and so is the compression: a small
file may claim to hold terabytes. Nothing is unpacked to a path that an archive names.
"""

from __future__ import annotations

import math
import re
import tarfile
from typing import IO, TYPE_CHECKING, Any, cast

from envbuilder.core import bounded
from envbuilder.core.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envbuilder.core.errors import EnvbuilderError

READ_LIMIT = 64 << 20
"""Maximum bytes of a member that is read into memory."""
MEMBERS = 20_000
"""Members that any archive may have; each further one must have `_MEMBER_BYTES` in the file."""
_MEMBER_BYTES = 16
"""Minimum compressed bytes of a member in a real archive: 30 to 60 are usual."""
_MEMBER_BYTES_SO_FAR = 8
"""The same in the part that was read: an archive may begin with its folders and links."""
_EXTENDED = 1 << 20
"""Maximum bytes of one member's extended headers: paths, and attributes of at most 64 KiB each."""
_ALL_EXTENDED = 4 << 20
"""Bytes of extended headers that any archive may have; more with its size."""
_GLOBAL = 64
"""Maximum number of global attributes; `tarfile` copies them to every member."""
_RECORD = re.compile(rb"([1-9][0-9]{0,6}) [^=\n\x00]{1,255}=")
_DIGITS = re.compile(rb"[0-9]{256}")
_PAX = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE})
_WITH_BODY = _PAX | {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
_LARGEST_ID = 1 << 32
_LATEST = 1 << 53


class Tar:
    """A tar archive whose faults are all raised as `failure(reason)`.

    `packed` is the size of the file, which bounds what it may unpack to.
    """

    def __init__(
        self, raw: IO[bytes], packed: int, failure: Callable[[str], EnvbuilderError]
    ) -> None:
        self._raw, self._packed, self._failure = raw, packed, failure
        self._archive: tarfile.TarFile | None = None

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        """Yield each member; its content can be read until the next one is requested."""
        number = 0
        try:
            counted = _Counted(self._raw)
            stream = _Forward(bounded.unpacked(cast("IO[bytes]", counted)), self._packed)
            with stream.header():
                self._archive = tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:")  # noqa: SIM115
            archive: Any = self._archive
            while True:
                with stream.header():
                    member = archive.next()
                if member is None:
                    return
                number += 1
                so_far = counted.bytes // _MEMBER_BYTES_SO_FAR
                if number > MEMBERS + min(self._packed // _MEMBER_BYTES, so_far):
                    raise ValueError(f"it has more than {number - 1} members; not read")
                _require_plain(member, archive)
                archive.members.clear()  # there may be millions
                yield member
        except _faults() as error:
            raise self._error(error) from error

    def content(self, member: tarfile.TarInfo, limit: int = READ_LIMIT) -> bytes:
        """Return a regular file's bytes, at most `limit`."""
        if member.size > limit:
            raise self._failure(f"{shown(member.name)} has {member.size} bytes; at most {limit}")
        return b"".join(self.pieces(member))

    def pieces(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """Yield a regular file's bytes in pieces."""
        assert self._archive is not None, "the member was yielded by it"
        if not member.isreg():
            raise self._failure(f"{shown(member.name)} is not a regular file")
        try:
            stream = self._archive.extractfile(member)
            assert stream is not None, "a regular file"
            while piece := stream.read(bounded.PIECE):
                yield piece
        except _faults() as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> Exception:
        if isinstance(error, OSError) and error.errno is not None:
            return error  # of the disk, not of the archive
        return self._failure(str(error) or type(error).__name__)


def _faults() -> tuple[type[Exception], ...]:
    """Return the exceptions that a damaged or hostile archive raises."""
    # A chain of extended headers is read recursively.
    return (*bounded.faults(), tarfile.TarError, OverflowError, RecursionError, LookupError)


def _require_plain(member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    """Raise `ValueError` for a member with values that no file system has."""
    name = shown(member.name)
    if member.issparse():
        raise ValueError(f"{name} is a sparse file, of any stated size")
    if "\0" in member.name + member.linkname:
        raise ValueError(f"{name} has a null character in its name or target")
    if not (math.isfinite(member.mtime) and abs(member.mtime) < _LATEST):
        raise ValueError(f"{name} has an impossible time")
    numbers = (member.uid, member.gid, member.mode)
    if member.size < 0 or not all(0 <= number < _LARGEST_ID for number in numbers):
        raise ValueError(f"{name} has an impossible size, mode or owner")
    if len(archive.pax_headers) > _GLOBAL:
        raise ValueError(f"it has more than {_GLOBAL} global attributes")


class _Counted:
    """A stream that counts what is read from it."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self.bytes = raw, 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = self._raw.read(size)
        self.bytes += len(data)
        return data

    def seek(self, position: int) -> None:
        """Go to a position."""
        self._raw.seek(position)


class _Forward:
    """A stream that can only be skipped forward, within limits, for `tarfile` to read from.

    `tarfile` reads as many bytes as a header states in one piece, and its parser of extended
    headers takes time quadratic in their length for some contents (before 3.11.10 and 3.12.6:
    CVE-2024-6232). So they are checked here before it gets them.
    """

    def __init__(self, stream: IO[bytes], packed: int) -> None:
        self._stream, self._at = stream, 0
        self._limit = bounded.unpacked_limit(packed)
        self._extended = _ALL_EXTENDED + bounded.RATIO * packed
        self._left: int | None = None
        self._body = b""
        """The type of the extended header whose content is read next."""

    def header(self) -> _Forward:
        """Return a context in which a member's headers are read."""
        return self

    def __enter__(self) -> None:
        self._left, self._body = _EXTENDED, b""

    def __exit__(self, *exception: object) -> None:
        self._left = None

    def read(self, size: int) -> bytes:
        """Return `size` bytes, or what is left."""
        if self._left is None:
            return self._take(size)
        if size > tarfile.BLOCKSIZE:
            if not size <= min(self._left, self._extended):
                raise ValueError(f"it has an extended header of {size} bytes; not read")
            self._left -= size
            self._extended -= size
        data = self._take(size)
        if self._body in _PAX:
            _require_records(data)
        kind = data[156:157]
        self._body = kind if not self._body and kind in _WITH_BODY else b""
        return data

    def tell(self) -> int:
        """Return the number of bytes read or skipped."""
        return self._at

    def seek(self, position: int) -> None:
        """Skip to a later position."""
        if position < self._at:
            raise tarfile.StreamError("an archive can only be read forward")
        while self._at < position and self._take(min(bounded.PIECE, position - self._at)):
            pass

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= bounded.PIECE:
            raise ValueError(f"it has a part of {size} bytes; not read")
        data = bytearray()
        while len(data) < size and (piece := self._stream.read(size - len(data))):
            data += piece
        self._at += len(data)
        if self._at > self._limit:
            raise ValueError(f"it unpacks to more than {self._limit} bytes; not read")
        return bytes(data)


def _require_records(data: bytes) -> None:
    """Raise `ValueError` unless an extended header consists of whole records."""
    at, end = 0, len(data.rstrip(b"\0"))
    while at < end:
        record = _RECORD.match(data, at)
        length = int(record[1]) if record else 0
        if (
            record is None
            or data[at + length - 1 : at + length] != b"\n"
            or (at + length <= record.end())
        ):
            raise ValueError("it has an invalid extended header")
        at += length
    if _DIGITS.search(data):
        raise ValueError("it has an invalid extended header")
