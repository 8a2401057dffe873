"""Find the GPUs for which a wheel's device code was compiled.

NVIDIA's compiler packs device code into fat binaries. These consist of a header, followed by one
entry per architecture with machine code (`sm_80`) or PTX (`compute_80`). AMD's compiler packs
device code into offload bundles. These begin with a table that contains the target of each code
object (`gfx90a`). Newer bundles are compressed as a whole. NVIDIA's layout is undocumented; the
results agree with `torch.cuda.get_arch_list()` and cuobjdump.

Fat binaries and bundles are found by their magic numbers, not through the section table. That table
is at the end of a library, but a library in a wheel is a compressed stream. Therefore, the stream
is read once from start to end, and the contents of entries are skipped.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from envbuilder.core import archives
from envbuilder.core.errors import InvalidError
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.profiles.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from zipfile import ZipFile, ZipInfo

    from envbuilder.packages.store import Store
    from envbuilder.profiles.lock import File
    from envbuilder.profiles.profile import Profile

_T = TypeVar("_T")
Kernels = Counter[str]
"""Compilation targets → number of bytes of device code for them.

Examples of keys are "compute_90 sm_80 sm_90a", where `compute` stands for PTX, and "gfx1100
gfx90a". A plain `gfx` stands for code for AMD GPUs in a format that is not parsed.
"""

MOST_READS = 1 << 17
"""Maximum number of headers to read in a wheel. PyTorch's largest library has 6,000."""
_LIBRARY = re.compile(r".*\.so(\.[0-9]+)*")
_FATBIN = struct.pack("<IHH", 0xBA55ED50, 1, 16)
_ENTRY = struct.Struct("<HHIQ12xI8xQ")
"""An entry's kind, version, header size, content size, architecture and flags. The sizes are in
bytes."""
_KINDS = {1: "compute", 2: "sm"}
_VARIANTS = ("", "a", "f", "")
"""Suffixes of architecture names, indexed by bits 20 and 21 of the flags. `a` stands for exactly
one architecture, and `f` for a family."""
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_TARGET = re.compile(rb"[a-z0-9]+-amdgcn-[a-z0-9-]*-(gfx[0-9a-z-]{1,20})(:[a-z0-9:+-]*)?")
_LONGEST_TARGET = 200
"""Maximum length in bytes of a target's name in a bundle. There is a limit because the bundle's
author is untrusted."""
_LARGEST = 1 << 40
"""Maximum size in bytes of a code object, as stated in a bundle."""
_COMPRESSED = b"CCOB"
_HEADER = re.compile(rb"[\1-\3]\0[\0\1]\0.{12,24}?(\x28\xb5\x2f\xfd|\x78)", re.DOTALL)
"""Matches the version, method, sizes and hash of a compressed bundle, and the start of its zstd or
zlib data."""
_PREVIEW = 1 << 18
"""Number of compressed bytes that are sure to contain the table. It is more than the largest zstd
block."""
_TABLE = 1 << 15
"""Maximum number of decompressed bytes to read from a compressed bundle."""


def of_wheel(path: Path) -> Kernels:
    """Return the size in bytes of the device code in a wheel, keyed by GPU targets.

    Raise `InvalidError` for a damaged or oversized wheel.
    """
    reads = count()

    def read(wheel: ZipFile, member: ZipInfo) -> Kernels:
        return of_library(archives.zip_pieces(wheel, member), reads)

    return sum(in_wheel(path, read).values(), Kernels())


def in_wheel(path: Path, read: Callable[[ZipFile, ZipInfo], _T]) -> dict[str, _T]:
    """Apply `read` to each library in a wheel, and return the results keyed by library path.

    Raise `InvalidError` for a damaged or oversized wheel.
    """
    try:
        with archives.open_zip(path) as wheel:
            members = [m for m in wheel.infolist() if _LIBRARY.fullmatch(m.filename)]
            limit = archives.unpacked_limit(path.stat().st_size)
            if sum(member.file_size for member in members) > limit:
                raise ValueError("its libraries unpack to more bytes than allowed")
            return {member.filename: read(wheel, member) for member in members}
    except (OSError, struct.error, *archives.BAD_ZIP) as error:
        raise InvalidError(f"{path}: not a readable wheel: {error}") from error


def of_library(pieces: Iterable[bytes], reads: Iterator[int] | None = None) -> Kernels:
    """Return the size in bytes of the device code in a library, keyed by GPU targets.

    The library is passed in chunks. `reads` is a counter shared by all libraries of a wheel, which
    limits the number of headers that are read. Raise `InvalidError` if there is too much device
    code to read.
    """
    stream = _Forward(pieces, reads or count())
    total: Kernels = Counter()
    readers = {_FATBIN: _fatbin, _BUNDLE: _bundle, _COMPRESSED: _compressed}
    while magic := stream.find(tuple(readers)):
        with suppress(EOFError, ValueError):  # other bytes that look like it
            targets, size = readers[magic](stream)
            total[targets] += size
    total.pop("", None)
    return +total


def others(profile: Profile, files: Iterable[File]) -> list[File]:
    """Return the wheels that are neither the framework nor one of its components or libraries."""
    framework = FRAMEWORKS[profile.framework]
    return [
        file
        for file in files
        if file.kind == "wheel"
        and file.name not in framework.names | framework.parts
        and not framework.is_library(file.name)
    ]


def read(profile: Profile, files: Iterable[File], store: Store) -> dict[str, dict[str, int]]:
    """Return the size in bytes of each package's device code, keyed by GPU targets.

    The outer keys are package names with versions (`NAME VERSION`). Each wheel in the store is read
    only once, because the results are cached. The framework and unreadable wheels are left out. If
    a package has wheels for several Python versions, only one of them is read.
    """
    codes: dict[str, tuple[str, dict[str, int]]] = {}
    for file in others(profile, files) if ACCELERATORS[profile.accelerator].code else ():
        with suppress(InvalidError, OSError):
            code = store.derived(file.sha256, "kernels-1", dict[str, int], of_wheel)
            codes.setdefault(file.name, (f"{file.name} {file.version}", code))
    return dict(codes.values())


class _Forward:
    """A stream that can only be read forward."""

    def __init__(self, pieces: Iterable[bytes], reads: Iterator[int]) -> None:
        self._pieces = iter(pieces)
        self.reads = reads
        self._data = b""
        self._at = 0
        self._places: dict[bytes, int] = {}

    def find(self, magics: tuple[bytes, ...]) -> bytes:
        """Move past the next occurrence of any of the magic numbers, and return that number.

        Return empty bytes if none of them occurs in the rest of the stream.
        """
        overlap = max(map(len, magics)) - 1
        with suppress(EOFError):
            while True:
                position, magic = min((self._place(magic), magic) for magic in magics)
                if position < len(self._data):
                    self._at = position
                    return self.take(len(magic))
                self._at = max(self._at, len(self._data) - overlap)
                self._more()
        return b""

    def _place(self, magic: bytes) -> int:
        """Return the next position of a magic number in the buffer, or the end of the buffer."""
        if self._places.get(magic, -1) < self._at:
            position = self._data.find(magic, self._at)
            self._places[magic] = position if position >= 0 else len(self._data)
        return self._places[magic]

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; raise `EOFError` if fewer are left."""
        if next(self.reads) >= MOST_READS:
            raise InvalidError("the wheel has too much device code to read")
        while len(self._data) - self._at < size:
            self._more()
        self._at += size
        return self._data[self._at - size : self._at]

    def preview(self, size: int) -> bytes:
        """Return the next `size` bytes without moving past them.

        Return fewer bytes at the end of the stream.
        """
        with suppress(EOFError):
            while len(self._data) - self._at < size:
                self._more()
        return self._data[self._at : self._at + size]

    def skip(self, size: int) -> None:
        """Skip `size` bytes; raise `EOFError` if fewer are left."""
        while (left := len(self._data) - self._at) < size:
            size -= left
            self._at = len(self._data)
            self._more()
        self._at += size

    def _more(self) -> None:
        piece = next(self._pieces, b"")
        if not piece:
            raise EOFError
        self._data = self._data[self._at :] + piece
        self._at = 0
        self._places.clear()


def _fatbin(stream: _Forward) -> tuple[str, int]:
    """Return the targets of a fat binary, separated by spaces, and the binary's size in bytes."""
    (size,) = struct.unpack("<Q", stream.take(8))
    targets = set()
    left = size
    while left > 0:
        kind, version, header, length, arch, flags = _ENTRY.unpack(stream.take(_ENTRY.size))
        if version != 0x101 or header < _ENTRY.size or not 10 <= arch < 1000:
            raise ValueError("not an entry of a fat binary")
        stream.skip(header - _ENTRY.size + length)
        left -= header + length
        if kind in _KINDS:
            targets.add(f"{_KINDS[kind]}_{arch}{_VARIANTS[flags >> 20 & 3]}")
    if left:
        raise ValueError("the entries do not fill the fat binary")
    return " ".join(sorted(targets)), size


def _bundle(stream: _Forward) -> tuple[str, int]:
    """Return the targets of an AMD offload bundle and the total size of its code objects.

    The targets are separated by spaces, and the size is in bytes.
    """
    (count,) = struct.unpack("<Q", stream.take(8))
    sizes: Counter[str] = Counter()
    for _ in range(count):
        _, size, length = struct.unpack("<QQQ", stream.take(24))
        if length > _LONGEST_TARGET or size > _LARGEST:
            raise ValueError("not a kernel bundle's table of contents")
        if match := _TARGET.fullmatch(stream.take(length)):
            sizes[match[1].decode()] += size
    return " ".join(sorted(sizes)), sizes.total()


def _compressed(stream: _Forward) -> tuple[str, int]:
    """Return the targets of a compressed AMD bundle and the total size of its code objects.

    The targets are separated by spaces, and the size is in bytes. Only the beginning of the bundle
    is decompressed. If that cannot be read, the target is `gfx`, and the size is that of the
    compressed data that was read.
    """
    import zstandard

    header = _HEADER.match(stream.preview(32))
    if header is None:
        raise ValueError("not a compressed bundle")
    content = stream.preview(_PREVIEW)[header.start(1) :]
    try:
        with zstandard.ZstdDecompressor().stream_reader(content) as unpacked:
            table = _Forward([unpacked.read(_TABLE)], stream.reads)
        table.find((_BUNDLE,))
        return _bundle(table)
    except (EOFError, ValueError, zstandard.ZstdError):
        return "gfx", len(content)
