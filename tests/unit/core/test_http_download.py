"""A download continues where it can, tries again where it helps, and takes what it may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.core import http
from envbuilder.core.http import OtherSizeError, UnavailableError, open_session
from tests.support.faulty_server import FaultyServer

CONTENT = bytes(range(250)) * 400  # 100,000 bytes: more than is read at once


class Source:
    """A server with one answer to every request, and what a download from it did."""

    def __init__(self, server: FaultyServer, part: Path) -> None:
        self.server = server
        self.part = part
        self.pauses: list[float] = []
        self.progress: list[int] = []

    def fetch(self, size: int | None = len(CONTENT), limit: int = 1 << 20) -> bytes:
        with open_session(direct=True) as session:
            url = self.server.url
            note = self.progress.append
            pause = self.pauses.append
            http.download(session, url, self.part, note, size=size, limit=limit, pause=pause)
        return self.part.read_bytes()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    with FaultyServer(CONTENT) as server:
        yield Source(server, tmp_path / "part")


# --- again, or not


@pytest.mark.parametrize(
    ("status", "after", "pauses"),
    [
        *((final, "", []) for final in (400, 404, 499)),
        *((busy, "", [1.0, 2.0, 4.0]) for busy in (408, 425, 429, 500, 503)),
        (503, "3", [3.0, 3.0, 4.0]),
        (503, "30", [30.0, 30.0, 30.0]),
        (503, "31", []),
        (503, "²", [1.0, 2.0, 4.0]),
        (503, "Fri, 31 Dec 1999 23:59:59 GMT", [1.0, 2.0, 4.0]),
    ],
)
def test_a_refusal_is_final_and_what_may_pass_is_tried_again(
    source: Source, status: int, after: str, pauses: list[float]
) -> None:
    """After the time that the server names, if it does."""
    headers = {"Retry_After": after} if after else {}
    source.server.fault = lambda e: e.answer(f"{status} No", Content_Length="0", **headers)
    with pytest.raises(UnavailableError, match=f"^HTTP {status} No$"):
        source.fetch()
    assert source.pauses == pauses


# --- where a partial file ends


def test_a_partial_file_is_continued_and_counted(source: Source) -> None:
    source.part.write_bytes(CONTENT[:30_000])
    assert source.fetch() == CONTENT
    assert source.server.ranges == ["bytes=30000-"]
    assert source.progress[0] == 30_000
    assert sum(source.progress) == len(CONTENT)


def test_a_whole_partial_file_needs_no_request(source: Source) -> None:
    source.part.write_bytes(CONTENT)
    assert source.fetch() == CONTENT
    assert (source.server.ranges, source.progress) == ([], [len(CONTENT)])


def test_a_partial_file_that_is_too_long_is_not_continued(source: Source) -> None:
    source.part.write_bytes(CONTENT + b"!")
    assert source.fetch() == CONTENT
    assert source.server.ranges == [""]


# --- how much


def test_a_body_without_a_length_is_complete_if_it_has_the_locked_size(source: Source) -> None:
    source.server.fault = lambda e: e.answer(body=e.content)
    assert source.fetch() == CONTENT
    assert source.pauses == []


def test_a_body_of_no_locked_size_is_limited_with_what_is_there(source: Source) -> None:
    source.part.write_bytes(CONTENT[:30_000])
    assert source.fetch(size=None, limit=len(CONTENT)) == CONTENT
    source.part.write_bytes(CONTENT[:30_000])
    with pytest.raises(
        OtherSizeError, match="the response has 70000 bytes, more than the limit of 69999"
    ):
        source.fetch(size=None, limit=len(CONTENT) - 1)
    assert not source.part.exists()


@pytest.mark.parametrize("kind", ["text/html", "TEXT/HTML; charset=utf-8"])
def test_a_page_is_the_file_only_if_it_has_its_size(source: Source, kind: str) -> None:
    source.server.fault = lambda e: e.answer(
        body=e.content, Content_Type=kind, Content_Length=str(len(e.content))
    )
    assert source.fetch() == CONTENT
    source.part.unlink()
    with pytest.raises(UnavailableError, match=r"^the server sent a web page instead of the file"):
        source.fetch(size=len(CONTENT) + 1)
    assert not source.part.exists()
    with pytest.raises(UnavailableError, match=r"^the server sent a web page instead of the file"):
        source.fetch(size=None)
