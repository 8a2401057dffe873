"""Why a request failed, in a few words and without its URL, which may hold a token."""

from __future__ import annotations

import errno
import re
import socket
from http.client import HTTPException
from typing import TYPE_CHECKING

from envbuilder.core.http import host_of
from envbuilder.core.http_limits import LimitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})
_LIMIT = re.compile(r"(?:connect |read )?timeout=([0-9.]+)")
_ENDS = {ConnectionRefusedError: "connection refused", ConnectionResetError: "connection reset"}
_FETCHED = re.compile(r"Failed to fetch: `?([^\s`]+)")
_CAUSE = re.compile(r"^\s*(?:cause|Caused by): (.*)$", re.MULTILINE)
_STATUS = re.compile(r"HTTP status \w+ error \(([^)]+)\)")
_PRINTED = {
    "failed to lookup address": "name not found",
    "connection refused": "connection refused",
    "connection reset": "connection reset",
    "unreachable": "network unreachable",
    "timed out": "timed out",
    "certificate": "TLS error: its certificate is not trusted; a proxy's own CA goes into"
    " SSL_CERT_FILE",
}
"""What uv prints as its last cause, in lower case → the reason as `reason` states it."""


def reason(error: Exception) -> str:
    """Return why a request failed, in a few words and without its URL, which may hold a token.

    For example: name not found, connection refused, timed out after 10 s, HTTP 404 Not Found.
    """
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}".strip()
    causes = [*_causes(error)]
    text = str(causes[-1])
    if isinstance(error, requests.exceptions.ProxyError):
        _, refused, answer = text.rpartition("Tunnel connection failed: ")
        return (
            f"the proxy {'refuses' if refused else 'fails'}: {answer if refused else _why(causes)}"
        )
    if isinstance(error, requests.exceptions.SSLError):
        advice = "; a proxy's own CA goes into REQUESTS_CA_BUNDLE"
        return f"TLS error: {_tls(text)}{advice if 'verify failed' in text else ''}"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "broke off"
    if isinstance(error, requests.ConnectionError | requests.Timeout):
        return _why(causes)
    return str(error) or type(error).__name__


def printed_reason(text: str) -> str:
    """Return the host and the reason that uv's error messages state; empty if neither is there."""
    fetched = _FETCHED.search(text)
    causes = _CAUSE.findall(text)
    if not fetched or not causes:
        return ""
    host, last = host_of(fetched[1]), causes[-1]
    if status := _STATUS.search(last):
        return f"{host}: HTTP {status[1]}"
    why = next((why for printed, why in _PRINTED.items() if printed in last.lower()), last[:150])
    return f"{host} does not answer ({why})"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it wraps: urllib3 keeps causes in `reason` or among the arguments."""
    inner: BaseException | None = error
    for _ in range(8):
        if inner is None:
            return
        yield inner
        stated = (getattr(inner, "reason", None), *inner.args)
        wrapped = (e for e in stated if isinstance(e, BaseException))
        context = None if inner.__suppress_context__ else inner.__context__
        inner = next(wrapped, None) or inner.__cause__ or context


def _why(causes: Sequence[BaseException]) -> str:
    """Return why there is no connection, or why it ended."""
    first, last = str(causes[0]), str(causes[-1])
    if isinstance(causes[-1], LimitError):
        return last
    if stated := next(filter(None, map(_of_system, causes)), ""):
        return stated
    if isinstance(causes[-1], HTTPException):  # its text is what the server sent
        return "not a valid HTTP response"
    # requests reports a timeout within the body as a ConnectionError.
    if "timed out" in first:
        limit = _LIMIT.search(first)
        return f"timed out after {float(limit[1]):g} s" if limit else "timed out"
    return last if last and "://" not in last and len(last) <= 100 else "no connection"


def _of_system(cause: BaseException) -> str:
    """Return the reason that an operating system's error states; empty for other errors."""
    if isinstance(cause, socket.gaierror):
        unsure = cause.errno == socket.EAI_AGAIN
        return "the name server does not answer" if unsure else "name not found"
    if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
        return "network unreachable"
    return next((words for kind, words in _ENDS.items() if isinstance(cause, kind)), "")


def _tls(text: str) -> str:
    """Return OpenSSL's reason without its codes and source lines."""
    plain = re.sub(r"\[[A-Z0-9_: ]*\]\s*|\s*\(_ssl\.c:\d+\)", "", text).strip(" .")
    return plain[:150] or "no secure connection"
