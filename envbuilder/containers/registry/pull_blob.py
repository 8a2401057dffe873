"""Pull one blob from a registry into a layout: checked while it arrives, resumed if cut short."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from envbuilder.containers.registry.responses import ATTEMPTS
from envbuilder.core.errors import WrongHashError
from envbuilder.core.http import file_seconds, full_or_broken, pieces
from envbuilder.core.http_limits import TooLongError
from envbuilder.core.http_reasons import reason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from envbuilder.containers.oci.descriptor import Descriptor
    from envbuilder.containers.oci.layout import Layout
    from envbuilder.containers.registry.connection import Connection

_PIECE = 1 << 18
_WHOLE, _PART, _NO_SUCH_PART = 200, 206, 416


def receive(
    connection: Connection, blob: Descriptor, layout: Layout, advance: Callable[[int], None]
) -> int:
    """Pull a blob into a layout; return the bytes transferred.

    Raise `WrongHashError` if the registry sends other bytes (none of them are kept), `BuildError`
    if it does not send all of them: what arrived is kept for the next try.
    """
    target, part = layout.blob(blob.digest), _part(layout, blob)
    travelled = 0
    try:
        part.parent.mkdir(exist_ok=True)
        # An earlier try may have left other bytes: if so, pull once more from the start.
        for _ in range(2 if part.exists() else 1):
            incoming = _Incoming(connection, blob, part, advance)
            right = incoming.run()
            travelled += incoming.travelled
            if right:
                target.parent.mkdir(parents=True, exist_ok=True)
                part.replace(target)
                return travelled
            part.unlink()
    except OSError as error:
        raise full_or_broken(error, part) from error
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


class _Incoming:
    """A blob on its way into its partial file."""

    def __init__(
        self, connection: Connection, blob: Descriptor, part: Path, advance: Callable[[int], None]
    ) -> None:
        self._connection, self._blob, self._part = connection, blob, part
        self._advance = advance
        self._digest = hashlib.sha256()
        self._have = 0
        self.travelled = 0

    def run(self) -> bool:
        """Pull the rest of the blob; return whether the partial file now holds it.

        Raise `BuildError` if it does not arrive completely.
        """
        complete = self._part.exists() and self._read_left() >= self._blob.size
        problem = ""
        for _ in range(ATTEMPTS):
            if complete:
                break
            problem = self._ask()
            complete = not problem
        if not complete:
            raise self._connection.failure(self._blob.digest, problem)
        digest = f"sha256:{self._digest.hexdigest()}"
        right = self._have == self._blob.size and digest == self._blob.digest
        if not right:
            self._advance(-self._have)
        return right

    def _read_left(self) -> int:
        """Hash what an earlier try left; return its size."""
        with self._part.open("rb") as stream:
            while piece := stream.read(_PIECE):
                self._count(piece)
        return self._have

    def _count(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._have += len(piece)
        self._advance(len(piece))

    def _ask(self) -> str:
        """Store what one response holds; return why that was not all, or an empty string."""
        import requests

        headers = {"Range": f"bytes={self._have}-"} if self._have else {}
        url = self._connection.url(f"blobs/{self._blob.digest}")
        accept = (_WHOLE, _PART, _NO_SUCH_PART) if self._have else (_WHOLE,)
        with self._connection.request(
            "GET", url, self._blob.digest, accept=accept, headers=headers
        ) as response:
            begins = response.headers.get("Content-Range", "").partition("-")[0]
            if response.status_code != _PART or begins != f"bytes {self._have}":
                self._advance(-self._have)
                self._digest, self._have = hashlib.sha256(), 0
            if response.status_code != _WHOLE and not self._have:
                self._part.unlink()
                return "it does not continue where it broke off"
            try:
                with self._part.open("ab" if self._have else "wb") as out:
                    # A little more than is missing shows that it is too long.
                    limit = self._blob.size - self._have + _PIECE
                    for piece in pieces(response, limit, file_seconds(limit)):
                        out.write(piece)
                        self._count(piece)
                        self.travelled += len(piece)
                        if self._have > self._blob.size:
                            return ""  # too long: wrong, whatever follows
            except TooLongError:
                self._have = self._blob.size + 1
                return ""
            except requests.RequestException as error:
                return reason(error)
        size = self._blob.size
        return "" if self._have == size else f"broke off after {self._have} of {size} bytes"
