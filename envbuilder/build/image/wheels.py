"""Read the files of a wheel that are installed unchanged directly from the wheel.

Only a wheel's metadata, scripts and data folders need an installer. All other files, 12,000 in
torch's wheel, would be unpacked, read once and removed, which takes longer than compressing them.
uv then records only what it installed; `Wheel.record` adds the others, as uv would have done with
the whole wheel.
"""

from __future__ import annotations

import copy
import csv
import functools
import io
import os
import zipfile
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from envbuilder.containers.oci.layout import Bytes
from envbuilder.core import archives
from envbuilder.core.errors import BuildError
from envbuilder.packages.python import wheel_conflicts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PIECE = 256 << 10
_HEADER = 30
"""Bytes of a local file header in a ZIP archive, before the file name (APPNOTE.TXT, 4.3.7)."""
_SIGNATURE = b"PK\x03\x04"
_QUOTED = frozenset(',"\r\n')
"""Characters that make CSV writers quote a field, each in its own way."""
_ENCRYPTED, _UTF8 = 0x1, 0x800
"""Bits of `general purpose bit flag` (APPNOTE.TXT, 4.4.4)."""


class Packed(Struct, frozen=True, kw_only=True):
    """A file within a wheel."""

    wheel: Wheel
    name: str
    header: Bytes
    """Offset of its local file header."""
    packed: Bytes
    size: Bytes
    crc: int
    deflated: bool
    executable: bool

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's bytes; `BuildError` if they do not match the ZIP directory."""
        lib = _zlib()
        crc = size = 0
        packed = self.wheel.read(self.header, self.packed)
        try:
            for data in _inflated(packed, lib) if self.deflated else packed:
                crc, size = lib.crc32(data, crc), size + len(data)
                if size > self.size:
                    raise self._damaged()
                yield data
        except lib.error as error:
            raise self._damaged() from error
        if (size, crc) != (self.size, self.crc):
            raise self._damaged()

    def _damaged(self) -> BuildError:
        return self.wheel.unusable(f"{self.name}: its bytes do not match the archive's directory")


class Wheel:
    """A wheel: the files that are installed unchanged, and all others; a context manager.

    `name` is for errors. `BuildError` if it is not a wheel.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._stream = path.open("rb")
        try:
            with archives.open_zip(self._stream) as archive:
                entries = [i for i in archive.infolist() if not i.is_dir()]
                rows = _rows(archive)
        except wheel_conflicts.UNREADABLE as error:
            self._stream.close()
            raise self.unusable(str(error)) from error
        names = Counter(i.filename for i in entries)
        # The installer decides which of two files with the same name counts, and what happens to
        # a file that RECORD does not list.
        plain = [
            i for i in entries if _is_plain(i) and names[i.filename] == 1 and i.filename in rows
        ]
        self._rows = [rows[i.filename] for i in plain]
        self.files = {i.filename: self._packed(i) for i in plain}
        """Unchanged files, by path relative to site-packages."""
        self._others = [i for i in entries if i.filename not in self.files]

    def _packed(self, entry: zipfile.ZipInfo) -> Packed:
        return Packed(
            wheel=self,
            name=entry.filename,
            header=entry.header_offset,
            packed=entry.compress_size,
            size=entry.file_size,
            crc=entry.CRC,
            deflated=entry.compress_type == zipfile.ZIP_DEFLATED,
            executable=bool(entry.external_attr >> 16 & 0o111),
        )

    def program(self, name: str) -> Packed:
        """Return an executable, which a wheel has in `NAME-VERSION.data/scripts/`."""
        suffix = f".data/scripts/{name}"
        entries = [i for i in self._others if i.filename.endswith(suffix) and _is_readable(i)]
        if len(entries) != 1:
            raise self.unusable(f"it holds no executable '{name}'")
        return self._packed(entries[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def read(self, header: Bytes, packed: Bytes) -> Iterator[bytes]:
        """Yield the bytes of a file as stored in the archive."""
        fixed = os.pread(self._stream.fileno(), _HEADER, header)
        if fixed[:4] != _SIGNATURE:
            raise self.unusable(f"no file begins at byte {header}")
        # The name and extra field may be longer here than in the ZIP directory.
        start = header + _HEADER + sum(int.from_bytes(fixed[n : n + 2], "little") for n in (26, 28))
        for at in range(start, start + packed, _PIECE):
            yield os.pread(self._stream.fileno(), min(_PIECE, start + packed - at), at)

    def write_others(self, target: Path) -> None:
        """Write a wheel of everything but `files`; `OSError` on a full disk."""
        with archives.open_zip(self._stream) as archive, zipfile.ZipFile(target, "w") as rest:
            for entry in self._others:
                written = copy.copy(entry)
                written.extra = b""  # those of Zip64 are true only where they come from
                try:
                    with rest.open(written, "w") as out:
                        for piece in archives.zip_pieces(archive, entry):
                            out.write(piece)
                except wheel_conflicts.UNREADABLE as error:
                    raise self.unusable(f"{entry.filename}: {error}") from error

    def record(self, installed: str) -> bytes:
        """Return RECORD with `files` added; `installed` is the RECORD of the other files."""
        rows = [*csv.reader(io.StringIO(installed, newline="")), *self._rows]
        out = io.StringIO()
        # Once each: some versions of uv also record listed files that they did not find.
        unique = {row[0]: row for row in rows if row}
        csv.writer(out, lineterminator="\n").writerows(row for _, row in sorted(unique.items()))
        return out.getvalue().encode()

    def unusable(self, reason: str) -> BuildError:
        """Return the error for a wheel that has the locked hash but cannot be used."""
        return BuildError(
            f"{self._name}: cannot be unpacked: {reason}",
            "The file matches the lock, so the wheel itself is malformed. Report it to the project"
            " that publishes it, and pin another version.",
        )


def _rows(archive: zipfile.ZipFile) -> dict[str, list[str]]:
    """Return the complete, unambiguous rows of RECORD, by path."""
    paths = wheel_conflicts.records(archive.namelist())
    if len(paths) != 1:
        return {}
    # RECORD may have many more rows than there are members.
    members = set(archive.namelist())
    text = wheel_conflicts.text(archive, paths[0], wheel_conflicts.RECORD_LIMIT)
    rows = [r for r in csv.reader(io.StringIO(text, newline="")) if r and r[0] in members]
    names = Counter(row[0] for row in rows)
    complete = (r for r in rows if len(r) == 3 and r[1] and r[2].isdecimal() and names[r[0]] == 1)
    return {row[0]: row for row in complete if not _QUOTED & {*row[0]}}


def _is_plain(entry: zipfile.ZipInfo) -> bool:
    """Return whether an installer copies a file unchanged and this module can read it."""
    folder, _, rest = entry.filename.partition("/")
    parts = entry.filename.split("/")
    return (
        not (rest and folder.endswith((".dist-info", ".data")))
        and _is_readable(entry)
        # Without this flag, each installer decides how to decode a name that is not ASCII.
        and (entry.filename.isascii() or bool(entry.flag_bits & _UTF8))
        and not {"", ".", ".."} & {*parts}
        and "\\" not in entry.filename
    )


def _is_readable(entry: zipfile.ZipInfo) -> bool:
    """Return whether this module can read a file."""
    known = entry.compress_type in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
    return known and not entry.flag_bits & _ENCRYPTED


def _inflated(packed: Iterable[bytes], lib: Any) -> Iterator[bytes]:
    """Yield the content of deflated bytes in pieces of a limited size."""
    inflate = lib.decompressobj(-lib.MAX_WBITS)
    for piece in packed:
        rest, data = piece, b""
        # A full piece may not be all: zeros take so few bits that the last input is read before
        # the last output fits.
        while rest or len(data) == archives.PIECE:
            data = inflate.decompress(rest, archives.PIECE)
            rest = inflate.unconsumed_tail
            yield data


@functools.cache
def _zlib() -> Any:
    """Return the zlib to use: Intel's ISA-L if installed, which takes half the time."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib
