"""Recreate the digits that ship in envbuilder/data/mnist-subset from the four raw MNIST files.

    python benchmarks/make_subset.py RAW_FOLDER OUT_FOLDER

The first 300 training and 100 test images of each digit, in their original order, so the classes
are balanced and nothing is drawn at random. The raw files must be the published ones, by sha256.
The IDX content is always the same; the compressed bytes depend on the zlib that Python was built
with.
"""

from __future__ import annotations

import argparse
import gzip
import struct
from pathlib import Path

from envbuilder.payload.training import dataset

PER_CLASS = {"train": 300, "t10k": 100}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path, help="folder with the four raw MNIST files")
    parser.add_argument("out", type=Path, help="folder to write the four .gz files into")
    options = parser.parse_args()
    data = dataset.load(options.raw)
    if not data.genuine:
        parser.error(f"{options.raw}: these are not the published MNIST files, by sha256")
    options.out.mkdir(parents=True, exist_ok=True)
    total = 0
    for prefix, split in (("train", data.train), ("t10k", data.test)):
        images, labels = choose(split, PER_CLASS[prefix])
        side = dataset.SIDE
        header = struct.pack(">BBBBIII", 0, 0, 8, 3, len(labels), side, side)
        total += write(options.out / f"{prefix}-images-idx3-ubyte.gz", header + images)
        header = struct.pack(">BBBBI", 0, 0, 8, 1, len(labels))
        total += write(options.out / f"{prefix}-labels-idx1-ubyte.gz", header + labels)
    print(f"{total} bytes in {options.out}")
    return 0


def choose(split: dataset.Split, per_class: int) -> tuple[bytes, bytes]:
    """The first images of each class, in their original order."""
    size = dataset.SIDE**2
    left = dict.fromkeys(range(dataset.CLASSES), per_class)
    chosen = []
    for number, label in enumerate(split.labels):
        if left[label]:
            left[label] -= 1
            chosen.append(number)
    images = b"".join(split.images[n * size : (n + 1) * size] for n in chosen)
    return images, bytes(split.labels[n] for n in chosen)


def write(path: Path, content: bytes) -> int:
    """Compress without a time or a name in the header; returns the file's size."""
    compressed = gzip.compress(content, compresslevel=9, mtime=0)
    path.write_bytes(compressed)
    return len(compressed)


if __name__ == "__main__":
    raise SystemExit(main())
