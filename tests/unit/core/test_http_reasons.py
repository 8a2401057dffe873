"""Why something cannot be reached: the reason, in words, and never the URL."""

from __future__ import annotations

import socket
import threading
from http.client import BadStatusLine
from typing import TYPE_CHECKING

import pytest
import requests
from urllib3 import exceptions as urllib3

from envbuilder.core.http_reasons import printed_reason, reason

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "https://me:token@index.example/simple/a/?key=token"


def retried(inner: Exception) -> urllib3.MaxRetryError:
    return urllib3.MaxRetryError(None, SECRET, inner)  # type: ignore[arg-type]


def unconnected(cause: OSError) -> urllib3.NewConnectionError:
    error = urllib3.NewConnectionError(None, f"Failed: {cause}")  # type: ignore[arg-type]
    error.__cause__ = cause
    return error


def response(status: int, words: str) -> requests.Response:
    made = requests.Response()
    made.status_code, made.reason, made.url = status, words, SECRET
    return made


def tls(text: str) -> requests.exceptions.SSLError:
    return requests.exceptions.SSLError(retried(urllib3.SSLError(Exception(text))))


NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
CERTIFICATE = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: expired (_ssl.c:1006)"
TUNNEL = OSError("Tunnel connection failed: 407 Proxy Authentication Required")
OWN_CA = "; a proxy's own CA goes into REQUESTS_CA_BUNDLE"


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
            requests.ConnectTimeout(f"{SECRET} timed out. (connect timeout=10.0)"),
            "timed out after 10 s",
        ),
        (requests.ReadTimeout("Read timed out. (read timeout=0.5)"), "timed out after 0.5 s"),
        (requests.ConnectionError("Read timed out."), "timed out"),
        (requests.ConnectionError("broke off after 3 of 9 bytes"), "broke off after 3 of 9 bytes"),
        (requests.ConnectionError(f"x {SECRET}"), "no connection"),
        (
            tls(CERTIFICATE),
            f"TLS error: certificate verify failed: expired{OWN_CA}",
        ),
        (tls("[SSL: A] no cipher X. (_ssl.c:1006)"), "TLS error: no cipher X"),
        (tls("[SSL: A] (_ssl.c:1006)"), "TLS error: no secure connection"),
        (tls("a" * 200), f"TLS error: {'a' * 150}"),
        (requests.ConnectionError("a" * 100), "a" * 100),
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


def test_a_server_that_hangs_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            server.accept()[0].close()

        hang_up = threading.Thread(target=refuse)
        hang_up.start()
        with pytest.raises(requests.RequestException) as caught:
            requests.get(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=5)
        hang_up.join()
    assert reason(caught.value) == "connection reset"


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (
            "failed to lookup address information: Name or service not known",
            "h.example does not answer (name not found)",
        ),
        ("Connection refused (os error 111)", "h.example does not answer (connection refused)"),
        (
            "HTTP status client error (403 Forbidden) for url (https://h.example/a)",
            "h.example: HTTP 403 Forbidden",
        ),
        ("something new", "h.example does not answer (something new)"),
        ("a" * 200, f"h.example does not answer ({'a' * 150})"),
    ],
)
def test_a_failure_of_uv_has_its_reason(cause: str, why: str) -> None:
    printed = (
        "error: Request failed after 3 retries in 5.6s\n"
        "  cause: Failed to fetch: https://me:token@h.example/simple/torch/\n"
        f"  cause: client error (Connect)\n  cause: {cause}\n"
    )
    assert printed_reason(printed) == why


def test_what_is_no_failure_of_the_network_has_no_such_reason() -> None:
    assert printed_reason("error: No solution found\n  cause: a needs b") == ""
