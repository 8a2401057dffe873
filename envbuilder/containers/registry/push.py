"""Push single blobs: mount them from another repository if possible, and resume broken uploads.

An upload is resumed only by the process that started it. Each response from the registry says where
to continue. Some registries (docker-registry and its derivatives) can continue only where their
last response said, and discard an upload that breaks off in the middle of a piece.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode, urlsplit

from msgspec import Struct

from envbuilder.containers.oci import reference
from envbuilder.containers.oci.layout import Descriptor
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
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.http import Attempts

if TYPE_CHECKING:
    from envbuilder.containers.oci.layout import Layout

PIECE = 8 << 20
"""Size in bytes of the pieces in which a blob is sent, unless the registry requires larger pieces.

Ctrl-C takes effect only at the end of a piece, and each piece costs a round trip to the registry.
"""
_PIECE_LIMIT = 256 << 20
"""Maximum size of a piece in bytes, regardless of what the registry requires. There is a limit
because the piece is held in memory."""
_NO_CONTENT = 204
_LOST = (400, 404, 405, 410, 416)
"""HTTP statuses that mean that an upload no longer exists or is shorter than assumed."""
_NOT_MOUNTED = (400, 401, 403, 404, 405)
"""HTTP statuses with which registries refuse to mount a blob. The blob is then uploaded instead."""
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,15})")
"""Pattern for the `Range` header in which a registry states how much of an upload has arrived."""


class Sent(Struct, frozen=True, kw_only=True):
    """The way in which a blob was pushed, and the number of bytes sent.

    Bytes that were sent twice count twice.
    """

    how: Literal["present", "mounted", "sent"]
    bytes: int = 0


def send(
    connection: Connection,
    blob: Descriptor,
    layout: Layout,
    notes: Path,
    advance: Callable[[int], None],
) -> Sent:
    """Push a blob in a layout, unless the registry already has the blob.

    Return how the blob was pushed. `notes` is a folder that records, for each blob, which
    repository in the registry last received the blob. The registry may be able to mount the blob
    from that repository. Only one process at a time pushes a blob, and other processes wait. Raise
    `BuildError` if the push fails.
    """
    from filelock import FileLock

    files.ensure_folder(notes)
    note = _file(notes, f"{connection.host} {blob.digest}", "repository")
    with FileLock(_file(notes, f"{connection.name} {blob.digest}", "lock")):
        if _is_present(connection, blob):
            advance(blob.size)
            result = Sent(how="present")
        else:
            source = layout.checked(blob)
            upload = _Upload(connection, blob, source, advance)
            try:
                result = upload.run(_repository(note, connection))
            except OSError as error:
                raise files.full_or_broken(error, source) from error
        with suppress(OSError):
            files.write(note, connection.repository.encode(), files.PRIVATE)
        return result


def _file(notes: Path, key: str, kind: str) -> Path:
    return notes / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.{kind}"


def _repository(note: Path, connection: Connection) -> str:
    """Return the repository in the registry that last received the blob, or "" if unknown."""
    try:
        return reference.parse(f"{connection.host}/{note.read_text()}").repository
    except (OSError, UnicodeDecodeError, InvalidError):
        return ""


def _is_present(connection: Connection, blob: Descriptor) -> bool:
    url = connection.url(f"blobs/{blob.digest}")
    return connection.ask("HEAD", url, blob.digest, accept=(OK, NOT_FOUND)).status == OK


def require_allowed(connection: Connection) -> None:
    """Raise `BuildError` if pushing is not allowed, or if the registry does not answer.

    Call this before expensive work. A registry checks whether a push is allowed only when an upload
    starts, so this function starts an upload and cancels it.
    """
    item = "a push"
    answer = connection.ask(
        "POST", connection.url("blobs/uploads/"), item, accept=(ACCEPTED,), data=b""
    )
    with suppress(BuildError, BrokenOffError):
        url = connection.resolve(item, answer.url, answer.headers.get("Location", ""))
        connection.ask("DELETE", url, item, accept=(OK, ACCEPTED, _NO_CONTENT), retry=False)


class _Upload(Struct):
    """The upload of one blob, in the state that the registry last reported."""

    _connection: Connection
    _blob: Descriptor
    _source: Path
    _advance: Callable[[int], None]
    _location: str = ""
    """URL at which to continue the upload. Empty until the upload starts."""
    _offset: int = 0
    """Number of bytes that the registry has received."""
    _piece: int = PIECE
    _shown: int = 0
    _transferred: int = 0

    def run(self, mount_from: str) -> Sent:
        """Upload the blob, or let the registry mount it from the repository `mount_from`.

        `mount_from` is empty if no other repository is known to have the blob.
        """
        problem = ""
        for attempt in Attempts(self._connection.pause):
            try:
                if attempt and _is_present(self._connection, self._blob):
                    break  # only the last response was lost
                if not self._resume() and not self._begin(mount_from):
                    self._show(self._blob.size)
                    return Sent(how="mounted")
                self._send_pieces()
                self._close()
                break
            except BrokenOffError as error:
                problem = str(error)
        else:
            raise self._connection.failure(self._blob.digest, problem)
        self._show(self._blob.size)
        return Sent(how="sent", bytes=self._transferred)

    def _resume(self) -> bool:
        """Ask the registry how much of an interrupted upload it has received.

        Return true if the upload can be continued.
        """
        if not self._location:
            return False
        with suppress(BuildError):
            answer = self._connection.ask(
                "GET", self._location, self._blob.digest, accept=(_NO_CONTENT, ACCEPTED, *_LOST)
            )
            if answer.status not in _LOST:
                self._read(answer, 0)
                return self._offset <= self._blob.size
        return False

    def _begin(self, mount_from: str) -> bool:
        """Start an upload, and return whether the blob must be sent.

        Return false if the registry mounted the blob from the repository `mount_from` instead.
        """
        self._location = ""
        if mount_from:
            query = urlencode({"mount": self._blob.digest, "from": mount_from})
            answer = self._post(f"?{query}", (CREATED, ACCEPTED, *_NOT_MOUNTED))
            if answer.status == CREATED:
                return False
        if not mount_from or answer.status != ACCEPTED:
            answer = self._post("", (ACCEPTED,))
        least = answer.headers.get("OCI-Chunk-Min-Length", "")
        piece = max(PIECE, int(least)) if least.isdecimal() and len(least) < 10 else PIECE
        self._piece = min(piece, _PIECE_LIMIT)
        self._read(answer, 0)
        return True

    def _post(self, query: str, accept: tuple[int, ...]) -> Answer:
        url = self._connection.url(f"blobs/uploads/{query}")
        return self._connection.ask("POST", url, self._blob.digest, accept=accept, data=b"")

    def _send_pieces(self) -> None:
        """Send the missing pieces. If the whole blob fits into one piece, let `_close` send it."""
        if self._blob.size <= self._piece and not self._offset:
            return
        with self._source.open("rb") as stream:
            while self._offset < self._blob.size:
                self._show(self._offset)
                stream.seek(self._offset)
                data = stream.read(self._piece)
                if not data:
                    raise BuildError(f"{self._source} is shorter than the size in its manifest")
                end = self._offset + len(data)
                headers = {"Content-Range": f"{self._offset}-{end - 1}"}
                self._read(self._ask("PATCH", self._location, ACCEPTED, data, headers), end)
                if self._offset != end:
                    raise BrokenOffError("the registry accepted only part of the upload")

    def _close(self) -> None:
        """Complete the upload by sending the blob's digest.

        If no piece was sent before, also send the whole blob.
        """
        data = b"" if self._offset else self._source.read_bytes()
        joint = "&" if urlsplit(self._location).query else "?"
        url = f"{self._location}{joint}{urlencode({'digest': self._blob.digest})}"
        self._ask("PUT", url, CREATED, data, {})

    def _ask(
        self, method: str, url: str, accept: int, data: bytes, headers: dict[str, str]
    ) -> Answer:
        """Send bytes once, without retries, and return the response.

        Raise `BrokenOffError` if the registry no longer has the upload.
        """
        self._transferred += len(data)
        answer = self._connection.ask(
            method,
            url,
            self._blob.digest,
            accept=(accept, _NO_CONTENT, *_LOST),
            headers={"Content-Type": "application/octet-stream", **headers},
            data=data,
            retry=False,
        )
        if answer.status in _LOST:
            raise BrokenOffError(f"the registry refused the upload (HTTP {answer.status})")
        return answer

    def _read(self, answer: Answer, expected: int) -> None:
        """Update the location and the offset of the upload from a response of the registry.

        `expected` is the offset to assume if the response does not contain an offset. Raise
        `BuildError` if the response contains no location and no earlier location is known.
        """
        location = answer.headers.get("Location", self._location)
        if not location:
            raise self._connection.failure(
                self._blob.digest, "the registry did not state where to upload the blob"
            )
        self._location = self._connection.resolve(self._blob.digest, answer.url, location)
        matched = _RANGE.fullmatch(answer.headers.get("Range", ""))
        # The last byte that is there; "0-0" can also mean that there is none.
        self._offset = int(matched[1]) + 1 if matched and matched[1] != "0" else expected

    def _show(self, done: int) -> None:
        self._advance(done - self._shown)
        self._shown = done
