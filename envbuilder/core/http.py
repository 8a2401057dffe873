"""HTTP requests and downloads with the user's proxies and certificates, retries and limits.

All requests for packages and base images, and all requests that check sources, pass through this
module, so a single place decides what a server may do and who receives credentials.
`http_transport` limits the time of each connection. No downloaded file is trusted before its hash
has been checked.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from envbuilder.core import console, pip
from envbuilder.core.errors import LimitError, TooLongError, public
from envbuilder.core.files import full_or_broken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import requests

    from envbuilder.core import http_transport

    Session = http_transport.Session  # other modules take it from here: to import it loads requests

PAGE_BYTES = 64 << 20
"""Maximum size in bytes of an index page, a package list or other text from a server."""
PAGE_SECONDS = 300.0
FILE_BYTES = 16 << 30
"""Maximum number of bytes that a server may send for a file whose size is unknown."""
ATTEMPTS = 4
PATIENCE_SECONDS = 30.0
"""The longest wait, in seconds, that a busy server may ask for.

If a server asks for a longer wait, this counts as a refusal.
"""
BUSY = frozenset({408, 425, 429})
"""HTTP statuses below 500 that ask the client to try again later."""
_LEAST_RATE = 16 << 10
"""Slowest acceptable download rate, in bytes per second.

The time allowed for a download is the time that it takes at this rate, plus a grace period.
"""
_GRACE_SECONDS = 60.0
_PIECE = 1 << 16
_REDIRECTS = 10
_REDIRECTED = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})
_LIMIT = re.compile(r"(?:connect |read )?timeout=([0-9.]+)")
_ENDS = {ConnectionRefusedError: "connection refused", ConnectionResetError: "connection reset"}
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/(?:[0-9]{1,15}|\*)")


def open_session(*, direct: bool = False) -> Session:
    """Return a session that uses the user's proxy and certificates.

    These settings come from the environment or from pip's configuration. The environment takes
    precedence. With `direct`, no proxy is used. Set `direct` for servers on this machine, because a
    proxy would look for them on the machine on which the proxy runs.
    """
    from envbuilder.core.http_transport import Session

    configured = pip.sources()
    proxies = {}
    for scheme in ("HTTP", "HTTPS", "ALL"):
        for name in (f"{scheme}_PROXY", f"{scheme.lower()}_proxy"):
            if proxy := os.environ.get(name):
                proxies[name] = proxy if "://" in proxy else f"http://{proxy}"
    pip.require_parsed(proxies)
    session = Session()
    if configured.proxy:
        session.proxies = {"http": configured.proxy, "https": configured.proxy}
    has_bundle = any(map(os.environ.get, ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")))
    bundle = os.environ.get("SSL_CERT_FILE") or configured.cert
    if bundle and not has_bundle:
        session.verify = bundle
    session.hooks["response"].append(_detail)
    if direct:
        session.trust_env = False
        session.proxies = {}
    return session


def _detail(response: requests.Response, **_: object) -> None:
    console.detail(f"{response.request.method} {public(response.url)}: HTTP {response.status_code}")


def origin(url: str) -> tuple[str, str, int | None] | None:
    """Return the scheme, host and port of a URL, or None if the URL cannot be parsed."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None


def host_of(url: str) -> str:
    """Return the host of a URL, without a user name or token, for use in messages.

    If the URL cannot be parsed, return "an invalid URL".
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return parts.hostname or parts.path


def redirected(url: str, location: str) -> str:
    """Return the target of a redirect from `url`.

    If the target is on the same server, the returned URL keeps the credentials in `url`. Raise
    `requests.exceptions.InvalidURL` if the target is not http or https, or if the redirect leads
    from https to http.
    """
    from requests.exceptions import InvalidURL

    target = urljoin(url, location) if origin(location) else ""
    after = origin(target)
    if not target or after is None:
        raise InvalidURL("the server redirects to an invalid address")
    scheme, host, _ = after
    if scheme not in _PORTS or not host:
        raise InvalidURL("the server redirects to an address that is not http or https")
    before = urlsplit(url)
    if before.scheme == "https" != scheme:
        raise InvalidURL(f"the server redirects from https to http ({host})")
    login, at, _ = before.netloc.rpartition("@")
    parts = urlsplit(target)
    if origin(url) == after and at and "@" not in parts.netloc:
        return parts._replace(netloc=f"{login}@{parts.netloc}").geturl()
    return target


def request(
    session: requests.Session,
    method: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    timeout: tuple[float, float] | None = None,
    *,
    data: bytes | None = None,
    auth: Callable[[requests.PreparedRequest], requests.PreparedRequest] | None = None,
    redirect: Callable[[str, str], str] | None = redirected,
) -> requests.Response:
    """Send a request and return the response. Follow redirects of GET and HEAD requests.

    The body of the response has not been read, and the caller must close the response. The request
    asks the server not to compress the body. `auth` adds credentials to each request, including
    those that follow a redirect. Without `auth`, only the server of `url` receives the credentials
    in `url`. `redirect` takes the current URL and a `Location` header and returns the next URL. If
    `redirect` is None, redirects are not followed. If there is no response, or if a redirect is
    invalid, raise one of the exceptions of the requests library.
    """
    import requests

    complete = {"Accept-Encoding": "identity", **(headers or {})}
    for _ in range(_REDIRECTS + 1):
        response = session.request(
            method,
            url,
            headers=complete,
            data=data,
            auth=auth,
            stream=True,
            timeout=timeout,
            allow_redirects=False,
        )
        location = response.headers.get("Location", "")
        moved = response.status_code in _REDIRECTED and method in {"GET", "HEAD"}
        if not moved or not location or redirect is None:
            return response
        response.close()
        url = redirect(url, location)
    raise requests.TooManyRedirects("too many redirects")


def without_netrc(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return the request unchanged.

    If this function is passed as `auth`, the requests library does not use ~/.netrc.
    """
    return prepared


class Attempts:
    """The attempts to make a request that may fail temporarily.

    Iterating yields the number of each attempt. Before each attempt except the first, there is a
    pause of 1, 2, then 4 seconds, or longer if the server asked for a longer one.
    """

    def __init__(self, pause: Callable[[float], None], count: int | None = None) -> None:
        self._pause = pause
        self._count = count or ATTEMPTS
        self._requested = 0.0

    def __iter__(self) -> Iterator[int]:
        for number in range(self._count):
            if number:
                self._pause(max(self._requested, 2.0 ** (number - 1)))
            self._requested = 0.0
            yield number

    def may_repeat(self, response: requests.Response | None) -> bool:
        """Return whether another attempt may succeed.

        `response` is None if no response arrived.
        """
        if response is None:
            return True
        text = response.headers.get("Retry-After", "")
        self._requested = float(text[:9]) if text.isascii() and text.isdecimal() else 0.0
        status = response.status_code
        return (status >= 500 or status in BUSY) and self._requested <= PATIENCE_SECONDS


def read(response: requests.Response, limit: int = PAGE_BYTES) -> bytes:
    """Read the whole body and close the response. Raise the same errors as `pieces`."""
    with response:
        return b"".join(pieces(response, limit, PAGE_SECONDS))


def pieces(response: requests.Response, limit: int, seconds: float) -> Iterator[bytes]:
    """Yield the response's body in pieces, decompressed.

    Raise `TooLongError` if the body is longer than `limit` bytes, and `requests.ConnectionError` if
    the body is incomplete or takes longer than `seconds` to arrive.
    """
    import requests
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    from envbuilder.core.http_transport import deadline

    announced = length(response)
    if announced is not None and announced > limit:
        raise TooLongError(f"the response has {announced} bytes, more than the limit of {limit}")
    unpacker = _unpacker(response.headers.get("Content-Encoding", "").strip().lower())
    sock = getattr(getattr(response.raw, "_original_response", None), "sock", None)
    received = total = 0
    try:
        with deadline(sock, seconds, "the response"):
            for data in response.raw.stream(_PIECE, decode_content=False):
                received += len(data)
                for piece in _unpacked(unpacker, data):
                    total += len(piece)
                    if total > limit:
                        raise TooLongError(f"the response is larger than {limit} bytes")
                    yield piece
    except (LimitError, ReadTimeoutError) as error:
        raise requests.ConnectionError(error) from None
    except HTTPError:
        raise requests.ConnectionError(_broken_off(received, announced)) from None
    except zlib.error:
        raise requests.ConnectionError("the response contains damaged compressed data") from None
    cut = unpacker is not None and received and not unpacker.eof
    if cut or (announced is not None and received != announced):
        raise requests.ConnectionError(_broken_off(received, announced))


def length(response: requests.Response) -> int | None:
    """Return the length of the body in bytes according to the headers.

    Return None if the headers do not clearly specify a length.
    """
    text = response.headers.get("Content-Length", "").strip()
    plain = text.isascii() and text.isdecimal() and len(text) <= 15
    if plain and "Transfer-Encoding" not in response.headers:
        return int(text)
    return None


def _broken_off(received: int, announced: int | None) -> str:
    return (
        "the connection broke off after"
        f" {received}{f' of {announced}' if announced is not None else ''} bytes"
    )


def _unpacker(encoding: str) -> zlib._Decompress | None:
    """Return a decompressor for a body with this encoding, or None if no decompression is needed.

    Some servers compress bodies even though the request asked them not to. Raise
    `requests.ConnectionError` for any encoding other than gzip and deflate.
    """
    import requests

    if encoding in {"", "identity"}:
        return None
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise requests.ConnectionError("the response uses a compression that was not requested")
    return zlib.decompressobj(zlib.MAX_WBITS | 32)


def _unpacked(unpacker: zlib._Decompress | None, data: bytes) -> Iterator[bytes]:
    """Yield the decompressed data in pieces of limited size."""
    if unpacker is None:
        yield data
        return
    while data and not unpacker.eof:
        yield unpacker.decompress(data, _PIECE)
        data = unpacker.unconsumed_tail


def reason(error: Exception) -> str:
    """Return why a request failed, in a few words.

    Examples are "name not found", "connection refused", "timed out after 10 s" and "HTTP 404 Not
    Found". The URL is omitted, since it may contain a token.
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
        advice = " (if a proxy has its own CA, set REQUESTS_CA_BUNDLE to its file)"
        return f"TLS error: {_tls(text)}{advice if 'verify failed' in text else ''}"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "broke off"
    if isinstance(error, requests.ConnectionError | requests.Timeout):
        return _why(causes)
    return str(error) or type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it, outermost first.

    urllib3 stores the cause of an error in the attribute `reason` or among the error's arguments.
    """
    inner: BaseException | None = error
    for _ in range(8):
        if inner is None:
            return
        yield inner
        reasons = (getattr(inner, "reason", None), *inner.args)
        wrapped = (e for e in reasons if isinstance(e, BaseException))
        context = None if inner.__suppress_context__ else inner.__context__
        inner = next(wrapped, None) or inner.__cause__ or context


def _why(causes: Sequence[BaseException]) -> str:
    """Return why a connection failed or was lost.

    `causes` contains an error and the errors that caused it, outermost first.
    """
    from http.client import HTTPException

    first = str(causes[0])
    last = str(causes[-1])
    if isinstance(causes[-1], LimitError):
        return last
    if text := next(filter(None, map(_of_system, causes)), ""):
        return text
    if isinstance(causes[-1], HTTPException):  # its text is what the server sent
        return "not a valid HTTP response"
    # requests reports a timeout within the body as a ConnectionError.
    if "timed out" in first:
        limit = _LIMIT.search(first)
        return f"timed out after {float(limit[1]):g} s" if limit else "timed out"
    if last and "://" not in last and len(last) <= 100:
        return last
    return "no connection"


def _of_system(cause: BaseException) -> str:
    """Describe an error of the operating system in words. Return "" for any other error."""
    import socket

    if isinstance(cause, socket.gaierror):
        if cause.errno == socket.EAI_AGAIN:
            return "the name server does not answer"
        return "name not found"
    if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
        return "network unreachable"
    return next((words for kind, words in _ENDS.items() if isinstance(cause, kind)), "")


def _tls(text: str) -> str:
    """Return the reason in an OpenSSL error message, without error codes and source lines."""
    plain = re.sub(r"\[[A-Z0-9_: ]*\]\s*|\s*\(_ssl\.c:\d+\)", "", text).strip(" .")
    return plain[:150] or "no secure connection"


class UnavailableError(Exception):
    """Error raised if a source does not have the requested file or cannot be reached."""


class OtherSizeError(UnavailableError):
    """Error raised if a source's file is longer than expected.

    The message contains the limit and, if known, the size of the file.
    """


def download(
    session: Session,
    url: str,
    part: Path,
    on_bytes: Callable[[int], None],
    *,
    size: int | None = None,
    limit: int = FILE_BYTES,
    pause: Callable[[float], None] | None = None,
    attempts: int | None = None,
    ask: Callable[[dict[str, str]], requests.Response] | None = None,
) -> int:
    """Download `url` to `part`, resuming a partial file. Return the number of bytes transferred.

    `size` is the exact size of the file. If it is None, at most `limit` bytes are read. `on_bytes`
    is called with the number of bytes added since the last call. The first number includes the size
    of an earlier partial file. `ask` replaces the plain request: it takes request headers and
    returns the response.

    If the server cannot resume the download, the download starts again from the beginning. Raise
    `UnavailableError` if the source refuses the request or remains unreachable, `OtherSizeError` if
    the source's file is longer than expected, and `BuildError` if `part` cannot be written, for
    example because the disk is full.
    """
    import requests

    ask = ask or partial(request, session, "GET", url)
    tries = Attempts(partial(_pause, pause or session.pause), attempts)
    problem = ""
    shown = transferred = 0
    for _ in tries:
        try:
            for number, have in enumerate(_growing(ask, part, size, limit)):
                transferred += have - shown if number else 0
                if have != shown:
                    on_bytes(have - shown)
                shown = have
        except requests.RequestException as error:
            problem = reason(error)
            console.detail(f"{public(url)}: {problem}")
            # A ValueError is an invalid URL, or a page instead of the file.
            final = isinstance(error, requests.TooManyRedirects | ValueError)
            if final or not tries.may_repeat(error.response):
                break
        except TooLongError as error:
            on_bytes(-shown)
            part.unlink(missing_ok=True)
            raise OtherSizeError(str(error)) from None
        except OSError as error:
            raise full_or_broken(error, part) from error
        else:
            return transferred
    raise UnavailableError(problem)


def _pause(pause: Callable[[float], None], seconds: float) -> None:
    try:
        pause(seconds)
    except LimitError as error:
        raise UnavailableError(str(error)) from None


def _growing(
    ask: Callable[[dict[str, str]], requests.Response], part: Path, size: int | None, limit: int
) -> Iterator[int]:
    """Download the rest of a partial file in one request, yielding the file's size as it grows.

    The first value is the size at the start.
    """
    import requests

    have = part.stat().st_size if part.exists() else 0
    if size is not None and have == size:  # complete: its hash decides
        yield have
        return
    if size is not None and have > size:
        part.unlink()
        have = 0
    with ask({"Range": f"bytes={have}-"} if have else {}) as response:
        continued = response.status_code == requests.codes.partial_content
        if have and (_is_elsewhere(response, have) or response.status_code == 416):
            part.unlink()
            raise requests.ConnectionError(
                "the server does not resume the download where it was interrupted"
            )
        response.raise_for_status()
        if continued and not have:
            raise requests.ConnectionError(
                "the server sent part of the file, although all of it was requested"
            )
        have = have if continued else 0
        left = (limit if size is None else size) - have
        announced = length(response)
        kind = response.headers.get("Content-Type", "").lower()
        if kind.startswith("text/html") and announced != size:
            raise requests.exceptions.InvalidHeader(
                "the server sent a web page instead of the file, perhaps the login page of a proxy"
            )
        yield have
        with part.open("ab" if continued else "wb") as out:
            for piece in pieces(response, left, _GRACE_SECONDS + left / _LEAST_RATE):
                out.write(piece)
                have += len(piece)
                yield have
    if size is not None and announced is None and have < size:
        raise requests.ConnectionError(f"the connection broke off after {have} of {size} bytes")


def _is_elsewhere(response: requests.Response, have: int) -> bool:
    """Return whether a partial response (status 206) starts at an offset other than `have`."""
    if response.status_code != 206:
        return False
    matched = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    return matched is None or int(matched[1]) != have
