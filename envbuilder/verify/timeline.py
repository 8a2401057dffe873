"""Check reported training times against the arrival times of the payload's events.

A report states how long each training pass took. Each pass is enclosed by two events, so the time
between their arrivals, measured by this process's monotonic clock, bounds its duration,
independent of the clocks in the environment.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_INTERVAL = 0.02
"""Seconds between two samples of this process's scheduling delay."""

_MOST, _LONGEST = 10_000, 200
"""Maximum number of phases and length of a name: an environment may send any number."""

_SLACK, _SHARE = 0.25, 0.01
"""How much a pass may differ from the time between its events: seconds, plus a fraction of that
time. Events pass through a pipe, and those of a container also through the engine."""

_DELAYS = 3
"""An event passes through up to three processes (payload, engine, this one), all delayed."""

_EXCUSED = 0.5
"""Most of the time between two events that delays excuse."""

_LATEST = 1.0
"""Longest delay in seconds that an overloaded machine causes: two cores with a load of ten and a
busy disk gave 0.1. Beyond it this process was stopped, and what it measured confirms nothing."""


class Timeline:
    """Arrival times of phases, and the scheduling delays of this process.

    As a context manager it samples those delays, so that a busy machine is not mistaken for a wrong
    clock.
    """

    def __init__(self) -> None:
        self._arrivals: dict[str, float] = {}
        self._delays: dict[int, float] = {}
        """The longest delay within each second, in seconds."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.is_set():
            before = time.monotonic()
            time.sleep(_INTERVAL)
            now = time.monotonic()
            self.delayed(now - before - _INTERVAL, now)

    def arrived(self, phase: str, now: float | None = None) -> None:
        """Record that a phase began; only its first event counts."""
        if len(self._arrivals) < _MOST and len(phase) <= _LONGEST:
            self._arrivals.setdefault(phase, time.monotonic() if now is None else now)

    def delayed(self, seconds: float, now: float) -> None:
        """Record that this process ran `seconds` late."""
        self._delays[int(now)] = max(seconds, self._delays.get(int(now), 0.0))

    def problems(self, passes: Sequence[tuple[str, float]]) -> list[str]:
        """Return a sentence per pass (phase, reported seconds) that the arrivals contradict."""
        sentences = []
        for phase, seconds in passes:
            begun, ended = self._arrivals.get(phase), self._arrivals.get(f"test {phase}")
            if begun is None or ended is None:
                sentences.append(f"{phase} is reported, but its start or end was not observed")
                continue
            elapsed, late = ended - begun, self._latest(begun, ended)
            excused = min(_DELAYS * late, max(_SLACK, _EXCUSED * elapsed))
            if late > _LATEST:
                sentences.append(
                    f"{phase} cannot be timed: envbuilder itself stood still for {late:.1f} s"
                    " around it, so it was stopped, or the machine is overloaded"
                )
            elif not abs(elapsed - seconds) <= _SLACK + _SHARE * elapsed + excused:
                sentences.append(
                    f"{phase} took {seconds:.2f} s by the report, but measured from outside it"
                    f" took {elapsed:.2f} s"
                )
        return sentences

    def _latest(self, begun: float, ended: float) -> float:
        """Return the longest delay of this process around a pass."""
        around = range(int(begun) - 1, int(ended) + 2)
        return max((self._delays.get(second, 0.0) for second in around), default=0.0)
