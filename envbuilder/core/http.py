"""HTTP sessions with the user's proxies and certificates, and downloads to partial files.

Downloads are resumed and retried, and never trusted before their hash is checked.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from envbuilder.core import console, pip_settings
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import requests

ATTEMPTS = 4
TIMEOUT_SECONDS = (10.0, 30.0)  # connect, between two reads
_CHUNK = 1 << 16
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


class UnavailableError(Exception):
    """A source does not have the file, or cannot be reached."""


def download(
    session: requests.Session,
    url: str,
    part: Path,
    on_bytes: Callable[[int], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Download the body of `url` to `part`, resuming a partial file.

    Raises `UnavailableError` if the source refuses or stays unreachable, `BuildError` if `part`
    cannot be written, as on a full disk. If the server cannot resume, the download starts again.
    """
    import requests

    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            pause(2.0 ** (attempt - 1))
        try:
            _once(session, url, part, on_bytes)
        except requests.RequestException as error:
            status = error.response.status_code if error.response is not None else None
            problem = reason(error)
            console.detail(f"{shown(url)}: {problem}")
            if status is not None and 400 <= status < 500 and status not in {408, 416, 429}:
                break
        except OSError as error:
            raise full_or_broken(error, part) from error
        else:
            return
    raise UnavailableError(problem)


def _once(session: requests.Session, url: str, part: Path, on_bytes: Callable[[int], None]) -> None:
    import requests

    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            # Already complete, or longer than the upstream file: start again; the hash will decide.
            part.unlink(missing_ok=True)
        response.raise_for_status()
        continued = response.status_code == requests.codes.partial_content
        expected = response.headers.get("Content-Length")
        received = 0
        if continued and have:
            on_bytes(have)
        with part.open("ab" if continued else "wb") as out:
            for chunk in response.iter_content(_CHUNK):
                out.write(chunk)
                received += len(chunk)
                on_bytes(len(chunk))
    if expected is not None and expected.isdecimal() and received != int(expected):
        raise requests.ConnectionError(f"broke off after {received} of {expected} bytes")


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
        inner = next(wrapped, None) or inner.__cause__ or inner.__context__


def _why(causes: Sequence[BaseException]) -> str:
    """Return why there is no connection, or why it ended."""
    first, last = str(causes[0]), str(causes[-1])
    if stated := next(filter(None, map(_of_system, causes)), ""):
        return stated
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


def shown(url: str) -> str:
    """Return a URL without user, password, query and fragment, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def open_session(*, direct: bool = False) -> requests.Session:
    """Return a session with the user's proxy and certificates (environment first, then pip's).

    `direct`: without any proxy, for this machine: to a proxy, it would be the proxy's own.
    """
    import requests

    pip = pip_settings.sources()
    names = [n for p in ("HTTP", "HTTPS", "ALL") for n in (f"{p}_PROXY", f"{p.lower()}_proxy")]
    proxies = {name: os.environ.get(name, "") for name in names}
    pip_settings.require_parsed(
        {n: p if "://" in p else f"http://{p}" for n, p in proxies.items() if p}
    )
    session = requests.Session()
    if pip.proxy:
        session.proxies = {"http": pip.proxy, "https": pip.proxy}
    has_bundle = any(os.environ.get(v) for v in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    bundle = os.environ.get("SSL_CERT_FILE") or pip.cert
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
    console.detail(f"{request.method} {shown(response.url)}: HTTP {response.status_code}")
