"""A time in which nobody really sleeps."""

from __future__ import annotations

from collections.abc import Callable


class Time:
    """A clock that only sleep moves; something may happen at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: dict[float, Callable[[], None]] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at in [at for at in self.events if at <= self.now]:
            self.events.pop(at)()
