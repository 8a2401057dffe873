"""What is left of the processes that a test started."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def left_over(mark: str) -> list[str]:
    """Processes that carry the mark in their environment."""
    processes = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            # A process that has ended but was not collected has no environment any more.
            if mark.encode() in (place / "environ").read_bytes():
                processes.append(f"{place.name}: {(place / 'cmdline').read_bytes()!r}")
        except OSError:
            continue
    return processes


def wait_for(what: Callable[[], bool], seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if what():
            return True
        time.sleep(0.2)
    return what()
