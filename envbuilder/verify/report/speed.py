"""Decide whether a report's times may be compared, or whether other work disturbed them.

All functions are pure. A busy machine is not the same as a slow one: its times do not prove a
regression, and nothing may be compared with them. The thresholds come from measurements on two
cores (docs/evidence/tried.md#a-busy-machine). This module cannot detect contention that uses no CPU
time (for memory bandwidth, caches or a shared GPU).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envbuilder.core.errors import printable
from envbuilder.core.text import percent
from envbuilder.verify.report import model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.verify.report.measurements import Contention

BUSY = "machine busy"
MOST_WAITING = 0.10
"""Largest accepted fraction of the time during which some task waits for a CPU.

The kernel averages this fraction over the CPUs in use, so two threads that wait for each other lose
at most twice this fraction. Their work then takes at most 1.25 times as long, which is less than
the limit for a regression (1.3). The fraction was 0.01 to 0.08 on idle machines, and 0.27 to 1.0 on
machines with other jobs.
"""

LEAST_OTHER = 0.05
"""Smallest fraction of the CPUs' time that other programs must have used to be blamed for waiting.

XLA and TensorFlow have more threads than there are CPUs, and these threads wait for each other. On
an idle machine, they waited for 15 and 18 % of the time, although other programs used only 1 %.
"""

MOST_STOLEN = 0.05
"""Fraction of the CPUs' time from which times no longer count if a hypervisor took it. On idle
machines, the fraction was less than 0.005."""

LEAST_CPU = 0.75
MOST_SWITCHES = 100
"""Limits that apply if the pressure is unknown.

`LEAST_CPU` is the smallest accepted fraction of the CPU time that the threads could have used.
`MOST_SWITCHES` is the largest accepted number of involuntary context switches per second. On idle
machines, the fraction was at least 0.97. Threads that sleep while they wait for each other use less
CPU time, but are seldom interrupted. With other jobs, the fraction was mostly 0.1 to 0.7, with 109
to 2,400 switches per second.

`LEAST_CPU` is always also the smallest accepted fraction of one CPU's time, because at least one
thread computes while others wait. (XLA and TensorFlow on two cores used 1.5 to 1.8 CPUs.) Only this
limit reveals that a process was stopped.
"""

SHORTEST_SECONDS = 1e-6
"""Shortest duration of work that can be judged, in seconds: no clock used here can measure less."""

_NAMED = 3
"""Maximum number of pieces of work that a reason lists by name."""


def with_speed(report: dict[str, Any]) -> dict[str, Any]:
    """Return the whole report with `speed` and `speed_reason` added.

    If envbuilder could not confirm the times with its own clock, the report's key `untimed` already
    contains the reason.
    """
    measured = model.check(report)
    if not measured.epochs:
        return {**report, "speed": "not_judged", "speed_reason": "nothing was trained"}
    timed = {f"epoch {number}": epoch for number, epoch in enumerate(measured.epochs, 1)}
    more = {"baseline epoch 1": measured.baseline, "measurements": measured.measurements}
    uncounted = [n for n, made in (timed | more).items() if made and n not in measured.contention]
    unknown = [f"it is unknown whether the machine was busy during {n}" for n in uncounted[:1]]
    reason = report.get("untimed") or disturbance(measured.contention) or "".join(unknown)
    if reason:
        return {**report, "speed": "not_judged", "speed_reason": reason}
    return {**report, "speed": "judged", "speed_reason": limitation(measured.contention) or None}


def disturbance(contention: Mapping[str, Contention]) -> str:
    """Return why the times may not be compared, or an empty string if no disturbance is known."""
    reasons = [
        f"{printable(name, 60)}: {reason}"
        for name, facts in contention.items()
        if (reason := busy(facts))
    ]
    more = ""
    if len(reasons) > _NAMED:
        more = f"; and {len(reasons) - _NAMED} more"
    if reasons:
        return f"{BUSY}: {'; '.join(reasons[:_NAMED])}{more}"
    return ""


def busy(facts: Contention) -> str:
    """Return how other work disturbed one timed piece of work, or an empty string if it did not.

    Time spent waiting for a CPU is regarded as a disturbance, unless the environment's own limits
    explain it. If they do, or if the time spent waiting is unknown, the decision depends on how
    much CPU time the work used. Work that hardly ran was disturbed in any case.
    """
    if facts.seconds < SHORTEST_SECONDS:
        return ""
    stolen = (facts.steal_seconds or 0.0) / (facts.seconds * facts.cpus)
    if stolen >= MOST_STOLEN:
        return f"the hypervisor took {percent(min(stolen, 1.0), 0)} of the CPU time"
    waited = facts.cgroup_pressure_seconds
    waited = facts.pressure_seconds if waited is None else waited
    pressure = None if waited is None or _limited(facts) else min(waited / facts.seconds, 1.0)
    # Nothing was taken from it if others are known to have hardly worked on its CPUs.
    least = LEAST_OTHER * facts.seconds * facts.cpus
    alone = facts.other_seconds is not None and facts.other_seconds < least
    if pressure is not None and pressure >= MOST_WAITING and not alone:
        return f"tasks waited for a CPU {_of_time(pressure)}"
    if facts.threads is None:
        return ""
    usable = min(facts.threads, facts.cpus, facts.quota or facts.cpus)
    share = facts.cpu_seconds / (facts.seconds * usable)
    switches = (facts.involuntary_switches or 0) / facts.seconds
    if pressure is None and share < LEAST_CPU and switches > MOST_SWITCHES:
        return (
            f"it got {percent(share, 0)} of its CPU time and was interrupted {switches:.0f} times"
            " per second"
        )
    ran = share * max(usable, 1)
    stopped = f"it ran for {_of_time(ran)}, so it was stopped or waited for a disk"
    return stopped if ran < LEAST_CPU else ""


def limitation(contention: Mapping[str, Contention]) -> str:
    """Return which of the environment's own limits slowed the work, or an empty string if none did.

    Such a limit has the same effect on any machine.
    """
    for facts in contention.values():
        if facts.throttled_periods and facts.quota is not None:
            return f"limited by its own quota of {facts.quota:g} CPUs"
        if facts.threads is not None and facts.threads > facts.cpus:
            return f"limited by its own {facts.threads} threads on {facts.cpus} CPUs"
    return ""


def _limited(facts: Contention) -> bool:
    """Return whether the environment's own quota or number of threads made tasks wait for a CPU."""
    most = min(facts.cpus, facts.quota or facts.cpus)
    throttled = facts.quota is not None and bool(facts.throttled_periods)
    return throttled or (facts.threads is not None and facts.threads > max(1, most))


def _of_time(share: float) -> str:
    return f"{percent(share, 0)} of the time"
