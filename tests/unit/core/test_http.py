"""Requests reach where they should, with the login they should have, and bodies are limited."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
import requests
from requests.exceptions import InvalidURL

from envbuilder.core import console, http
from envbuilder.core.http import open_session
from envbuilder.core.http_limits import Limits, TooLongError
from envbuilder.core.http_transport import Session
from envbuilder.core.redaction import public
from tests.support.faulty_server import FAULTS, Exchange, FaultyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "https://me:token@index.example/simple/a/?key=token"


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(b"content") as made:
        yield made


@pytest.fixture
def session() -> Iterator[Session]:
    with open_session(direct=True) as made:
        yield made


def test_a_shown_url_has_no_secret() -> None:
    assert public(SECRET) == "https://index.example/simple/a/"


def test_verbose_shows_requests_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (hook,) = open_session().hooks["response"]
    answer = requests.Response()
    answer.status_code, answer.url = 404, SECRET
    answer.request = requests.Request("GET", SECRET).prepare()
    hook(answer)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console.VERBOSITY, "verbose", True)
    hook(answer)
    assert capsys.readouterr().err == "+ GET https://index.example/simple/a/: HTTP 404\n"


# --- redirects


@pytest.mark.parametrize(
    ("url", "location", "target"),
    [
        ("https://me:x@h/a", "/b", "https://me:x@h/b"),
        ("https://me:x@h/a", "b", "https://me:x@h/b"),
        ("https://me:x@h/a", "https://h/b", "https://me:x@h/b"),
        ("https://me:x@h/a", "https://you:y@h/b", "https://you:y@h/b"),
        ("https://me:x@h/a", "https://other/b", "https://other/b"),
        ("https://me:x@h/a", "//other/b", "https://other/b"),
        ("https://me:x@h/a", "https://h:8443/b", "https://h:8443/b"),
        ("https://me:x@h/a", "https://h.evil/b", "https://h.evil/b"),
        ("http://me:x@h/a", "https://h/b", "https://h/b"),
        ("https://h/a%2Bcpu.whl", "/b%2Bcpu.whl", "https://h/b%2Bcpu.whl"),
    ],
)
def test_only_the_same_server_keeps_the_login(url: str, location: str, target: str) -> None:
    assert http.redirected(url, location) == target


@pytest.mark.parametrize(
    "location",
    ["http://h/b", "file:///etc/passwd", "ftp://h/b", "data:,x", "http://[::1/d"],
)
def test_a_redirect_stays_with_https(location: str) -> None:
    with pytest.raises(InvalidURL, match="redirected") as caught:
        http.redirected("https://me:token@h/a", location)
    assert "token" not in str(caught.value)


def test_another_host_does_not_get_our_login(
    server: FaultyServer, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultyServer(b"other") as other:

        def redirect(exchange: Exchange) -> None:
            exchange.answer("302 Found", Location=f"{other.url}/b")

        monkeypatch.setitem(FAULTS, "redirect", redirect)
        server.fault = "redirect"
        url = server.url.replace("//", "//me:secret@")
        with http.request(session, "GET", f"{url}/a", {"X-Ours": "1"}) as response:
            assert http.read(response) == b"other"
        assert b"Authorization: Basic" in server.requests[0]
        assert b"Authorization" not in other.requests[0]


# --- bodies


def body(server: FaultyServer, session: Session, limit: int, **headers: str) -> bytes:
    def send(exchange: Exchange) -> None:
        exchange.answer(body=exchange.content, **headers)

    FAULTS["body"] = send
    server.fault = "body"
    try:
        with http.request(session, "GET", server.url) as response:
            return http.read(response, limit)
    finally:
        del FAULTS["body"]


def test_a_body_of_the_longest_length(server: FaultyServer, session: Session) -> None:
    assert body(server, session, 7) == b"content"
    assert body(server, session, 7, Content_Length="7") == b"content"
    for headers in ({}, {"Content-Length": "7"}):
        with pytest.raises(TooLongError, match="more than 6"):
            body(server, session, 6, **headers)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "GZIP"])
def test_a_body_that_is_compressed_all_the_same(
    encoding: str, server: FaultyServer, session: Session
) -> None:
    import zlib

    text = b"page " * 100_000
    server.content = zlib.compress(text) if encoding == "deflate" else gzip.compress(text)
    assert body(server, session, len(text), Content_Encoding=encoding) == text
    with pytest.raises(TooLongError):
        body(server, session, len(text) - 1, Content_Encoding=encoding)
    server.content = server.content[:-9]
    with pytest.raises(requests.ConnectionError, match="broke off"):
        body(server, session, len(text), Content_Encoding=encoding)


def test_compression_is_not_requested(server: FaultyServer, session: Session) -> None:
    http.request(session, "GET", server.url).close()
    assert b"Accept-Encoding: identity" in server.requests[0]


def test_a_body_may_not_take_longer_than_its_size_warrants(server: FaultyServer) -> None:
    server.fault = "drips in the body"
    server.content = bytes(1000)
    with (
        Session(Limits(least_bytes=0)) as patient,
        http.request(patient, "GET", server.url) as response,
        pytest.raises(requests.ConnectionError, match=r"not complete after 0\.2 s"),
    ):
        list(http.pieces(response, 1000, 0.2))


def test_larger_files_may_take_longer() -> None:
    assert http.file_seconds(1000) < 61
    assert 24 * 3600 < http.file_seconds(3 << 30) < 72 * 3600
