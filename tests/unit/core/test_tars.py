"""No tar takes more memory or time than its size allows, whatever its headers state."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
import time
from typing import IO, TYPE_CHECKING, cast

import pytest

from envbuilder.core import tars
from envbuilder.core.errors import InvalidError
from envbuilder.core.tars import Tar
from tests.support import debs

if TYPE_CHECKING:
    from collections.abc import Callable


def read(data: bytes) -> dict[str, bytes]:
    archive = Tar(io.BytesIO(data), len(data), InvalidError)
    return {m.name: archive.content(m) if m.isreg() else b"" for m in archive}


def refused(data: bytes) -> str:
    with pytest.raises(InvalidError) as caught:
        read(data)
    return caught.value.message


def block(kind: bytes, content: bytes, size: int | None = None) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = kind, len(content) if size is None else size
    return entry.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def with_records(**records: str) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.pax_headers = {k.replace("__", "."): v for k, v in records.items()}
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + bytes(1024)


def test_files_are_read() -> None:
    assert read(debs.tar({"a": b"one", "b": "a"})) == {"./a": b"one", "./b": b""}


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ({"mtime": "nan"}, "impossible time"),
        ({"mtime": "1e300"}, "impossible time"),
        ({"size": "-1"}, "impossible size"),
        ({"uid": "99999999999"}, "impossible size, mode or owner"),
        ({"path": "a\0b"}, "invalid extended header|null character"),
        ({"GNU__sparse__map": "0,1", "GNU__sparse__size": "9" * 18}, "sparse"),
        ({"comment": "1" * 300}, "invalid extended header"),
    ],
)
def test_values_that_no_file_has_are_refused(records: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        read(with_records(**records))


def test_a_sparse_file_has_no_end() -> None:
    assert "sparse" in refused(block(tarfile.GNUTYPE_SPARSE, b"") + bytes(1024))


HEADERS = [
    (b"3 a", "invalid"),  # each record would be searched for a distant "="
    (b"9", "invalid"),  # the search for a character set would be quadratic (CVE-2024-6232)
    (b"\n", "invalid"),
]


@pytest.mark.parametrize(("content", "why"), HEADERS)
def test_headers_are_not_parsed_in_quadratic_time(content: bytes, why: str) -> None:
    started = time.process_time()
    data = block(tarfile.XHDTYPE, content * (900_000 // len(content))) + debs.tar({"a": b""})
    assert why in refused(data)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_chain_of_headers_is_an_error(kind: bytes) -> None:
    refused(block(kind, b"6 a=b\n") * 3000 + debs.tar({"a": b""}))


def test_a_long_name_is_no_extended_header() -> None:
    name = "d/" * 100 + "x" * 150
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo(name))
    assert list(read(out.getvalue())) == [name]


def test_the_number_of_members_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "MEMBERS", 3)
    monkeypatch.setattr(tars, "_MEMBER_BYTES", 1 << 20)
    assert "more than 3 members" in refused(debs.tar(dict.fromkeys("abcd", b"")))


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_empty_members_count_from_the_start(
    compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows does not buy them room: 10 MB of gzip with them took 17 s to refuse."""
    monkeypatch.setattr(tars, "MEMBERS", 30)
    data = compress(block(tarfile.REGTYPE, b"") * 12_000) + compress(os.urandom(1 << 20))
    archive = Tar(io.BytesIO(data), len(data), InvalidError)
    with pytest.raises(InvalidError, match="members; not read"):
        for _ in archive:
            pass
    usual = compress(debs.tar({str(number): os.urandom(20) for number in range(100)}))
    assert len(read(usual)) == 100


def test_global_attributes_are_limited() -> None:
    records = b"".join(f"13 key{n:04}=v\n".encode() for n in range(100))
    data = block(tarfile.XGLTYPE, records) + debs.tar({"a": b""})
    assert "global attributes" in refused(data)


@pytest.mark.parametrize("make", [bytes, bytearray])
def test_only_regular_files_have_content(make: Callable[[bytes], bytes]) -> None:
    data = make(debs.tar({"a": "b"}))
    archive = Tar(io.BytesIO(data), len(data), InvalidError)
    with pytest.raises(InvalidError, match="not a regular file"):
        archive.content(next(iter(archive)))


class Holes(io.RawIOBase):
    """An archive of two members, of which the first has 9 GiB; only its headers are bytes."""

    size = (9 << 30) + 1000

    def __init__(self) -> None:
        entry, after = tarfile.TarInfo("large"), tarfile.TarInfo("b")
        entry.size, after.size = self.size, 3
        self._head = entry.tobuf(tarfile.PAX_FORMAT)
        self._tail = bytes(-self.size % 512) + after.tobuf() + b"one" + bytes(509 + 1024)
        self._hole = memoryview(bytes(1 << 20))
        self._at = 0

    def seek(self, position: int, whence: int = 0) -> int:
        self._at = position
        return position

    def read(self, size: int = -1) -> bytes:
        end = len(self._head) + self.size
        if self._at < len(self._head):
            data = self._head[self._at :][:size]
        elif self._at < end:
            data = bytes(self._hole[: min(size, end - self._at)])
        else:
            data = self._tail[self._at - end :][:size]
        self._at += len(data)
        return data


def test_a_member_of_more_than_8_gib_is_skipped_or_read() -> None:
    archive = Tar(cast("IO[bytes]", Holes()), 1 << 30, InvalidError)
    found = {}
    for member in archive:
        pieces = archive.pieces(member)
        found[member.name] = member.size, len(next(pieces))
    assert found == {"large": (Holes.size, 1 << 20), "b": (3, 3)}
