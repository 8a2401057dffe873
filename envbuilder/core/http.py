"""HTTP requests with the user's proxies and certificates, redirected and read within limits."""

from __future__ import annotations

import errno
import os
import zlib
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from envbuilder.core import console, pip
from envbuilder.core.errors import BuildError
from envbuilder.core.http_limits import LimitError, TooLongError
from envbuilder.core.text import public

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import requests

    from envbuilder.core.http_transport import Session

PAGE_BYTES = 64 << 20
"""The longest index page, package list or other text."""
PAGE_SECONDS = 300.0
FILE_BYTES = 16 << 30
"""The longest file of an unknown size."""
_LEAST_RATE = 16 << 10
_PIECE = 1 << 16
_REDIRECTS = 10
_REDIRECTED = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}


def file_seconds(size: int) -> float:
    """Return how long a file of `size` bytes may take: a minute, and 16 KiB/s."""
    return 60.0 + size / _LEAST_RATE


def request(
    session: requests.Session,
    method: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    timeout: tuple[float, float] | None = None,
) -> requests.Response:
    """Return the response to a GET or HEAD at the end of redirects; the caller closes it.

    Its body is unread, and requested without compression. Other hosts never receive the login of
    `url`. Raise an error of requests if there is no response, or a redirect leads nowhere.
    """
    import requests

    complete = {"Accept-Encoding": "identity", **(headers or {})}
    for _ in range(_REDIRECTS + 1):
        response = session.request(
            method, url, headers=complete, stream=True, timeout=timeout, allow_redirects=False
        )
        location = response.headers.get("Location", "")
        if response.status_code not in _REDIRECTED or not location:
            return response
        response.close()
        url = redirected(url, location)
    raise requests.TooManyRedirects("too many redirects")


def redirected(url: str, location: str) -> str:
    """Return the URL that a redirect of `url` leads to, with the same login on the same server.

    Raise `requests.exceptions.InvalidURL` if it is not http or https, or leaves https.
    """
    from requests.exceptions import InvalidURL

    try:
        target = urljoin(url, location)
        before, after = urlsplit(url), urlsplit(target)
        host = after.hostname or ""
        same = (before.scheme, before.hostname, before.port) == (after.scheme, host, after.port)
    except ValueError:
        raise InvalidURL("redirected to an invalid address") from None
    if after.scheme not in _PORTS or not host:
        raise InvalidURL("redirected to an address that is not http or https")
    if before.scheme == "https" != after.scheme:
        raise InvalidURL(f"redirected from https to http ({host})")
    login, at, _ = before.netloc.rpartition("@")
    if same and at and "@" not in after.netloc:
        return after._replace(netloc=f"{login}@{after.netloc}").geturl()
    return target


def read(response: requests.Response, limit: int = PAGE_BYTES) -> bytes:
    """Return a whole body, and close the response; raise as `pieces` does."""
    with response:
        return b"".join(pieces(response, limit, PAGE_SECONDS))


def pieces(response: requests.Response, limit: int, seconds: float) -> Iterator[bytes]:
    """Yield a body, of which at most `limit` bytes are read and unpacked, in at most `seconds`.

    Raise `TooLongError` if it is longer, `requests.ConnectionError` if it is not complete.
    """
    import requests
    from urllib3.exceptions import HTTPError

    announced = length(response)
    if announced is not None and announced > limit:
        raise TooLongError(f"announces {announced} bytes, more than {limit}")
    unpacker = _unpacker(response.headers.get("Content-Encoding", "").strip().lower())
    meter = getattr(getattr(response.raw, "_original_response", None), "meter", None)
    if meter is not None:
        # More than the body: the sizes of its chunks are sent, too.
        meter.allow(limit + limit // 4 + (1 << 20), seconds)
    received = total = 0
    try:
        for data in response.raw.stream(_PIECE, decode_content=False):
            received += len(data)
            for piece in _unpacked(unpacker, data):
                total += len(piece)
                if total > limit:
                    raise TooLongError(f"sends more than {limit} bytes")
                yield piece
    except HTTPError as error:
        limits = (e for e in (error, *error.args) if isinstance(e, LimitError))
        problem = next(limits, None) or _broken_off(received, announced)
        raise requests.ConnectionError(problem) from None
    except zlib.error:
        raise requests.ConnectionError("sends damaged compressed data") from None
    cut = unpacker is not None and received and not unpacker.eof
    if cut or (announced is not None and received != announced):
        raise requests.ConnectionError(_broken_off(received, announced))


def length(response: requests.Response) -> int | None:
    """Return the length of a body as announced; None if it is not, or not plainly."""
    text = response.headers.get("Content-Length", "").strip()
    plain = text.isascii() and text.isdecimal() and len(text) <= 15
    return int(text) if plain and "Transfer-Encoding" not in response.headers else None


def _broken_off(received: int, announced: int | None) -> str:
    return f"broke off after {received}{f' of {announced}' if announced is not None else ''} bytes"


def _unpacker(encoding: str) -> zlib._Decompress | None:
    """Return a decompressor for a body; None if it is sent as it is.

    Some servers compress although no compression was requested.
    """
    import requests

    if encoding in {"", "identity"}:
        return None
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise requests.ConnectionError("sends a compressed body that was not requested")
    return zlib.decompressobj(zlib.MAX_WBITS | 32)


def _unpacked(unpacker: zlib._Decompress | None, data: bytes) -> Iterator[bytes]:
    """Yield data in pieces of a limited size."""
    if unpacker is None:
        yield data
        return
    while data and not unpacker.eof:
        yield unpacker.decompress(data, _PIECE)
        data = unpacker.unconsumed_tail


def full_or_broken(error: OSError, path: Path) -> BuildError:
    """Return the `BuildError` for a failed write."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return BuildError(
            f"no space left on the disk that holds {path.parent}",
            "Make room (envbuilder clean removes what envbuilder made), or set"
            " ENVBUILDER_CACHE_DIR to a larger disk. Downloads so far are kept.",
        )
    return BuildError(f"{path}: {error.strerror or error}", "Check the folder and its permissions.")


def host_of(url: str) -> str:
    """Return the host of a URL without user names and tokens, for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return parts.hostname or parts.path


def open_session(*, direct: bool = False) -> Session:
    """Return a session with the user's proxy and certificates (environment first, then pip's).

    `direct`: without any proxy, for this machine: to a proxy, it would be the proxy's own.
    """
    from envbuilder.core.http_transport import Session

    configured = pip.sources()
    names = [n for p in ("HTTP", "HTTPS", "ALL") for n in (f"{p}_PROXY", f"{p.lower()}_proxy")]
    proxies = {name: os.environ.get(name, "") for name in names}
    pip.require_parsed({n: p if "://" in p else f"http://{p}" for n, p in proxies.items() if p})
    session = Session()
    if configured.proxy:
        session.proxies = {"http": configured.proxy, "https": configured.proxy}
    has_bundle = any(os.environ.get(v) for v in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    bundle = os.environ.get("SSL_CERT_FILE") or configured.cert
    if bundle and not has_bundle:
        session.verify = bundle
    session.hooks["response"].append(_detail)
    if direct:
        session.trust_env = False
        session.proxies = {}
    return session


def _detail(response: requests.Response, **options: object) -> None:
    del options
    request = response.request
    console.detail(f"{request.method} {public(response.url)}: HTTP {response.status_code}")
