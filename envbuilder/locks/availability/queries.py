"""Query index pages and file servers: few outcomes, no exceptions, and no file is downloaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from envbuilder.core import http, parallel, pip_settings
from envbuilder.core.errors import InvalidError
from envbuilder.core.http import host_of
from envbuilder.core.http_reasons import reason
from envbuilder.packages.python import upstream
from envbuilder.packages.python.static_index import Offer

if TYPE_CHECKING:
    from collections.abc import Iterable

    import requests

    from envbuilder.core.http_transport import Session
    from envbuilder.packages.locations import Place

PARALLEL = 6
PATIENCE = 3
"""Unanswered requests after which a host is not queried any more."""
_GONE = frozenset({404, 410})
_NO_HEAD = frozenset({405, 501})


class Page(Struct, frozen=True, kw_only=True):
    """What an index lists for a distribution; `problem` is why that is unknown."""

    offers: tuple[Offer, ...] = ()
    problem: str = ""


class Answer(Struct, frozen=True, kw_only=True):
    """Whether a server has a file, and its size in bytes if stated."""

    state: Literal["there", "gone", "silent"]
    host: str
    size: int | None = None
    problem: str = ""
    """Why nothing is known, if the state is `silent`."""


class Queries:
    """One HTTP session, configured as for downloads; hosts that stay silent are soon skipped."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = http.open_session() if session is None else session
        self._silences: dict[str, list[str]] = {}
        """Host → why each request to it got no response."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def stop(self) -> None:
        """End the requests of other threads; later ones fail."""
        self._session.stop()

    def page(self, place: Place, distribution: str) -> Page:
        """Return what a location lists for a distribution (canonical name)."""
        folder = pip_settings.local_folder(place.url)
        if folder is not None:
            return _local_page(folder, distribution)
        url = place.url if place.flat else f"{place.url.rstrip('/')}/{distribution}/"
        answer, data, problem = self._request("GET", url, {"Accept": upstream.ACCEPT})
        if answer is None:
            return Page(problem=f"{host_of(url)}: {problem}")
        if answer.status_code in _GONE:
            return Page()
        if answer.status_code != 200:
            return Page(problem=f"{host_of(url)}: HTTP {answer.status_code}")
        text = data.decode("utf-8", "replace")
        return Page(offers=upstream.parse_page(text, answer.url, distribution, ""))

    def file(self, url: str) -> Answer:
        """Return whether a file is there, and its size: by a HEAD request, or from disk."""
        host = host_of(url)
        try:
            parts = urlsplit(url)
        except ValueError as error:
            return Answer(state="silent", host=host, problem=str(error))
        if parts.scheme in {"", "file"}:
            return _on_disk(Path(unquote(parts.path)), host)
        answer, _, problem = self._request("HEAD", url, {})
        if answer is None:
            return Answer(state="silent", host=host, problem=problem)
        if answer.status_code in _GONE:
            return Answer(state="gone", host=host)
        # An HTML page instead of a file comes from a proxy or portal that requires a login.
        page = answer.headers.get("Content-Type", "").lower().startswith("text/html")
        if answer.status_code in _NO_HEAD or (answer.status_code == 200 and not page):
            return Answer(state="there", host=host, size=_stated_size(answer))
        problem = "a page instead of the file" if page else f"HTTP {answer.status_code}"
        return Answer(state="silent", host=host, problem=problem)

    def _request(
        self, method: str, url: str, headers: dict[str, str]
    ) -> tuple[requests.Response | None, bytes, str]:
        """Return a response with its body, or None and the reason."""
        import requests

        try:
            host = urlsplit(url).netloc
        except ValueError as error:
            return None, b"", str(error)
        silences = self._silences.setdefault(host, [])
        if len(silences) >= PATIENCE:
            return None, b"", f"not queried again: {silences[-1]}"
        try:
            with http.request(self._session, method, url, headers, upstream.TIMEOUT) as answer:
                wanted = method == "GET" and answer.status_code == 200
                return answer, http.read(answer) if wanted else b"", ""
        except (requests.ConnectionError, requests.Timeout) as error:
            silences.append(reason(error))
            return None, b"", silences[-1]
        except (requests.RequestException, ValueError, OSError) as error:
            return None, b"", reason(error)


def measure(urls: Iterable[str], session: Session | None = None) -> dict[str, int]:
    """Return URL → size in bytes of the files at some URLs; nothing raises.

    URLs whose size is not plainly stated are left out: it decides whether a disk is large enough,
    so a guess is worse than none.
    """
    unique = sorted(set(urls))
    with Queries(session) as queries, parallel.pool(PARALLEL, queries.stop) as pool:
        answers = pool.map(queries.file, unique)
        return {u: answer.size for u, answer in zip(unique, answers, strict=True) if answer.size}


def _stated_size(answer: requests.Response) -> int | None:
    """Return the size that a response to HEAD states; None if it states none, or not the file's."""
    if answer.status_code != 200 or answer.headers.get("Content-Encoding"):
        return None
    length = answer.headers.get("Content-Length", "").strip()
    return int(length) or None if re.fullmatch(r"[0-9]{1,15}", length) else None


def _local_page(folder: Path, distribution: str) -> Page:
    """Return what an index or a find-links folder on this machine lists for a distribution."""
    page = folder / distribution / "index.html"
    try:
        if page.is_file():
            text = page.read_text(encoding="utf-8", errors="replace")
            return Page(offers=upstream.parse_page(text, page.as_uri(), distribution, ""))
        return Page(offers=upstream.local_wheels([str(folder)], [distribution]))
    except (OSError, InvalidError) as error:
        return Page(problem=f"{folder}: {error}")


def _on_disk(path: Path, host: str) -> Answer:
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        return Answer(state="silent", host=host, problem=error.strerror or str(error))
    return Answer(state="gone" if size is None else "there", host=host, size=size)
