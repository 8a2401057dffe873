"""Requests reach where they should, with the login they should have, and bodies are limited."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable, Iterator
from http.client import BadStatusLine
from pathlib import Path

import pytest
import requests
from requests.exceptions import InvalidURL
from urllib3 import exceptions as urllib3

from envbuilder.core import console, files, http, pip
from envbuilder.core.errors import InvalidError, TooLongError
from envbuilder.core.http import open_session, reason
from envbuilder.core.http_transport import Session
from envbuilder.core.pip import Sources
from tests.support.faulty_server import Exchange, FaultyServer

SECRET = "https://me:token@index.example/simple/a/?key=token"


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(b"content") as made:
        yield made


@pytest.fixture
def session() -> Iterator[Session]:
    with open_session(direct=True) as made:
        yield made


def test_verbose_shows_requests_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (hook,) = open_session().hooks["response"]
    answer = requests.Response()
    answer.status_code = 404
    answer.url = SECRET
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
        ("https://me:x@h/a", "https://h/b", "https://me:x@h/b"),
        ("https://me:x@h/a", "https://you:y@h/b", "https://you:y@h/b"),
        ("https://me:x@h/a", "https://other/b", "https://other/b"),
        ("https://me:x@h/a", "https://h:8443/b", "https://h:8443/b"),
        ("https://me:x@h/a", "https://h.evil/b", "https://h.evil/b"),
        ("http://me:x@h/a", "https://h/b", "https://h/b"),
        ("https://me:p@x@h/a", "https://h/b", "https://me:p@x@h/b"),
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
    with pytest.raises(InvalidURL, match="redirects") as caught:
        http.redirected("https://me:token@h/a", location)
    assert "token" not in str(caught.value)


def test_a_redirect_names_a_host() -> None:
    with pytest.raises(
        InvalidURL, match="the server redirects to an address that is not http or https"
    ):
        http.redirected("http://h/a", "https:///b")


@pytest.fixture
def answers(server: FaultyServer) -> list[tuple[str, str]]:
    """The next answers of the server: status and location; then 200 without one."""
    left: list[tuple[str, str]] = []

    def answer(exchange: Exchange) -> None:
        status, location = left.pop(0) if left else ("200 OK", "")
        headers = {"Location": location} if location else {}
        exchange.answer(status, Content_Length="0", **headers)

    server.fault = answer
    return left


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_ten_redirects_are_followed_and_no_more(
    server: FaultyServer, session: Session, answers: list[tuple[str, str]], status: int
) -> None:
    answers[:] = [(f"{status} Moved", "/next")] * 10
    with http.request(session, "GET", server.url) as response:
        assert response.status_code == 200
    answers[:] = [(f"{status} Moved", "/next")] * 11
    with pytest.raises(requests.TooManyRedirects):
        http.request(session, "GET", server.url)
    assert len(server.requests) == 22


@pytest.mark.parametrize(
    "answer", [("302 Found", ""), ("304 Not Modified", "/next"), ("201 Created", "/next")]
)
def test_what_is_no_redirect_is_the_answer(
    server: FaultyServer, session: Session, answers: list[tuple[str, str]], answer: tuple[str, str]
) -> None:
    answers[:] = [answer]
    with http.request(session, "GET", server.url) as response:
        assert response.status_code == int(answer[0][:3])
    assert len(server.requests) == 1


def test_another_host_does_not_get_our_login(server: FaultyServer, session: Session) -> None:
    with FaultyServer(b"other") as other:
        server.fault = lambda e: e.answer("302 Found", Location=f"{other.url}/b")
        url = server.url.replace("//", "//me:secret@")
        with http.request(session, "GET", f"{url}/a", {"X-Ours": "1"}) as response:
            assert http.read(response) == b"other"
        assert b"Authorization: Basic" in server.requests[0]
        assert b"Authorization" not in other.requests[0]


# --- bodies


def body(server: FaultyServer, session: Session, limit: int, **headers: str) -> bytes:
    server.fault = lambda e: e.answer(body=e.content, **headers)
    with http.request(session, "GET", server.url) as response:
        return http.read(response, limit)


def test_a_body_of_the_longest_length(server: FaultyServer, session: Session) -> None:
    assert body(server, session, 7) == b"content"
    assert body(server, session, 7, Content_Length="7") == b"content"
    for headers in ({}, {"Content-Length": "7"}):
        with pytest.raises(TooLongError, match=r" 6( bytes)?$"):
            body(server, session, 6, **headers)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
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


def test_a_truncated_body_is_not_complete(server: FaultyServer, session: Session) -> None:
    with pytest.raises(
        requests.ConnectionError, match=r"^the connection broke off after 7 of 9 bytes$"
    ):
        body(server, session, 100, Content_Length="9")
    server.content = b"2\r\nab\r\n5\r\n"
    with pytest.raises(requests.ConnectionError, match=r"^the connection broke off after 2 bytes$"):
        body(server, session, 100, Transfer_Encoding="chunked")


def test_a_body_in_many_small_chunks(server: FaultyServer, session: Session) -> None:
    """Their sizes are sent, too: more than the body."""
    server.content = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    assert body(server, session, 20_000, Transfer_Encoding="chunked") == b"x" * 20_000


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ({}, None),
        ({"Content-Length": " 7 "}, 7),
        ({"Content-Length": "-7"}, None),
        ({"Content-Length": "7, 7"}, None),
        ({"Content-Length": "²"}, None),
        ({"Content-Length": "9" * 15}, 10**15 - 1),
        ({"Content-Length": "9" * 16}, None),
        ({"Content-Length": "7", "Transfer-Encoding": "chunked"}, None),
    ],
)
def test_a_length_is_what_is_plainly_announced(headers: dict[str, str], length: int | None) -> None:
    response = requests.Response()
    response.headers.update(headers)
    assert http.length(response) == length


def test_a_body_may_not_take_longer_than_its_size_warrants(server: FaultyServer) -> None:
    server.fault = "drips in the body"
    server.content = bytes(1000)
    with (
        Session() as session,
        http.request(session, "GET", server.url) as response,
        pytest.raises(requests.ConnectionError, match=r"not complete after 0\.2 s"),
    ):
        list(http.pieces(response, 1000, 0.2))


# --- sessions and errors


VARIABLES = [
    f(f"{name}_PROXY") for name in ("HTTP", "HTTPS", "ALL") for f in (str.upper, str.lower)
]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sources], None]:
    """Nothing is configured but what a test sets."""
    for name in (*VARIABLES, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)

    def set_sources(sources: Sources) -> None:
        monkeypatch.setattr(pip, "sources", lambda: sources)

    set_sources(Sources())
    return set_sources


def test_pips_proxy_and_certificates_are_used(configure: Callable[[Sources], None]) -> None:
    assert (open_session().proxies, open_session().verify) == ({}, True)
    configure(Sources(proxy="http://p:1", cert="/pip.pem"))
    session = open_session()
    assert session.proxies == {"http": "http://p:1", "https": "http://p:1"}
    assert session.verify == "/pip.pem"
    assert session.trust_env, "the variables of the environment come first"
    direct = open_session(direct=True)
    assert (direct.proxies, direct.trust_env) == ({}, False)


@pytest.mark.parametrize(
    ("variable", "verify"),
    [
        ("SSL_CERT_FILE", "/other.pem"),
        ("REQUESTS_CA_BUNDLE", True),  # requests reads these two on its own
        ("CURL_CA_BUNDLE", True),
    ],
)
def test_certificates_of_the_environment_come_before_pips(
    configure: Callable[[Sources], None],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    verify: object,
) -> None:
    configure(Sources(cert="/pip.pem"))
    monkeypatch.setenv(variable, "/other.pem")
    assert open_session().verify == verify


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_proxy_that_cannot_be_parsed_is_named_without_its_url(
    configure: Callable[[Sources], None], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for url in ("http://me:token@[::1", "me:token@[::1"):
        monkeypatch.setenv(variable, url)
        with pytest.raises(InvalidError, match=f"the URL in {variable} cannot be parsed") as caught:
            open_session()
        assert "token" not in str(caught.value)
    monkeypatch.setenv(variable, "proxy.example:8080")
    open_session().close()


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (OSError(28, "No space left on device"), "no space left on the disk of /a", ""),
        (
            PermissionError(13, "Permission denied"),
            "/a/b: Permission denied",
            "Check that the folder exists and is writable.",
        ),
        (OSError("odd"), "/a/b: odd", "Check that the folder exists and is writable."),
    ],
)
def test_a_failed_write_has_its_reason(error: OSError, message: str, hint: str) -> None:
    made = files.full_or_broken(error, Path("/a/b"))
    assert made.message == message
    assert made.hint == hint or "ENVBUILDER_CACHE_DIR" in made.hint


HIDDEN = "https://me:token@index.example/simple/a/?key=token"


def retried(inner: Exception) -> urllib3.MaxRetryError:
    return urllib3.MaxRetryError(None, HIDDEN, inner)  # type: ignore[arg-type]


def unconnected(cause: OSError) -> urllib3.NewConnectionError:
    error = urllib3.NewConnectionError(None, f"Failed: {cause}")  # type: ignore[arg-type]
    error.__cause__ = cause
    return error


def response(status: int, words: str) -> requests.Response:
    made = requests.Response()
    made.status_code = status
    made.reason = words
    made.url = HIDDEN
    return made


def tls(text: str) -> requests.exceptions.SSLError:
    return requests.exceptions.SSLError(retried(urllib3.SSLError(Exception(text))))


NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
CERTIFICATE = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: expired (_ssl.c:1006)"
TUNNEL = OSError("Tunnel connection failed: 407 Proxy Authentication Required")
OWN_CA = " (if a proxy has its own CA, set REQUESTS_CA_BUNDLE to its file)"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (requests.ConnectionError(retried(unconnected(NO_NAME))), "name not found"),
        (
            requests.ConnectionError(retried(unconnected(socket.gaierror(socket.EAI_AGAIN, "x")))),
            "the name server does not answer",
        ),
        (
            requests.ConnectionError(retried(unconnected(ConnectionRefusedError(111, "x")))),
            "connection refused",
        ),
        (
            requests.ConnectionError(urllib3.ProtocolError("x", ConnectionResetError(104, "x"))),
            "connection reset",
        ),
        (
            requests.ConnectionError(retried(unconnected(OSError(113, "No route to host")))),
            "network unreachable",
        ),
        (
            requests.ConnectTimeout(f"{HIDDEN} timed out. (connect timeout=10.0)"),
            "timed out after 10 s",
        ),
        (requests.ReadTimeout("Read timed out. (read timeout=0.5)"), "timed out after 0.5 s"),
        (requests.ConnectionError("Read timed out."), "timed out"),
        (
            requests.ConnectionError("the connection broke off after 3 of 9 bytes"),
            "the connection broke off after 3 of 9 bytes",
        ),
        (requests.ConnectionError(f"x {HIDDEN}"), "no connection"),
        (
            tls(CERTIFICATE),
            f"TLS error: certificate verify failed: expired{OWN_CA}",
        ),
        (tls("[SSL: A] (_ssl.c:1006)"), "TLS error: no secure connection"),
        (tls("a" * 200), f"TLS error: {'a' * 150}"),
        (requests.ConnectionError("a" * 101), "no connection"),
        (
            requests.ConnectionError(urllib3.ProtocolError("x", BadStatusLine("\x1b[2Jhello"))),
            "not a valid HTTP response",
        ),
        (
            requests.exceptions.ProxyError(retried(urllib3.ProxyError("x", TUNNEL))),
            "the proxy refuses: 407 Proxy Authentication Required",
        ),
        (
            requests.exceptions.ProxyError(retried(urllib3.ProxyError("x", unconnected(NO_NAME)))),
            "the proxy fails: name not found",
        ),
        (requests.HTTPError("x", response=response(404, "Not Found")), "HTTP 404 Not Found"),
        (requests.exceptions.ChunkedEncodingError("x"), "broke off"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_failure_has_its_reason(error: Exception, why: str) -> None:
    assert reason(error) == why


def test_an_error_that_was_being_handled_is_a_cause_unless_it_is_suppressed() -> None:
    refused = ConnectionRefusedError(111, "x")
    error = requests.ConnectionError("broke off")
    error.__context__ = refused
    assert reason(error) == "connection refused"
    error.__suppress_context__ = True
    assert reason(error) == "broke off"


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_a_server_that_says_nothing_is_given_up_after_a_stated_time(silent: str) -> None:
    with pytest.raises(requests.RequestException) as caught:
        requests.get(silent, timeout=(5, 0.2))
    assert reason(caught.value) == "timed out after 0.2 s"
