"""Layers of others are streamed and bounded: damaged or boastful ones are an error, no more."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.containers.oci import members
from envbuilder.core import archives
from envbuilder.core.errors import InvalidError
from tests.support import debs

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"a": b"one", "b": b"x" * 5000}


def read(path: Path) -> dict[str, bytes]:
    return {m.name.removeprefix("./"): a.content(m) for m, a in members.members(path)}


def diff_id(layer: bytes) -> str:
    return members.diff_id(io.BytesIO(layer), len(layer), "x")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_whatever_it_is_compressed_with(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "layer"
    path.write_bytes(pack(debs.tar(FILES)))
    assert read(path) == FILES
    # What is not looked at is skipped.
    assert [m.name for m, _ in members.members(path)] == ["./a", "./b"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_the_diff_id_is_the_digest_of_the_tar(pack: type[bytes]) -> None:
    tar = debs.tar(FILES)
    assert diff_id(pack(tar)) == f"sha256:{hashlib.sha256(tar).hexdigest()}"


def test_no_diff_id_without_the_whole_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidError, match="x: not a readable layer"):
        diff_id(gzip.compress(debs.tar(FILES))[:-9])
    monkeypatch.setattr(archives, "ALLOWANCE", 0)
    with pytest.raises(InvalidError, match="unpacks to more"):
        diff_id(gzip.compress(bytes(8 << 20)))


def test_a_layer_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="not a readable layer: No such file or directory"):
        read(tmp_path / "layer")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_a_broken_off_layer_is_an_error(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "layer"
    whole = pack(debs.tar(FILES))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidError, match="not a readable layer"):
        read(path)


def header(kind: bytes, size: int) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_cannot_ask_for_all_memory(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "layer"
    path.write_bytes(header(kind, 1 << 40))
    with pytest.raises(InvalidError, match=r"an extended header of \d+ bytes; not read"):
        read(path)


def test_nor_can_a_file(tmp_path: Path) -> None:
    path = tmp_path / "layer"
    path.write_bytes(header(tarfile.REGTYPE, 1 << 30))
    with pytest.raises(InvalidError, match="at most"):
        read(path)


def test_a_bomb_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ALLOWANCE", 0)
    path = tmp_path / "layer"
    packed = gzip.compress(header(tarfile.REGTYPE, 8 << 20) + bytes(8 << 20))
    path.write_bytes(packed)
    with pytest.raises(InvalidError, match=rf"more than {100 * len(packed)} bytes; not read"):
        list(members.members(path))


def test_only_plain_files_have_content(tmp_path: Path) -> None:
    path = debs.layer(tmp_path / "layer", [("a", "b")])
    with pytest.raises(InvalidError, match="'a' is not a regular file"):
        read(path)


@given(st.binary(max_size=2000), st.sampled_from(["", "gzip", "zstd", "tar"]))
def test_any_bytes_can_be_a_layer(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, kind: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "layer"
    out = io.BytesIO()
    if kind == "gzip":
        out.write(b"\x1f\x8b")
    if kind == "zstd":
        out.write(b"\x28\xb5\x2f\xfd")
    if kind == "tar":
        out.write(debs.tar(FILES)[:-1024])
    path.write_bytes(out.getvalue() + data)
    try:
        read(path)
    except InvalidError:
        return
