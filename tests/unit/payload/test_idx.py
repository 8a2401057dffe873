from __future__ import annotations

import gzip
import hashlib
import io
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.payload.training import idx
from envbuilder.payload.training.idx import DataError, Idx

if TYPE_CHECKING:
    from pathlib import Path


def encode(shape: tuple[int, ...], content: bytes) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + content


shapes = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
files = shapes.flatmap(
    lambda shape: st.binary(
        min_size=shape[0] * shape[1] * shape[2], max_size=shape[0] * shape[1] * shape[2]
    ).map(lambda content: (shape, content))
)


@given(files)
def test_what_was_written_is_read(file: tuple[tuple[int, ...], bytes]) -> None:
    shape, content = file
    encoded = encode(shape, content)
    expected = Idx(shape, content, hashlib.sha256(encoded).hexdigest())
    assert idx.parse(io.BytesIO(encoded), "f", 3) == expected


@given(files, st.data())
def test_every_truncation_is_a_data_error(
    file: tuple[tuple[int, ...], bytes], data: st.DataObject
) -> None:
    encoded = encode(*file)
    length = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(DataError, match=r"^name: "):
        idx.parse(io.BytesIO(encoded[:length]), "name", 3)


@given(files, st.binary(min_size=1))
def test_every_surplus_is_a_data_error(file: tuple[tuple[int, ...], bytes], surplus: bytes) -> None:
    with pytest.raises(DataError, match="longer"):
        idx.parse(io.BytesIO(encode(*file) + surplus), "name", 3)


@given(st.binary(max_size=64), st.integers(1, 3))
def test_garbage_gives_no_other_exception(garbage: bytes, dimensions: int) -> None:
    try:
        found = idx.parse(io.BytesIO(garbage), "name", dimensions)
    except DataError:
        return
    assert encode(found.shape, found.content) == garbage


@given(st.binary(max_size=200))
def test_garbage_in_a_compressed_file_gives_no_other_exception(garbage: bytes) -> None:
    compressed = gzip.compress(encode((2, 2, 2), bytes(8)), mtime=0)
    cut = compressed[: min(len(garbage), len(compressed) - 1)]
    for content in (garbage, cut, compressed + b"x" + garbage):
        stream = Stored(content)
        with pytest.raises(DataError, match=r"stored\.gz"):
            idx.read(stream, 3)  # type: ignore[arg-type]


class Stored:
    """A path to bytes in memory: a hundred real files a test would be slow."""

    suffix = ".gz"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def open(self, mode: str) -> io.BytesIO:
        assert mode == "rb"
        return io.BytesIO(self.content)

    def __str__(self) -> str:
        return "stored.gz"


def test_a_header_cannot_make_us_allocate_everything() -> None:
    with pytest.raises(DataError, match="impossible size"):
        idx.parse(io.BytesIO(encode((2**32 - 1,) * 3, b"")), "name", 3)


@pytest.mark.parametrize("shape", [(0,), (5, 0)])
def test_empty_files_are_damaged(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="impossible size"):
        idx.parse(io.BytesIO(encode(shape, b"")), "name", len(shape))


def test_raw_and_compressed_hash_alike(tmp_path: Path) -> None:
    encoded = encode((3,), b"abc")
    (tmp_path / "f").write_bytes(encoded)
    (tmp_path / "f.gz").write_bytes(gzip.compress(encoded))
    raw, compressed = idx.read(tmp_path / "f", 1), idx.read(tmp_path / "f.gz", 1)
    assert raw == compressed
    assert raw.sha256 == hashlib.sha256(encoded).hexdigest()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent"):
        idx.read(tmp_path / "absent", 1)


def test_images_are_not_labels() -> None:
    with pytest.raises(DataError, match="begins with 00000803"):
        idx.parse(io.BytesIO(encode((1, 1, 1), b"a")), "name", 1)
