"""Sizes: how many bytes the files at some URLs have, without fetching them.

An index need not state sizes, but the server that holds a file knows. What it does not say plainly
stays unknown: a size decides whether a disk is large enough, so a guess is worse than none.
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
"""Questions that a host may leave without any answer before it is asked no more."""


def measure(urls: Iterable[str], session: requests.Session | None = None) -> dict[str, int]:
    """URL → bytes of the file there, by a HEAD request; for `file:` URLs, of the file on disk.

    URLs whose size cannot be had are left out; nothing raises. Without a `session`, one with the
    user's proxy and certificates is made, the same that downloads use.
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
    """Bytes of one file. `silences` has the host of each question that got no answer."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "file":
            path = Path(unquote(parts.path))
            return path.stat().st_size if path.is_file() else None
        return _ask(url, parts.netloc, session, silences)
    except (OSError, ValueError):  # refused, unreadable, or a URL that is none
        return None


def _ask(url: str, host: str, session: requests.Session, silences: list[str]) -> int | None:
    import requests

    if silences.count(host) >= PATIENCE:
        return None
    try:
        with session.head(
            url,
            # A compressed answer would have the size of what goes over the wire.
            headers={"Accept-Encoding": "identity"},
            allow_redirects=True,
            timeout=TIMEOUT_SECONDS,
        ) as answer:
            return stated(answer)
    except (requests.ConnectionError, requests.Timeout):
        silences.append(host)
        return None


def stated(answer: requests.Response) -> int | None:
    """The size of a file that an answer to HEAD states; None where it states none, or not ours."""
    page = answer.headers.get("Content-Type", "").lower().startswith("text/html")
    # A page instead of a file is somebody on the way who wants a login.
    if answer.status_code != 200 or page or answer.headers.get("Content-Encoding"):
        return None
    length = answer.headers.get("Content-Length", "").strip()
    return int(length) or None if re.fullmatch(r"[0-9]{1,15}", length) else None
