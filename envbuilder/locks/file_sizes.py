"""Measure files where their servers state the sizes; no file is downloaded."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from envbuilder.core import http, parallel
from envbuilder.packages.python import upstream

if TYPE_CHECKING:
    from collections.abc import Iterable

    import requests

    from envbuilder.core.http_transport import Session

PARALLEL = 6
PATIENCE = 3
"""Unanswered requests after which a host is not asked any more."""


def measure(urls: Iterable[str], session: Session | None = None) -> dict[str, int]:
    """Return URL → size in bytes of the files at some URLs; nothing raises.

    URLs whose size is not plainly stated are left out: it decides whether a disk is large enough,
    so a guess is worse than none.
    """
    unique = sorted(set(urls))
    connected = http.open_session() if session is None else session
    silent_hosts: list[str] = []
    with contextlib.closing(connected), parallel.pool(PARALLEL, connected.stop) as pool:
        sizes = pool.map(lambda url: _size(url, connected, silent_hosts), unique)
        return {url: size for url, size in zip(unique, sizes, strict=True) if size}


def _size(url: str, session: Session, silent_hosts: list[str]) -> int | None:
    """Return the size of a file, by a HEAD request or from disk; note each unanswered request."""
    import requests

    host = ""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"", "file"}:
            path = Path(unquote(parts.path))
            return path.stat().st_size if path.is_file() else None
        host = parts.netloc
        if silent_hosts.count(host) < PATIENCE:
            with http.request(session, "HEAD", url, {}, upstream.TIMEOUT) as answer:
                return _stated_size(answer)
    except (requests.ConnectionError, requests.Timeout):
        silent_hosts.append(host)
    except (requests.RequestException, ValueError, OSError):
        pass
    return None


def _stated_size(answer: requests.Response) -> int | None:
    """Return the size that a response to HEAD states; None if it states none, or not the file's."""
    if answer.status_code != 200 or answer.headers.get("Content-Encoding"):
        return None
    # An HTML page instead of a file comes from a proxy or portal that requires a login.
    if answer.headers.get("Content-Type", "").lower().startswith("text/html"):
        return None
    length = answer.headers.get("Content-Length", "").strip()
    return int(length) or None if re.fullmatch(r"[0-9]{1,15}", length) else None
