"""Whether the machine works for nobody else: what speed can be told of then."""

from __future__ import annotations

import time

from envbuilder.payload.machine import contention
from envbuilder.verify.report.speed import LEAST_OTHER

_GLANCE_SECONDS = 3.0


def wait_until_quiet(seconds: float) -> str:
    """Wait until others leave the CPUs alone; return what they do if they have not by then."""
    deadline = time.monotonic() + seconds
    while (share := _share_of_others()) >= LEAST_OTHER:
        if time.monotonic() > deadline:
            return f"other work takes {share:.0%} of its CPU time, after {seconds:.0f} s of waiting"
    return ""


def _share_of_others() -> float:
    """How much of the CPUs' time others take; 0 where that is not counted."""
    before = contention.read()
    time.sleep(_GLANCE_SECONDS)
    counted = contention.between(before, contention.read(), None)
    return (counted["other_seconds"] or 0.0) / (counted["seconds"] * counted["cpus"])
