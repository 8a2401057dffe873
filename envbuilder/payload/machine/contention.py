"""Competition for the processor during timed work: what the system counted meanwhile.

Linux counts how long tasks waited for a CPU (pressure), how long a quota kept a cgroup from running
(throttling) and how long the hypervisor ran other machines (steal). Other systems count only the
CPU time and the context switches of this process. What is not counted is None. The facts are judged
outside of the environment.
"""

from __future__ import annotations

import os
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from . import threads

STEAL = 8
"""Index of the ticks that the hypervisor took in a line of ``/proc/stat``. (proc(5))"""
BUSY = (1, 2, 3, 6, 7)
"""Indices of those in which a CPU worked: user, nice, system, irq, softirq. Guests are in user."""


@dataclass(frozen=True)
class Reading:
    """All counters at one moment, in seconds or as numbers; None if the system has none."""

    counter: float
    cpu: float
    pressure: Optional[float] = None
    cgroup_pressure: Optional[float] = None
    throttled: Optional[float] = None
    throttled_periods: Optional[int] = None
    steal: Optional[float] = None
    busy: Optional[float] = None
    switches: Optional[int] = None


def read(root: Path = threads.ROOT, allowed: Optional[FrozenSet[int]] = None) -> Reading:
    """Read all counters. ``root`` and ``allowed`` replace the machine in tests."""
    folders = threads.cgroup_folders(
        threads.read_text(root / "proc/self/cgroup"),
        threads.read_text(root / "proc/self/mountinfo"),
    )
    stats = [parse_throttling(threads.read_text(root / name / "cpu.stat")) for name, _ in folders]
    # A quota of any parent throttles, too; each level counts its own.
    throttled = max((stat for stat in stats if stat is not None), default=(None, None))
    pressures = (
        parse_pressure(threads.read_text(root / name / "cpu.pressure"))
        for name, version in folders
        if version == 2
    )
    stat = threads.read_text(root / "proc/stat")
    ticks = os.sysconf("SC_CLK_TCK")
    cpus = threads.allowed_cpus() if allowed is None else allowed
    return Reading(
        counter=time.perf_counter(),
        cpu=time.process_time(),
        pressure=parse_pressure(threads.read_text(root / "proc/pressure/cpu")),
        cgroup_pressure=next((p for p in pressures if p is not None), None),
        throttled=throttled[0],
        throttled_periods=throttled[1],
        steal=parse_ticks(stat, cpus, ticks, (STEAL,)),
        busy=parse_ticks(stat, cpus, ticks, BUSY),
        switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
    )


def between(before: Reading, after: Reading, workers: Optional[int]) -> Dict[str, Any]:
    """Return what happened between two readings, as it appears in the report.

    ``workers`` is the number of threads that share the work, None if an accelerator does it.
    """
    limits = threads.fetch()
    pairs = {
        "seconds": (before.counter, after.counter),
        "cpu_seconds": (before.cpu, after.cpu),
        "pressure_seconds": (before.pressure, after.pressure),
        "cgroup_pressure_seconds": (before.cgroup_pressure, after.cgroup_pressure),
        "throttled_seconds": (before.throttled, after.throttled),
        "throttled_periods": (before.throttled_periods, after.throttled_periods),
        "steal_seconds": (before.steal, after.steal),
        "involuntary_switches": (before.switches, after.switches),
    }
    busy = _difference(before.busy, after.busy)
    return {
        "threads": workers,
        "cpus": limits.affinity,
        "quota": limits.quota,
        **{name: _difference(*pair) for name, pair in pairs.items()},
        # Ticks are counted in hundredths of a second, this process's time in nanoseconds.
        "other_seconds": None
        if busy is None
        else max(0.0, round(busy - (after.cpu - before.cpu), 6)),
    }


def _difference(before: Optional[float], after: Optional[float]) -> Optional[float]:
    # Steal may run backwards when a virtual machine moves to another host.
    return None if before is None or after is None else max(0, round(after - before, 6))


def parse_pressure(text: str) -> Optional[float]:
    """Return the seconds in which some task waited for a CPU; None if the file does not parse."""
    total = re.search(r"^some .*\btotal=([0-9]{1,18})\b", text, re.MULTILINE)
    return int(total.group(1)) / 1e6 if total else None


def parse_throttling(text: str) -> Optional[Tuple[float, int]]:
    """Return a cgroup's throttled seconds and periods from ``cpu.stat``; None if not counted."""
    lines = re.findall(r"^(\w+) +([0-9]{1,18})$", text, re.MULTILINE)
    fields = {name: int(value) for name, value in lines}
    if "nr_throttled" not in fields:
        return None
    # Version 2 counts microseconds, version 1 nanoseconds.
    micro = fields.get("throttled_usec", fields.get("throttled_time", 0) / 1000)
    return micro / 1e6, fields["nr_throttled"]


def parse_ticks(
    text: str, allowed: FrozenSet[int], ticks: int, columns: Sequence[int]
) -> Optional[float]:
    """Return the seconds in some columns of ``/proc/stat``, of the allowed CPUs together.

    None if it has none of these CPUs, or not these columns.
    """
    names = {f"cpu{number}" for number in allowed}
    lines: List[List[str]] = [line.split() for line in text.splitlines()]
    counted = [
        sum(int(words[column]) for column in columns)
        for words in lines
        if len(words) > max(columns)
        and words[0] in names
        and all(_is_number(words[column]) for column in columns)
    ]
    return sum(counted) / ticks if counted else None


def _is_number(text: str) -> bool:
    return len(text) <= 18 and text.isascii() and text.isdigit()
