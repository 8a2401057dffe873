"""Events on stdout, one JSON object per line. The output of libraries goes to stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any, Callable, Dict, List, Optional, TextIO

PROGRESS_INTERVAL = 0.5
"""Minimum seconds between two progress events of one phase; its last one is always written."""


def take_stdout() -> TextIO:
    """Reserve the real stdout for events and redirect all other output to stderr.

    File descriptor 1 itself is redirected, so the output of C++ libraries and child processes also
    goes to stderr.
    """
    sys.stdout.flush()
    duplicate = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(duplicate, "w", encoding="utf-8")


class Events:
    """A writer of events, one per line, flushed at once. The report includes the run's id."""

    def __init__(
        self, stream: TextIO, run_id: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._run_id = run_id
        self._clock = clock
        self._last_progress: Optional[float] = None

    def phase(self, name: str) -> None:
        """Write an event that says that a new phase of the work begins."""
        self._last_progress = None
        self.write("phase", name=name)

    def progress(
        self, phase: str, done: int, total: int, loss: Optional[Callable[[], float]] = None
    ) -> None:
        """Write that ``done`` of ``total`` steps are finished, at most about twice a second.

        ``loss`` fetches the loss of the last step from the device. Because that waits for the
        device, ``loss`` is called only for events that are actually written.
        """
        now = self._clock()
        recent = self._last_progress is not None and now - self._last_progress < PROGRESS_INTERVAL
        if recent and done < total:
            return
        self._last_progress = now
        content: Dict[str, Any] = {"phase": phase, "done": done, "total": total}
        if loss is not None:
            content["loss"] = finite(loss())
        self.write("progress", **content)

    def answers(self, first: int, classes: List[int], scores: List[List[float]]) -> None:
        """Write the classes and log-probabilities of consecutive images.

        ``first`` is the number of the first of these images.
        """
        self.write("answers", first=first, classes=classes, scores=finite(scores))

    def report(self, report: Dict[str, Any]) -> None:
        """Write the report as the final event.

        NaN and infinity become null, since JSON has neither.
        """
        self.write("report", run_id=self._run_id, report=finite(report))

    def write(self, event: str, **content: Any) -> None:
        """Write an event of the given type, such as "error" with a message."""
        self._stream.write(json.dumps({"event": event, **content}, allow_nan=False) + "\n")
        self._stream.flush()


def finite(value: Any) -> Any:
    """Return a copy of ``value`` with every NaN and infinity, at any depth, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(finite, value)]
    return value
