"""Files and compressed streams are read within limits, and nothing is waited for."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
from typing import TYPE_CHECKING

import pytest
import zstandard

from envbuilder.core import bounded, files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PACKERS = [bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.compress]
TEXT = b"some text\n" * 1000


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 0 KiB; not read") as caught:
        files.read(tmp_path / "a", 4)
    assert caught.value.errno == errno.EFBIG


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        files.read(tmp_path / "pipe", 5)


def test_an_endless_device_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        files.read(tmp_path / "zero", 1 << 20)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        files.read(tmp_path / "zero", 1 << 20, pipes=True)


@pytest.mark.parametrize("pack", PACKERS)
def test_what_is_compressed_is_recognized(pack: Callable[[bytes], bytes]) -> None:
    assert bounded.unpacked(io.BytesIO(pack(TEXT))).read() == TEXT


@pytest.mark.parametrize("pack", PACKERS[1:])
def test_several_streams_are_one(pack: Callable[[bytes], bytes]) -> None:
    assert bounded.unpacked(io.BytesIO(pack(TEXT) + pack(b"more"))).read() == TEXT + b"more"


@pytest.mark.parametrize("pack", PACKERS[1:4])
def test_a_stream_that_breaks_off_is_an_error(pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(bounded.faults()):
        bounded.unpacked(io.BytesIO(pack(os.urandom(5000))[:-9])).read()


def test_an_xz_stream_cannot_claim_all_memory() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 256 << 20}]
    packed = lzma.compress(b"x", filters=filters)
    with pytest.raises(lzma.LZMAError, match="Memory usage limit"):
        bounded.unpacked(io.BytesIO(packed)).read()


def test_pieces_end_at_the_limit() -> None:
    assert b"".join(bounded.pieces(io.BytesIO(b"12345"), 5)) == b"12345"
    with pytest.raises(ValueError, match="more bytes than it may have"):
        list(bounded.pieces(io.BytesIO(bytes(3 << 20)), 2 << 20))
