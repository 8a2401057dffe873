"""Downloads to partial files: resumed and retried.

No downloaded file is trusted before its hash is checked.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from envbuilder.core import console
from envbuilder.core.files import full_or_broken
from envbuilder.core.http import (
    FILE_BYTES,
    Attempts,
    file_seconds,
    length,
    pieces,
    reason,
    request,
)
from envbuilder.core.http_limits import LimitError, TooLongError
from envbuilder.core.text import public

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import requests

    from envbuilder.core.http_transport import Session

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/(?:[0-9]{1,15}|\*)")


class UnavailableError(Exception):
    """A source does not have the file, or cannot be reached."""


class OtherSizeError(UnavailableError):
    """A source has a longer file under this name; `str` says how long."""


def download(
    session: Session,
    url: str,
    part: Path,
    on_bytes: Callable[[int], None],
    *,
    size: int | None = None,
    limit: int = FILE_BYTES,
    pause: Callable[[float], None] | None = None,
) -> None:
    """Download the body of `url` to `part`, resuming a partial file.

    No more than `size` bytes are read, which is the file's exact size, or `limit` if that is
    unknown.

    Raise `UnavailableError` if the source refuses or stays unreachable, `BuildError` if `part`
    cannot be written, as on a full disk. If the server cannot resume, the download starts again.
    """
    import requests

    attempts, problem = Attempts(partial(_pause, pause or session.pause)), ""
    for _ in attempts:
        try:
            _once(session, url, part, on_bytes, size, limit)
        except requests.RequestException as error:
            problem = reason(error)
            console.detail(f"{public(url)}: {problem}")
            # A ValueError is an invalid URL, or a page instead of the file.
            final = isinstance(error, requests.TooManyRedirects | ValueError)
            if final or not attempts.may_repeat(error.response):
                break
        except TooLongError as error:
            part.unlink(missing_ok=True)
            raise OtherSizeError(str(error)) from None
        except OSError as error:
            raise full_or_broken(error, part) from error
        else:
            return
    raise UnavailableError(problem)


def _pause(pause: Callable[[float], None], seconds: float) -> None:
    try:
        pause(seconds)
    except LimitError as error:
        raise UnavailableError(str(error)) from None


def _once(
    session: requests.Session,
    url: str,
    part: Path,
    on_bytes: Callable[[int], None],
    size: int | None,
    limit: int,
) -> None:
    import requests

    have = part.stat().st_size if part.exists() else 0
    if size is not None and have == size:  # complete: its hash decides
        on_bytes(have)
        return
    if size is not None and have > size:
        part.unlink()
        have = 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with request(session, "GET", url, headers) as response:
        continued = response.status_code == requests.codes.partial_content
        if have and (_is_elsewhere(response, have) or response.status_code == 416):
            part.unlink()
            raise requests.ConnectionError("does not continue where it broke off")
        response.raise_for_status()
        if continued and not have:
            raise requests.ConnectionError("sends a part of the file that was not requested")
        left = (limit if size is None else size) - (have if continued else 0)
        announced = length(response)
        if _is_page(response) and announced != size:
            raise requests.exceptions.InvalidHeader(
                "sends a page instead of the file, as a proxy or portal with a login does"
            )
        if continued:
            on_bytes(have)
        received = 0
        with part.open("ab" if continued else "wb") as out:
            for piece in pieces(response, left, file_seconds(left)):
                out.write(piece)
                received += len(piece)
                on_bytes(len(piece))
    if size is not None and announced is None and received < left:
        raise requests.ConnectionError(f"broke off after {received} of {left} bytes")


def _is_elsewhere(response: requests.Response, have: int) -> bool:
    """Return whether a part of the file does not begin where the partial file ends."""
    if response.status_code != 206:
        return False
    stated = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    return stated is None or int(stated[1]) != have


def _is_page(response: requests.Response) -> bool:
    return response.headers.get("Content-Type", "").lower().startswith("text/html")
