"""Streams that cannot be written, as shells leave them."""

from __future__ import annotations

import io
import os


class Broken(io.StringIO):
    """A stream whose writes fail: EPIPE (its reader has gone), ENOSPC (full), EBADF (closed)."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))
