"""Measure the sizes of the files at some URLs, without fetching them.

An index need not state sizes, but the server that holds a file knows. Unless the server states it
plainly, a size stays unknown: it decides whether a disk is large enough, so a guess is worse than
none.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from envbuilder.core import http as download

if TYPE_CHECKING:
    from collections.abc import Iterable

    import requests

PARALLEL = 6
TIMEOUT_SECONDS = (4.0, 8.0)  # to connect, to answer
PATIENCE = 3
"""Unanswered requests after which a host is not queried any more."""


def measure(urls: Iterable[str], session: requests.Session | None = None) -> dict[str, int]:
    """Return URL → size in bytes, by a HEAD request, or from disk for `file:` URLs.

    URLs whose size cannot be determined are left out; nothing raises. Without a `session`, one with
    the user's proxy and certificates is opened, the same that downloads use.
    """
    if session is None:
        with download.open_session() as own:
            return measure(urls, own)
    wanted = sorted(set(urls))
    silences: list[str] = []
    with ThreadPoolExecutor(PARALLEL) as pool:
        found = pool.map(lambda url: _size(url, session, silences), wanted)
        return {u: size for u, size in zip(wanted, found, strict=True) if size}


def _size(url: str, session: requests.Session, silences: list[str]) -> int | None:
    """Return the size of one file in bytes. `silences` has the host of each unanswered request."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "file":
            path = Path(unquote(parts.path))
            return path.stat().st_size if path.is_file() else None
        return _ask(url, parts.netloc, session, silences)
    except (OSError, ValueError):  # refused, unreadable, or not a URL
        return None


def _ask(url: str, host: str, session: requests.Session, silences: list[str]) -> int | None:
    import requests

    if silences.count(host) >= PATIENCE:
        return None
    try:
        with session.head(
            url,
            # A compressed response would state the size of the transfer, not of the file.
            headers={"Accept-Encoding": "identity"},
            allow_redirects=True,
            timeout=TIMEOUT_SECONDS,
        ) as answer:
            return stated(answer)
    except (requests.ConnectionError, requests.Timeout):
        silences.append(host)
        return None


def stated(answer: requests.Response) -> int | None:
    """Return the size that a response to HEAD states; None if it states none, or not the file's."""
    page = answer.headers.get("Content-Type", "").lower().startswith("text/html")
    # An HTML page instead of a file comes from a proxy or portal that requires a login.
    if answer.status_code != 200 or page or answer.headers.get("Content-Encoding"):
        return None
    length = answer.headers.get("Content-Length", "").strip()
    return int(length) or None if re.fullmatch(r"[0-9]{1,15}", length) else None
