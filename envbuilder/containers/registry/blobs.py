"""Pull and push single blobs: checked while they arrive, resumed if cut short, or mounted.

A pull is resumed by any later process, an upload by the same process only. The registry reports
with each response how an upload continues. Some registries (docker-registry and its derivatives)
continue only from their last response: they discard all of an upload that is cut off within a
piece.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode, urlsplit

from msgspec import Struct

from envbuilder.containers.oci import reference
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
from envbuilder.core.errors import BuildError, InvalidError, WrongHashError
from envbuilder.core.http import Attempts, OtherSizeError, UnavailableError, download

if TYPE_CHECKING:
    from collections.abc import Callable
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
_NO_CONTENT = 204
_LOST = (400, 404, 405, 410, 416)
"""Statuses that registries return for an upload that is gone, or not as far as assumed."""
_NOT_MOUNTED = (400, 401, 403, 404, 405)
"""Statuses that registries return if they do not mount: the blob is uploaded instead."""
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,15})")
_BYTES = {"Content-Type": "application/octet-stream"}


class Sent(Struct, frozen=True, kw_only=True):
    """How a blob got there, and the bytes transferred for it (those sent twice count twice)."""

    how: Literal["present", "mounted", "sent"]
    bytes: int = 0


class _Upload(Struct, frozen=True, kw_only=True):
    """An upload in progress."""

    location: str
    offset: int
    piece: int


def send(
    connection: Connection,
    blob: Descriptor,
    layout: Layout,
    notes: Path,
    advance: Callable[[int], None],
) -> Sent:
    """Push a blob of a layout, unless the registry has it.

    `notes` is a folder that records which repository of the registry received a blob last, which
    may mount it. Only one process sends a blob at a time; the others wait. Raise `BuildError` if
    the push fails.
    """
    from filelock import FileLock

    lock = _file(notes, f"{connection.name} {blob.digest}", "lock")
    path = _file(notes, f"{connection.host} {blob.digest}", "repository")
    files.ensure_folder(notes)
    with FileLock(lock):
        if has(connection, blob):
            advance(blob.size)
            result = Sent(how="present")
        else:
            source = layout.checked(blob)
            outgoing = _Outgoing(connection, blob, source, advance)
            try:
                result = outgoing.run(_repository(path, connection))
            except OSError as error:
                raise files.full_or_broken(error, source) from error
        with contextlib.suppress(OSError):
            files.write(path, connection.repository.encode(), files.PRIVATE)
        return result


def _file(notes: Path, key: str, kind: str) -> Path:
    return notes / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.{kind}"


def _repository(path: Path, connection: Connection) -> str:
    """Return the registry's repository that received the blob last; empty if none is known."""
    try:
        return reference.parse(f"{connection.host}/{path.read_text()}").repository
    except (OSError, UnicodeDecodeError, InvalidError):
        return ""


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


class _Outgoing:
    """A push of one blob."""

    def __init__(
        self,
        connection: Connection,
        blob: Descriptor,
        source: Path,
        advance: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._blob = blob
        self._source = source
        self._advance = advance
        self._last: _Upload | None = None
        """The upload as the registry last described it; None if none has begun or it is gone."""
        self._shown = 0
        self._transferred = 0

    def run(self, mount_from: str) -> Sent:
        problem = ""
        for attempt in Attempts(self._connection.pause):
            try:
                if attempt and has(self._connection, self._blob):
                    break  # only the last response was lost
                upload = self._resumed() or self._begin(mount_from)
                if upload is None:
                    self._show(self._blob.size)
                    return Sent(how="mounted")
                self._close(self._send_pieces(upload))
                break
            except BrokenOffError as error:
                problem = str(error)
        else:
            raise self._connection.failure(self._blob.digest, problem)
        self._show(self._blob.size)
        return Sent(how="sent", bytes=self._transferred)

    def _begin(self, mount_from: str) -> _Upload | None:
        """Start an upload; return None if the registry mounted the blob instead."""
        if mount_from:
            query = urlencode({"mount": self._blob.digest, "from": mount_from})
            answer = self._post(f"?{query}", (CREATED, ACCEPTED, *_NOT_MOUNTED))
            if answer.status == CREATED:
                return None
        if not mount_from or answer.status != ACCEPTED:
            answer = self._post("", (ACCEPTED,))
        least = answer.headers.get("OCI-Chunk-Min-Length", "")
        piece = max(PIECE, int(least)) if least.isdecimal() and len(least) < 10 else PIECE
        self._last = self._at(answer, 0, min(piece, _PIECE_LIMIT))
        return self._last

    def _post(self, query: str, accept: tuple[int, ...]) -> Answer:
        url = self._connection.url(f"blobs/uploads/{query}")
        return self._connection.ask("POST", url, self._blob.digest, accept=accept, data=b"")

    def _resumed(self) -> _Upload | None:
        """Return the interrupted upload, as far as the registry has it; None if it is gone."""
        last = self._last
        if last is None:
            return None
        with contextlib.suppress(BuildError):
            answer = self._connection.ask(
                "GET", last.location, self._blob.digest, accept=(_NO_CONTENT, ACCEPTED, *_LOST)
            )
            if answer.status not in _LOST:
                self._last = self._at(answer, 0, last.piece, last.location)
                if self._last.offset <= self._blob.size:
                    return self._last
        self._last = None
        return None

    def _send_pieces(self, upload: _Upload) -> _Upload:
        """Send what is missing; a blob of a single piece is left to `_close`."""
        if self._blob.size <= upload.piece and not upload.offset:
            return upload
        with self._source.open("rb") as stream:
            while upload.offset < self._blob.size:
                self._show(upload.offset)
                stream.seek(upload.offset)
                data = stream.read(upload.piece)
                if not data:
                    raise BuildError(f"{self._source}: shorter than its manifest states")
                end = upload.offset + len(data)
                headers = {**_BYTES, "Content-Range": f"{upload.offset}-{end - 1}"}
                self._transferred += len(data)
                answer = self._ask("PATCH", upload.location, (ACCEPTED, _NO_CONTENT), headers, data)
                upload = self._last = self._at(answer, end, upload.piece, upload.location)
                if upload.offset != end:
                    raise BrokenOffError("the registry accepted only a part")
        return upload

    def _close(self, upload: _Upload) -> None:
        """Finish the upload with the blob's digest; send the whole blob if nothing was sent yet."""
        data = b"" if upload.offset else self._source.read_bytes()
        self._transferred += len(data)
        joint = "&" if urlsplit(upload.location).query else "?"
        url = f"{upload.location}{joint}{urlencode({'digest': self._blob.digest})}"
        self._ask("PUT", url, (CREATED, _NO_CONTENT), _BYTES, data)

    def _ask(
        self, method: str, url: str, accept: tuple[int, ...], headers: dict[str, str], data: bytes
    ) -> Answer:
        """Send bytes once; raise `BrokenOffError` if the registry has lost the upload."""
        answer = self._connection.ask(
            method,
            url,
            self._blob.digest,
            accept=(*accept, *_LOST),
            headers=headers,
            data=data,
            retry=False,
        )
        if answer.status in _LOST:
            raise BrokenOffError(f"the registry refused it (HTTP {answer.status})")
        return answer

    def _at(self, answer: Answer, expected: int, piece: int, previous: str = "") -> _Upload:
        """Return the state of an upload from a response."""
        location = answer.headers.get("Location", previous)
        if not location:
            raise self._connection.failure(
                self._blob.digest, "the registry did not state where to upload it"
            )
        stated = _RANGE.fullmatch(answer.headers.get("Range", ""))
        # The last byte that is there; "0-0" can also mean that there is none.
        offset = int(stated[1]) + 1 if stated and stated[1] != "0" else expected
        url = self._connection.resolve(self._blob.digest, answer.url, location)
        return _Upload(location=url, offset=offset, piece=piece)

    def _show(self, done: int) -> None:
        self._advance(done - self._shown)
        self._shown = done
