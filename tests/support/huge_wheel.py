"""A wheel as large as torch's for ROCm, with its name and its folders, on a disk with little room.

Nearly all of it is zeros, which the file system keeps as holes and layers compress to nothing.
"""

from __future__ import annotations

import hashlib
import io
import random
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from envbuilder.profiles.lock import File
from tests.support.images import encoded

VERSION = "2.14.0+rocm7.2"
NAME = f"torch-{VERSION}-cp311-cp311-manylinux_2_28_x86_64.whl"
INFO = f"torch-{VERSION}.dist-info"
_MIB = 1 << 20


def write(folder: Path, size: int) -> File:
    """Write a wheel of about `size` bytes; return what a lock states of it."""
    path = folder / NAME
    texts = {
        "torch/__init__.py": b"HERE = True\n",
        "torch/random.bin": random.Random(5).randbytes(8 * _MIB),
        f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n".encode(),
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n"
        b"Tag: cp311-cp311-manylinux_2_28_x86_64\n",
    }
    rows = [f"{n},sha256={encoded(hashlib.sha256(c).digest())},{len(c)}" for n, c in texts.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in texts.items():
            archive.writestr(zipfile.ZipInfo(name), content)
        for name, length in _holes(size):
            _write_hole(archive, name, length)
            rows.append(f"{name},sha256={encoded(_zeros(length)[0])},{length}")
        rows.append(f"{INFO}/RECORD,,\n")
        archive.writestr(zipfile.ZipInfo(f"{INFO}/RECORD"), "\n".join(rows))
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    return File(
        kind="wheel", name="torch", version=VERSION, file=NAME, sha256=digest,
        size=path.stat().st_size, source="default", provenance="read", by="test",
    )  # fmt: skip


def _holes(size: int) -> Iterator[tuple[str, int]]:
    """Yield the files of zeros: a library of a quarter, a dozen libraries, folders of kernels."""
    yield "torch/lib/libtorch_hip.so", size // 4 // _MIB * _MIB
    for number in range(12):
        yield f"torch/lib/lib{number:02}.so", size // 48 // _MIB * _MIB
    each = 2 * _MIB
    for number in range(size // 2 // each):
        gfx = ("1100", "1201", "90a", "942")[number % 4]
        folder = ("hipblaslt/library", "rocblas/library", "aotriton.images")[number % 3]
        yield f"torch/lib/{folder}/gfx{gfx}/T{number:04}.co", each


def _write_hole(archive: zipfile.ZipFile, name: str, size: int) -> None:
    entry = zipfile.ZipInfo(name)
    entry.file_size = entry.compress_size = size
    entry.CRC = _zeros(size)[1]
    entry.header_offset = archive.fp.tell()
    archive.fp.write(entry.FileHeader())
    archive.fp.seek(size, io.SEEK_CUR)
    archive.start_dir = archive.fp.tell()
    archive.filelist.append(entry)
    archive.NameToInfo[name] = entry


@cache
def _zeros(size: int) -> tuple[bytes, int]:
    """Return the sha256 and the CRC of some zeros."""
    digest = hashlib.sha256()
    crc = 0
    piece = bytes(_MIB)
    assert size % _MIB == 0
    for _ in range(size // _MIB):
        digest.update(piece)
        crc = zlib.crc32(piece, crc)
    return digest.digest(), crc
