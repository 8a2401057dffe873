from __future__ import annotations

import gzip
import hashlib
import io
import struct
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import resources
from envbuilder.payload.training import dataset
from envbuilder.payload.training.dataset import DataError, Idx

SHIPPED = resources.mnist_subset_dir()


def write(folder: Path, images: int = 3, labels: bytes = b"\x00\x01\x09", side: int = 28) -> Path:
    folder.mkdir(exist_ok=True)
    for prefix in ("train", "t10k"):
        header = struct.pack(">BBBBIII", 0, 0, 8, 3, images, side, side)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + bytes(images * side * side))
        header = struct.pack(">BBBBI", 0, 0, 8, 1, len(labels))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(header + labels)
    return folder


def test_a_folder_of_raw_files(tmp_path: Path) -> None:
    data = dataset.load(write(tmp_path))
    assert (data.name, data.train.count, data.test.count) == ("unknown", 3, 3)
    assert data.subset
    assert not data.genuine


def test_hashes_in_the_summary_are_those_of_the_raw_files(tmp_path: Path) -> None:
    write(tmp_path)
    stem = "train-images-idx3-ubyte"
    raw = (tmp_path / stem).read_bytes()
    (tmp_path / stem).unlink()
    (tmp_path / f"{stem}.gz").write_bytes(gzip.compress(raw))
    hashes = dataset.load(tmp_path).summary()["sha256"]
    assert hashes[stem] == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": b"\x00\x01"}, "2 labels for 3 images"),
        ({"labels": b"\x00\x01\x0a"}, "label 10"),
        ({"side": 27}, "27"),
    ],
)
def test_files_that_do_not_fit_each_other(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    write(tmp_path, **changes)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        dataset.load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: is missing"):
        dataset.load(tmp_path)


def test_the_shipped_subset_is_small_and_carries_no_time() -> None:
    files = list(SHIPPED.glob("*.gz"))
    assert sum(file.stat().st_size for file in files) < 900_000
    for file in files:
        flags, mtime = struct.unpack("<BI", file.read_bytes()[3:8])
        assert (flags, mtime) == (0, 0), f"{file.name} has a name or a time in its header"


# ---- IDX


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
    assert dataset.parse(io.BytesIO(encoded), "f", 3) == expected


@given(files, st.data())
def test_every_truncation_is_a_data_error(
    file: tuple[tuple[int, ...], bytes], data: st.DataObject
) -> None:
    encoded = encode(*file)
    length = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(DataError, match=r"^name: "):
        dataset.parse(io.BytesIO(encoded[:length]), "name", 3)


@given(files, st.binary(min_size=1))
def test_every_surplus_is_a_data_error(file: tuple[tuple[int, ...], bytes], surplus: bytes) -> None:
    with pytest.raises(DataError, match="longer"):
        dataset.parse(io.BytesIO(encode(*file) + surplus), "name", 3)


@given(st.binary(max_size=64), st.integers(1, 3))
def test_garbage_gives_no_other_exception(garbage: bytes, dimensions: int) -> None:
    try:
        found = dataset.parse(io.BytesIO(garbage), "name", dimensions)
    except DataError:
        return
    assert encode(found.shape, found.content) == garbage


def test_a_header_cannot_make_us_allocate_everything() -> None:
    with pytest.raises(DataError, match="impossible size"):
        dataset.parse(io.BytesIO(encode((2**32 - 1,) * 3, b"")), "name", 3)


@pytest.mark.parametrize("shape", [(0,), (5, 0)])
def test_empty_files_are_damaged(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="impossible size"):
        dataset.parse(io.BytesIO(encode(shape, b"")), "name", len(shape))


def test_the_first_images_to_train_on(tmp_path: Path) -> None:
    data = dataset.load(write(tmp_path))
    assert data.first(2).train.count == 2
    assert data.first(2).test.count == 3
    assert data.first(9).train.count == 3
    assert data.first(2, 1).test.count == 1
    assert data.first(2).sha256 == data.sha256
