"""Pull and push single blobs: checked while they arrive, and resumed by any later pull.

An upload that is cut off begins again: some registries (docker-registry and its derivatives)
discard all of it, if that happens within a piece.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from envbuilder.containers.registry.connection import (
    ACCEPTED,
    CREATED,
    NOT_FOUND,
    OK,
    Answer,
    BrokenOffError,
    Connection,
)
from envbuilder.core import files
from envbuilder.core.errors import BuildError, WrongHashError
from envbuilder.core.http import Attempts, OtherSizeError, UnavailableError, download

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import requests

    from envbuilder.containers.oci.layout import Descriptor, Layout

_PART = 206
_NO_SUCH_PART = 416


def receive(
    connection: Connection, blob: Descriptor, layout: Layout, advance: Callable[[int], None]
) -> int:
    """Pull a blob into a layout; return the bytes transferred.

    Raise `WrongHashError` if the registry sends other bytes (none of them are kept), `BuildError`
    if it does not send all of them: what arrived is kept for the next try.
    """
    target = layout.blob(blob.digest)
    part = _part(layout, blob)
    url = f"blobs/{blob.digest}"
    session = connection.session
    travelled = 0

    def ask(headers: dict[str, str]) -> requests.Response:
        accept = (OK, _PART, _NO_SUCH_PART) if headers else (OK,)
        return connection.request(
            "GET", connection.url(url), blob.digest, accept=accept, headers=headers
        )

    try:
        part.parent.mkdir(exist_ok=True)
        # An earlier try may have left other bytes: if so, pull once more from the start.
        for _ in range(2 if part.exists() else 1):
            with contextlib.suppress(OtherSizeError):
                travelled += download(
                    session,
                    connection.url(url),
                    part,
                    advance,
                    size=blob.size,
                    pause=connection.pause,
                    ask=ask,
                )
                if f"sha256:{files.file_sha256(part)}" == blob.digest:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    part.replace(target)
                    return travelled
                part.unlink()
                advance(-blob.size)
    except UnavailableError as error:
        raise connection.failure(blob.digest, str(error)) from None
    except OSError as error:
        raise files.full_or_broken(error, part) from error
    raise WrongHashError(
        f"{connection.name}: {blob.digest}: the received content does not match the digest",
        "The registry or a proxy changes the content. Nothing was kept.",
    )


def remaining(layout: Layout, blob: Descriptor) -> int:
    """Return how many bytes of a blob an earlier pull has not left in a layout."""
    with contextlib.suppress(OSError):
        return max(blob.size - _part(layout, blob).stat().st_size, 0)
    return blob.size


def _part(layout: Layout, blob: Descriptor) -> Path:
    return layout.folder / "partial" / layout.blob(blob.digest).name


# --- pushes

PIECE = 8 << 20
"""Bytes of a piece, unless the registry requires larger ones. Ctrl-C waits for the end of a piece,
and each piece costs a round trip to the registry."""
_PIECE_LIMIT = 256 << 20
"""Maximum bytes of a piece, whatever the registry requires: it is held in memory."""
_NO_CONTENT = 204
_LOST = (400, 404, 405, 410, 416)
"""Statuses that registries return for an upload that is gone, or not as far as assumed."""


def send(
    connection: Connection, blob: Descriptor, layout: Layout, advance: Callable[[int], None]
) -> int | None:
    """Push a blob of a layout; return the bytes transferred, None if the registry has it already.

    An upload that breaks off begins again. Raise `BuildError` if the push fails.
    """
    if has(connection, blob):
        advance(blob.size)
        return None
    source = layout.checked(blob)
    transferred = 0
    problem = ""
    for attempt in Attempts(connection.pause):
        done = 0
        try:
            if attempt and has(connection, blob):
                advance(blob.size)
                return transferred  # only the last response was lost
            for count in _upload(connection, blob, source):
                done += count
                transferred += count
                advance(count)
        except BrokenOffError as error:
            problem = str(error)
            advance(-done)
        except OSError as error:
            raise files.full_or_broken(error, source) from error
        else:
            return transferred
    raise connection.failure(blob.digest, problem)


def has(connection: Connection, blob: Descriptor) -> bool:
    """Return whether the repository has a blob."""
    url = connection.url(f"blobs/{blob.digest}")
    return connection.ask("HEAD", url, blob.digest, accept=(OK, NOT_FOUND)).status == OK


def require_allowed(connection: Connection) -> None:
    """Raise `BuildError` if pushing is not allowed, or if the registry does not answer.

    Meant to be called before expensive work. Registries report this only when an upload is started,
    so one is started and cancelled.
    """
    item = "a push"
    answer = connection.ask(
        "POST", connection.url("blobs/uploads/"), item, accept=(ACCEPTED,), data=b""
    )
    with contextlib.suppress(BuildError, BrokenOffError):
        url = connection.resolve(item, answer.url, answer.headers.get("Location", ""))
        connection.ask("DELETE", url, item, accept=(OK, ACCEPTED, _NO_CONTENT), retry=False)


def _upload(connection: Connection, blob: Descriptor, source: Path) -> Iterator[int]:
    """Upload a blob, a small one as a whole; yield the bytes of each piece that was taken.

    Raise `BrokenOffError` if the upload may succeed when it begins again.
    """
    url = connection.url("blobs/uploads/")
    answer = connection.ask("POST", url, blob.digest, accept=(ACCEPTED,), data=b"")
    url = _location(connection, blob, answer)
    least = answer.headers.get("OCI-Chunk-Min-Length", "")
    piece = max(PIECE, int(least)) if least.isdecimal() and len(least) < 10 else PIECE
    piece = min(piece, _PIECE_LIMIT)
    offset = 0
    with source.open("rb") as stream:
        data = stream.read(piece)
        while blob.size > piece and data:
            end = offset + len(data)
            place = {"Content-Range": f"{offset}-{end - 1}"}
            answer = _ask(connection, blob, "PATCH", url, ACCEPTED, data, place)
            if "Location" in answer.headers:
                url = _location(connection, blob, answer)
            yield len(data)
            offset = end
            data = stream.read(piece)
    joint = "&" if urlsplit(url).query else "?"
    url = f"{url}{joint}{urlencode({'digest': blob.digest})}"
    _ask(connection, blob, "PUT", url, CREATED, data, {})
    yield len(data)


def _ask(
    connection: Connection,
    blob: Descriptor,
    method: str,
    url: str,
    accept: int,
    data: bytes,
    headers: dict[str, str],
) -> Answer:
    """Send bytes once; raise `BrokenOffError` if the registry has lost the upload."""
    answer = connection.ask(
        method,
        url,
        blob.digest,
        accept=(accept, _NO_CONTENT, *_LOST),
        headers={"Content-Type": "application/octet-stream", **headers},
        data=data,
        retry=False,
    )
    if answer.status in _LOST:
        raise BrokenOffError(f"the registry refused it (HTTP {answer.status})")
    return answer


def _location(connection: Connection, blob: Descriptor, answer: Answer) -> str:
    """Return where an upload continues."""
    location = answer.headers.get("Location", "")
    if not location:
        raise connection.failure(blob.digest, "the registry did not state where to upload it")
    return connection.resolve(blob.digest, answer.url, location)
