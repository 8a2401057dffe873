"""What a server may take of an HTTP session, and the errors of one that takes more.

Apart from `http`, which imports requests only when something is requested.
"""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """What a server may take of one session."""

    timeout: tuple[float, float] = (10.0, 30.0)
    """Seconds to connect, and between two reads."""
    head_bytes: int = 1 << 18
    head_seconds: float = 60.0
    least_bytes: int = 32 << 10
    """What must arrive of a body in each `least_seconds` spent waiting for it."""
    least_seconds: float = 30.0


class LimitError(OSError):
    """A server sends too much, too slowly or for too long; `str` says which, without its name."""


class TooLongError(LimitError):
    """A body is longer than it may be."""
