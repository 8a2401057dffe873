"""Timing: how long a piece of work takes, and whether the clocks can be trusted.

All durations are measured with ``time.perf_counter``, which is not affected by changes of the
system time. The wall clock is read only to report such changes.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

from .threads import read_text

BLOCK_SECONDS = 0.002
"""Minimum duration of a timed block of calls, so that reading the clock does not count."""

MOST_CALLS = 10_000
MOST_BLOCKS = 25
LEAST_BLOCKS = 3

AGREEMENT = 0.002
"""Fraction by which two clocks may differ: NTP slews some by up to 0.05 % (adjtimex(2))."""

HUNDREDTH = 0.01
WHOLE = 1.0
"""Resolution of /proc/uptime in seconds: hundredths, or whole seconds in some containers."""

JUMP = 1.0
"""Seconds from which a change of the wall clock is reported."""

UPTIME = Path("/proc/uptime")

Wait = Callable[..., None]
"""Waits for a device to finish, at least with the result that it is given."""


def since(began: float) -> float:
    """Return the seconds since ``began``. Raise RuntimeError if the clock did not advance."""
    elapsed = time.perf_counter() - began
    if not elapsed > 0:
        raise RuntimeError(f"the clock that times the work moved by {elapsed:.3f} s during it")
    return elapsed


def timed(wait: Wait, work: Callable[[], Any]) -> Tuple[float, Any]:
    """Return how many seconds ``work`` took to finish on the device, and its result."""
    wait()
    began = time.perf_counter()
    result = work()
    wait(result)
    return since(began), result


def median_seconds(wait: Wait, work: Callable[[], Any], budget: float) -> float:
    """Return the median seconds of one call of ``work``, after two warm-up calls.

    The measurement takes about ``budget`` seconds. Calls are made in blocks; as in real use, the
    device is not synchronized within a block.
    """
    timed(wait, work)
    single, _ = timed(wait, work)
    calls = min(MOST_CALLS, max(1, math.ceil(BLOCK_SECONDS / single)))

    def block() -> Any:
        return [work() for _ in range(calls)]

    samples: List[float] = []
    ends = time.perf_counter() + budget
    while len(samples) < LEAST_BLOCKS or (
        len(samples) < MOST_BLOCKS and time.perf_counter() < ends
    ):
        samples.append(timed(wait, block)[0] / calls)
    return statistics.median(samples)


@dataclass(frozen=True)
class Reading:
    """All clocks at one moment, in seconds.

    ``uptime`` is the kernel's own count, and ``raw`` is the clock that NTP does not slew. Each is
    None if the system lacks it. ``width`` is the time that reading all clocks took, which is the
    most by which their moments may differ.
    """

    counter: float
    monotonic: float
    wall: float
    uptime: Optional[float]
    raw: Optional[float] = None
    width: float = 0.0


def read() -> Reading:
    """Read all clocks now."""
    counter = time.perf_counter()
    raw = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    monotonic = time.monotonic()
    wall = time.time()
    uptime = parse_uptime(read_text(UPTIME))
    return Reading(counter, monotonic, wall, uptime, raw, time.perf_counter() - counter)


def parse_uptime(text: str) -> Optional[float]:
    """Return the seconds since boot in ``/proc/uptime``; None if it does not parse."""
    seconds = re.match(r"[0-9]{1,15}(\.[0-9]+)?\b", text)
    return float(seconds.group()) if seconds else None


def problems(before: Reading, after: Reading) -> Tuple[List[str], str]:
    """Return the reasons why durations between two readings are wrong, and a text about the clocks.

    A change of the wall clock is harmless and only reported. The kernel's uptime continues while a
    machine sleeps, and is not affected by a library that fakes the time of a process.
    """
    elapsed = after.counter - before.counter
    width = before.width + after.width + AGREEMENT * abs(elapsed)
    sentences = []
    if elapsed <= 0:
        sentences.append(f"the clock that times the work moved by {elapsed:.3f} s during it")
    # Each with its resolution; all but the kernel's uptime count in nanoseconds.
    others = {"the monotonic clock": (after.monotonic - before.monotonic, 0.0)}
    if before.raw is not None and after.raw is not None:
        others["the raw clock"] = (after.raw - before.raw, 0.0)
    if before.uptime is not None and after.uptime is not None:
        whole_seconds = before.uptime.is_integer() and after.uptime.is_integer()
        step = WHOLE if whole_seconds else HUNDREDTH
        others["the kernel"] = (after.uptime - before.uptime, step)
    sentences += [
        f"the clock that times the work counted {elapsed:.2f} s and {name} {counted:.2f} s: the"
        " time is faked, or the machine slept; no duration can be trusted"
        for name, (counted, step) in others.items()
        if not abs(counted - elapsed) <= width + step
    ]
    jump = after.wall - before.wall - elapsed
    wall = f"the wall clock was moved by {jump:+.1f} s, " if abs(jump) >= JUMP else ""
    return sentences, f"{wall}{elapsed:.1f} s on {len(others) + 1} clocks that agree"
