"""No zip takes more memory than its size allows, whatever its directory states."""

from __future__ import annotations

import tracemalloc
import zipfile
from typing import TYPE_CHECKING

import pytest

from envbuilder.core import bounded, zips

if TYPE_CHECKING:
    from pathlib import Path


def made(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def changed(path: Path, at: int, value: int, size: int = 4) -> Path:
    """Change a field of the last entry of the directory."""
    data = bytearray(path.read_bytes())
    start = data.rindex(b"PK\x01\x02") + at
    data[start : start + size] = value.to_bytes(size, "little")
    path.write_bytes(data)
    return path


def refused(path: Path) -> str:
    with pytest.raises(zips.DAMAGED) as caught, zips.opened(path):
        pass
    return str(caught.value)


def test_a_member_is_read(tmp_path: Path) -> None:
    with zips.opened(made(tmp_path, {"a": b"one"})) as archive:
        assert zips.content(archive, "a", 3) == b"one"
        with pytest.raises(ValueError, match="'a' is larger than 0 KiB"):
            zips.content(archive, "a", 2)


def test_members_that_overlap_are_refused(tmp_path: Path) -> None:
    assert "overlap" in refused(changed(made(tmp_path, {"a": b"1"}), 20, 1 << 30))


def test_a_member_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    path = changed(made(tmp_path, {"a": b"1"}), 42, 1 << 30)
    assert "outside" in refused(path)


def test_what_it_unpacks_to_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, {"a": bytes(10 << 20)})
    with zips.opened(path):
        pass
    monkeypatch.setattr(bounded, "ALLOWANCE", 0)
    assert "unpacks to more than" in refused(path)


def test_a_large_directory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, {f"file {n}": b"" for n in range(100)})
    monkeypatch.setattr(zips, "DIRECTORY", 1000)
    assert "its directory has" in refused(path)


def test_no_more_is_inflated_than_a_member_states(tmp_path: Path) -> None:
    path = changed(made(tmp_path, {"a": bytes(50 << 20)}), 24, 1000)
    tracemalloc.start()
    try:
        with zips.opened(path) as archive, pytest.raises(zips.DAMAGED):
            zips.content(archive, "a", 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_garbage_is_no_archive(tmp_path: Path) -> None:
    for content in (b"", b"PK\x05\x06" + b"\xff" * 18):
        (tmp_path / "x").write_bytes(content)
        refused(tmp_path / "x")


def test_damaged_bzip2_is_a_damaged_archive(tmp_path: Path) -> None:
    """It raises an `OSError` without a number, unlike a disk."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a", b"text" * 100)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"1AY&SY", b"1AY&SX", 1))
    with zips.opened(path) as damaged, pytest.raises(zipfile.BadZipFile, match="Invalid data"):
        zips.content(damaged, "a", 1000)
