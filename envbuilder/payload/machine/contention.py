"""Competition for the processor during timed work, as counted by the system.

Linux counts how long tasks waited for a CPU (pressure), how long a quota kept a cgroup from running
(throttling) and how long the hypervisor ran other machines (steal). Other systems count only this
process's CPU time and context switches. Counts that a system does not provide are None. The counts
are evaluated outside the environment.
"""

from __future__ import annotations

import os
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, FrozenSet, Optional, Sequence, Tuple

from . import threads

STEAL = 8
"""Index of the ticks that the hypervisor took in a line of ``/proc/stat``. (proc(5))"""
BUSY = (1, 2, 3, 6, 7)
"""Indices of those in which a CPU worked: user, nice, system, irq, softirq. Guests are in user."""


@dataclass(frozen=True)
class Reading:
    """All counters at one moment, named as in the report. A counter that is missing is None."""

    seconds: float
    cpu_seconds: float
    pressure_seconds: Optional[float] = None
    cgroup_pressure_seconds: Optional[float] = None
    throttled_seconds: Optional[float] = None
    throttled_periods: Optional[int] = None
    steal_seconds: Optional[float] = None
    involuntary_switches: Optional[int] = None
    busy_seconds: Optional[float] = None


def read(root: Path = threads.ROOT, allowed: Optional[FrozenSet[int]] = None) -> Reading:
    """Return the values of all counters.

    Tests pass ``root`` and ``allowed`` instead of the machine's file system and CPUs.
    """
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
        seconds=time.perf_counter(),
        cpu_seconds=time.process_time(),
        pressure_seconds=parse_pressure(threads.read_text(root / "proc/pressure/cpu")),
        cgroup_pressure_seconds=next((p for p in pressures if p is not None), None),
        throttled_seconds=throttled[0],
        throttled_periods=throttled[1],
        steal_seconds=parse_ticks(stat, cpus, ticks, (STEAL,)),
        involuntary_switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        busy_seconds=parse_ticks(stat, cpus, ticks, BUSY),
    )


def between(before: Reading, after: Reading, workers: Optional[int]) -> Dict[str, Any]:
    """Return what competed for the processor between two readings, in the form of the report.

    ``workers`` is the number of threads that share the work, or None if an accelerator does the
    work.
    """
    limits = threads.fetch()
    result: Dict[str, Any] = {
        "threads": workers,
        "cpus": limits.affinity,
        "quota": limits.quota,
    }
    for name, counted in vars(before).items():
        result[name] = _difference(counted, getattr(after, name))
    busy = result.pop("busy_seconds")
    # Ticks are counted in hundredths of a second, this process's time in nanoseconds.
    own = after.cpu_seconds - before.cpu_seconds
    result["other_seconds"] = None if busy is None else max(0.0, round(busy - own, 6))
    return result


def _difference(before: Optional[float], after: Optional[float]) -> Optional[float]:
    # Steal may run backwards when a virtual machine moves to another host.
    return None if before is None or after is None else max(0, round(after - before, 6))


def parse_pressure(text: str) -> Optional[float]:
    """Return the seconds in which some task waited for a CPU, or None if the text is invalid."""
    total = re.search(r"^some .*\btotal=([0-9]{1,18})\b", text, re.MULTILINE)
    return int(total.group(1)) / 1e6 if total else None


def parse_throttling(text: str) -> Optional[Tuple[float, int]]:
    """Return the throttled seconds and number of throttled periods in a cgroup's ``cpu.stat``.

    Return None if the file does not contain them.
    """
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
    """Return how many seconds the allowed CPUs together spent in some states, from ``/proc/stat``.

    ``columns`` are the columns of these states. ``ticks`` is the number of ticks per second. Return
    None if the file has none of these CPUs or lacks a column.
    """
    names = {f"cpu{number}" for number in allowed}
    counted = []
    for line in re.findall(r"^cpu[0-9]+(?: +[0-9]{1,18}\b)+", text, re.MULTILINE):
        words = line.split()
        if words[0] in names and len(words) > max(columns):
            counted += [int(words[column]) for column in columns]
    return sum(counted) / ticks if counted else None
