"""Read which files a wheel installs without downloading it: its directory and RECORD, by ranges.

So `lock` can compare all wheels of a target, and its answer does not depend on which of them
happen to be in the store.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from envbuilder.core import http, parallel
from envbuilder.packages import locations
from envbuilder.packages.python import wheel_conflicts
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envbuilder.core.http_transport import Session
    from envbuilder.core.settings import Settings
    from envbuilder.packages.python.uv import Found

PARALLEL = 8
_TAIL = 64 << 10
"""Bytes that are requested first: the end, which holds directory and RECORD of most wheels."""
_PART = 512 << 10
"""Bytes that are requested at once if that is not enough."""
_DIRECTORY = 16 << 20
"""Maximum bytes of the directory, which has 130 to 170 for each member; that of torch's CPU wheel
with 12,000 members has 1.5 MB."""
_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15})")


class RemoteFile(io.RawIOBase):
    """A file on a server, of which only those parts are requested that are read.

    A server that knows no ranges sends the whole file, which is read if it has at most 64 MiB.
    """

    def __init__(self, session: Session, url: str) -> None:
        """Raise `OSError`, as all methods do, if the server does not send what is requested."""
        self._session, self._url, self._at = session, url, 0
        self._request(f"-{_TAIL}")

    def _request(self, asked: str) -> None:
        headers = {"Range": f"bytes={asked}"}
        with http.request(self._session, "GET", self._url, headers) as response:
            response.raise_for_status()
            data = http.read(response)
        stated = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        partial = response.status_code == 206 and stated is not None
        self._begin, self._data = int(stated[1]) if stated and partial else 0, data
        self._size = int(stated[2]) if stated and partial else len(data)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes, or what is left: the server states how long the directory is."""
        left = max(self._size - self._at, 0)
        count = left if size < 0 else min(size, left)
        if count > _DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has {count} bytes; not read")
        return super().read(count) or b""

    def readinto(self, buffer: bytearray, /) -> int:  # type: ignore[override]
        """Read into a buffer what of it is there, requesting what is not."""
        count = min(len(buffer), max(self._size - self._at, 0))
        if not self._begin <= self._at <= self._at + count <= self._begin + len(self._data):
            end = min(self._size, self._at + max(count, _PART))
            self._request(f"{self._at}-{end - 1}")
        begin = self._at - self._begin
        part = self._data[begin : begin + count] if begin >= 0 else b""
        if len(part) < count:
            raise OSError("the server sends another part than was requested")
        buffer[:count] = part
        self._at += count
        return count


def contents(
    wheels: Iterable[Found], python: str, settings: Settings, variables: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Return what each wheel installs (`wheel_conflicts.contents`) by sha256.

    Wheels that cannot be read are left out. `variables` are uv's; `python` is X.Y.
    """
    store, logins = Store.of(settings), {**os.environ, **variables}
    result: dict[str, dict[str, str]] = {}

    def read(wheel: Found) -> None:
        # Not those of the store: whether a wheel is there must not matter.
        key = hashlib.sha256(f"{wheel.file.sha256} listed-1-{python}".encode()).hexdigest()
        for _ in range(2):  # a connection may break
            with suppress(*wheel_conflicts.UNREADABLE, OSError):
                result[wheel.file.sha256] = store.remembered(
                    key, dict[str, str], lambda: wheel_conflicts.opened(source(wheel.url), python)
                )
                return

    def source(url: str) -> Path | RemoteFile:
        if urlsplit(url).scheme == "file":
            return Path(unquote(urlsplit(url).path))
        return RemoteFile(session, locations.with_login(url, logins))

    with http.open_session() as session, parallel.pool(PARALLEL, session.stop) as pool:
        tuple(pool.map(read, (wheel for wheel in wheels if wheel.url)))
    return result
