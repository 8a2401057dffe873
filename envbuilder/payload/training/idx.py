"""Strict reader for IDX, the file format of MNIST (http://yann.lecun.com/exdb/mnist/).

A file is a magic number (two zero bytes, a type, the number of dimensions), one big-endian 32-bit
size per dimension, then exactly as many bytes as their product. Only unsigned bytes (type 8) occur
in MNIST.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Tuple

if TYPE_CHECKING:
    from pathlib import Path

UNSIGNED_BYTE = 8
LARGEST = 1 << 26
"""Maximum bytes of content that a header may state; MNIST's largest file has 47 million."""


class DataError(Exception):
    """A data file is missing or damaged; the message names the file and what is wrong with it."""


class Readable(Protocol):
    """The interface that ``parse`` needs of a stream."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; fewer only at the end."""


@dataclass(frozen=True)
class Idx:
    """One file's content: sizes of its dimensions, its bytes, and the sha256 of the whole file.

    The hash is that of the uncompressed file, so that a ``.gz`` and a raw copy compare equal.
    """

    shape: Tuple[int, ...]
    content: bytes
    sha256: str


def read(path: Path, dimensions: int) -> Idx:
    """Read a raw or gzip-compressed (``.gz``) file; raise DataError if it is not exactly right."""
    try:
        with path.open("rb") as raw:
            stream: Readable = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            return parse(stream, str(path), dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def parse(stream: Readable, name: str, dimensions: int) -> Idx:
    """Parse one IDX file of unsigned bytes; ``name`` appears in the DataError's message."""
    header = stream.read(4 + 4 * dimensions)
    expected = struct.pack(">BBBB", 0, 0, UNSIGNED_BYTE, dimensions)
    if header[:4] != expected:
        begins = header[:4].hex() or "nothing"
        raise DataError(
            f"{name}: is not such an IDX file: it begins with {begins}, not {expected.hex()}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DataError(f"{name}: ends inside its header, after {len(header)} bytes")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    length = math.prod(shape)
    if not 0 < length <= LARGEST:
        raise DataError(f"{name}: its header states an impossible size: {shape}")
    content = stream.read(length)
    if len(content) < length:
        raise DataError(f"{name}: is cut off: {len(content)} of {length} bytes after the header")
    if stream.read(1):
        raise DataError(f"{name}: is longer than its header states ({length} bytes)")
    return Idx(shape, content, hashlib.sha256(header + content).hexdigest())
