"""HTTP sessions with the user's proxies and certificates, and downloads to partial files.

Downloads are resumed and retried, and never trusted before their hash is checked.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from envbuilder.core import pip_settings
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import requests

ATTEMPTS = 4
TIMEOUT_SECONDS = (10.0, 30.0)  # connect, between two reads
_CHUNK = 1 << 16


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
    """Return a short description of a network failure, without the noise of nested exceptions."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}".strip()
    if isinstance(error, requests.exceptions.SSLError):
        return f"TLS failed ({str(error)[-120:]}); a proxy's CA belongs into REQUESTS_CA_BUNDLE"
    # requests reports a timeout within the body as a ConnectionError.
    if isinstance(error, requests.Timeout) or "Read timed out" in str(error):
        return "timed out"
    if isinstance(error, requests.ConnectionError):
        return str(error) if "broke off" in str(error) else "cannot be reached"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "broke off"
    return str(error) or type(error).__name__


def full_or_broken(error: OSError, path: Path) -> BuildError:
    """Return the `BuildError` for a failed write."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return BuildError(
            f"no space left on the disk that holds {path.parent}",
            "Make room (envbuilder clean removes what envbuilder made), or set"
            " ENVBUILDER_CACHE_DIR to a larger disk. What was fetched is kept.",
        )
    return BuildError(f"{path}: {error.strerror or error}", "Check the folder and its rights.")


def host_of(url: str) -> str:
    """Return the host of a URL without user names and tokens, for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that is no URL"
    return parts.hostname or parts.path


def open_session() -> requests.Session:
    """Return a session with the user's proxy and certificates (environment first, then pip's)."""
    import requests

    pip = pip_settings.sources()
    names = [n for p in ("HTTP", "HTTPS", "ALL") for n in (f"{p}_PROXY", f"{p.lower()}_proxy")]
    proxies = {name: os.environ.get(name, "") for name in names}
    pip_settings.require_parsed(
        {n: p if "://" in p else f"http://{p}" for n, p in proxies.items() if p}
    )
    made = requests.Session()
    if pip.proxy:
        made.proxies = {"http": pip.proxy, "https": pip.proxy}
    own = any(os.environ.get(v) for v in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    bundle = os.environ.get("SSL_CERT_FILE") or pip.cert
    if bundle and not own:
        made.verify = bundle
    return made
