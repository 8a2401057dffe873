"""The four MNIST files of one folder, checked before torch is imported.

Their format is IDX (http://yann.lecun.com/exdb/mnist/): a magic number (two zero bytes, a type, the
number of dimensions), one big-endian 32-bit size for each dimension, and then as many bytes as the
product of the sizes. Only unsigned bytes (type 8) occur in MNIST.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Dict, List, Optional, Tuple, Union

SIDE = 28
CLASSES = 10
FULL_TRAIN = 60_000

QUICK_TRAIN = 3_000
QUICK_TEST = 1_000

MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""sha256 of the raw files, the same on every public mirror."""

SUBSET_SHA256 = {
    "train-images-idx3-ubyte": "04dc55b9072e88982f00c049c1092bb9f06118d3152ab2dac88b674efba0e9aa",
    "train-labels-idx1-ubyte": "3a69e20f4a9ede3b09857101d9eba527da93a31693538b1c58c2e9ba371d19ce",
    "t10k-images-idx3-ubyte": "b97c8bfeb834d8e7999eaa2d69239abe06653dc09c1e5d7eb0c974c5965bc6a9",
    "t10k-labels-idx1-ubyte": "41cf2f530031915ba9fbb241407c369dba1acd7515053edff48cebeee8b260f4",
}
"""sha256 of the raw files of the subset that ships with envbuilder."""

KNOWN = (("mnist", MNIST_SHA256), ("mnist-subset", SUBSET_SHA256))


@dataclass(frozen=True)
class Split:
    """Images (unsigned bytes, row by row) and their labels; only the first ``count`` are used."""

    images: bytes
    labels: bytes
    count: int

    def first(self, count: int) -> Split:
        """Return the same split, limited to its first ``count`` images."""
        return replace(self, count=min(self.count, count))


@dataclass(frozen=True)
class Dataset:
    """Training data and test data, with their name and the hashes of their files."""

    name: str
    train: Split
    test: Split
    sha256: Dict[str, str]

    @property
    def genuine(self) -> bool:
        """Whether these are the published MNIST files or the shipped subset, judged by hash."""
        return any(self.sha256 == hashes for _, hashes in KNOWN)

    @property
    def subset(self) -> bool:
        """Whether there are fewer training images than MNIST's 60,000."""
        return self.train.count < FULL_TRAIN

    def quick(self) -> Dataset:
        """Return the same data, limited to so few images that a check takes only seconds."""
        return self.first(QUICK_TRAIN, QUICK_TEST)

    def first(self, train: int, test: Optional[int] = None) -> Dataset:
        """Return the same data, limited to the first ``train`` training and ``test`` test images.

        If ``test`` is None, all test images are kept.
        """
        tested = self.test if test is None else self.test.first(test)
        return replace(self, train=self.train.first(train), test=tested)

    def summary(self) -> Dict[str, object]:
        """Return the report's ``dataset`` entry."""
        return {
            "name": self.name,
            "train": self.train.count,
            "test": self.test.count,
            "sha256": dict(self.sha256),
            "subset": self.subset,
        }


def load(folder: Path, name: Optional[str] = None) -> Dataset:
    """Read and check the four files, which may be raw or compressed (``.gz``).

    Raise DataError, naming the file, if one is missing or damaged.

    If no ``name`` is given, the hashes determine it: "mnist", "mnist-subset" or "unknown".
    """
    files = {stem: read(find(folder, stem), 3 if "images" in stem else 1) for stem in MNIST_SHA256}
    stems = list(files)
    hashes = {stem: content.sha256 for stem, content in files.items()}
    return Dataset(
        name or next((label for label, expected in KNOWN if hashes == expected), "unknown"),
        _split(folder, files, stems[:2]),
        _split(folder, files, stems[2:]),
        hashes,
    )


def find(folder: Path, stem: str) -> Path:
    """Return the path of the raw file or, if there is none, of the compressed one.

    Raise DataError if neither exists.
    """
    for path in (folder / stem, folder / f"{stem}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder / stem}: is missing (and so is {stem}.gz)")


def _split(folder: Path, files: Dict[str, Idx], stems: List[str]) -> Split:
    images, labels = (files[stem] for stem in stems)
    count = images.shape[0]
    if images.shape[1:] != (SIDE, SIDE):
        raise DataError(f"{folder / stems[0]}: holds images of {images.shape[1:]}, not 28 by 28")
    if labels.shape[0] != count:
        raise DataError(f"{folder / stems[1]}: holds {labels.shape[0]} labels for {count} images")
    largest = max(labels.content)
    if largest >= CLASSES:
        raise DataError(f"{folder / stems[1]}: holds the label {largest}; 9 is the last")
    return Split(images.content, labels.content, count)


# ---- IDX

UNSIGNED_BYTE = 8
LARGEST = 1 << 26
"""Maximum bytes of content that a header may state; MNIST's largest file has 47 million."""


class DataError(Exception):
    """An error for a missing or damaged data file. The message names the file and the fault."""


@dataclass(frozen=True)
class Idx:
    """One file's content: the sizes of its dimensions, its bytes, and the sha256 of the whole file.

    The hash is that of the uncompressed file, so that a ``.gz`` copy and a raw copy have equal
    hashes.
    """

    shape: Tuple[int, ...]
    content: bytes
    sha256: str


def read(path: Path, dimensions: int) -> Idx:
    """Read a raw or gzip-compressed (``.gz``) IDX file with this number of dimensions.

    Raise DataError if the file does not have exactly the expected format.
    """
    try:
        with path.open("rb") as raw:
            stream: Union[BinaryIO, gzip.GzipFile] = (
                gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            )
            return parse(stream, str(path), dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def parse(stream: Union[BinaryIO, gzip.GzipFile], name: str, dimensions: int) -> Idx:
    """Parse one IDX file of unsigned bytes with this number of dimensions.

    Raise DataError, with ``name`` in its message, if the file does not have exactly this format.
    """
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
