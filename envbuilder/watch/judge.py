"""Judge a watched command: whether its work was on the device, and how much time was lost.

The code has no side effects. A signed report says what ran on which device, and what the report
does not prove. These statements follow from this judgment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from envbuilder.core.errors import clipped, first, printable
from envbuilder.core.text import percent
from envbuilder.watch import training as rules
from envbuilder.watch.model import MOST_ROWS, Finding, Observed, Watched
from envbuilder.watch.training import (
    MOSTLY,
    NAME,
    NONE_THERE,
    SENTENCE,
    Run,
    device_share,
    finding,
    is_on,
    totals,
)

FEWER_STEPS = 0.5
"""Minimum number of steps that every rank must take, as a fraction of the busiest rank's steps.
Ranks that train together take the same number of steps, except for a few at the end."""
LONG_TRAINING = 20.0
"""Minimum duration of a training run, in seconds, for which means measured from outside are
meaningful."""
THROTTLED = 0.05
OTHERS = 0.25
"""Minimum share of CPU time used by other programs that is reported."""


Rule = Callable[[Run], Iterator[Finding]]


def judged(watched: Watched) -> Watched:
    """Return a copy of the report with its verdict and its findings added.

    The findings are sorted by lost time, largest first. A finding is omitted if another finding
    explains it.
    """
    run = _run(watched)
    findings: list[Finding] = []
    for rule in RULES:
        findings += rule(run)
    kinds = {each.kind for each in findings}
    findings = [each for each in findings if not kinds & CAUSES.get(each.kind, frozenset())]
    findings.sort(key=lambda each: -each.lost)
    if another_environment(watched):
        watched = replace(watched, fingerprint="", lock="")
    return replace(watched, on_device=run.on_device, findings=tuple(findings[:MOST_ROWS]))


def _run(watched: Watched) -> Run:
    """Convert a watched command to the form that the rules judge.

    The results of the command's training processes are averaged. Each process is weighted by its
    matrix work if the work of all processes is known, and otherwise by its duration.
    """
    requested = clipped(watched.requested, NAME)
    weighed = _weighed(watched)
    whole = on_device = 0.0
    for process, weight in weighed:
        share = device_share(process, requested)
        if share is not None:
            whole += weight
            on_device += weight * share
    least = NONE_THERE * sum(weight for _, weight in weighed)
    trained = tuple(process for process, weight in weighed if weight >= least)
    machine = watched.machine
    cpus = machine.cpus
    if machine.quota:
        cpus = max(min(cpus, math.ceil(machine.quota)), 1)
    at_once = _at_once(trained)
    needed = 0
    for process in trained:
        needed += process.threads or 1 if is_on("cpu", requested) else 1
        needed += process.loader.workers if process.loader else 0
    needed = min(-(-needed * at_once // max(len(trained), 1)), machine.cpus)
    seconds = watched.seconds * machine.cpus or math.inf
    others = min((machine.other_seconds or 0.0) / seconds, 1.0)
    if others < OTHERS or machine.cpus * (1 - others) >= min(needed, cpus):
        others = 0.0
    return Run(
        watched=watched,
        trained=trained,
        requested=requested,
        cpus=cpus,
        cpus_each=max(cpus // at_once, 1),
        needed=needed,
        others=others,
        on_device=on_device >= MOSTLY * whole if whole else None,
    )


def _weighed(watched: Watched) -> list[tuple[Observed, float]]:
    """Return the processes that trained, each with its weight.

    The weight is the matrix work of all steps, estimated from the sampled steps. If no work was
    observed for some process, as with compiled code, the weight of every process is its training
    time in seconds instead.
    """
    trained = training(watched)
    weights = []
    for process in trained:
        flops = sum(row.flops for row in process.work)
        weights.append(flops * (process.steps or 1) / (process.windows or 1))
    if not all(weights):
        weights = [process.training_seconds or process.seconds for process in trained]
    return list(zip(trained, weights, strict=True))


def _lasted(trained: Sequence[Observed]) -> float:
    """Return for how many seconds at least one of the processes was training."""
    total = 0.0
    until = 0.0
    for process in sorted(trained, key=lambda process: process.began):
        end = process.began + process.training_seconds
        total += max(end - max(process.began, until), 0.0)
        until = max(end, until)
    return total


def _at_once(trained: Sequence[Observed]) -> int:
    """Return the mean number of processes that trained at the same time.

    The number is rounded, and is at least 1.
    """
    seconds = sum(process.training_seconds for process in trained)
    return max(round(seconds / (_lasted(trained) or math.inf)), 1)


def training(watched: Watched) -> tuple[Observed, ...]:
    """Return the processes that trained, sorted by rank."""
    trained = [p for p in watched.processes if p.steps or p.windows or p.parameters or p.losses]
    return tuple(sorted(trained, key=lambda p: (p.rank or 0, p.pid)))


def another_environment(watched: Watched) -> str:
    """Return the environment of the training if it is not the profile's environment.

    If no process trained, return the environment of the first watched process that ran outside the
    profile's environment. Return an empty string if all processes used the profile's environment.
    """
    for process in training(watched) or watched.processes:
        if process.environment:
            return printable(process.environment, NAME)
    return ""


def environment(watched: Watched) -> str:
    """Return a description of the environment in which the training ran."""
    other = another_environment(watched)
    if other:
        return f"Another environment: {other}"
    if watched.project.environment:
        return f"Profile {watched.profile}, environment {watched.project.environment}"
    return f"Profile {watched.profile}"


def speed(watched: Watched) -> tuple[float, str] | None:
    """Return the training speed and its unit, or None if the speed is unknown.

    Tokens or samples are summed over all processes. The speeds of processes that trained at the
    same time add up, and processes that trained one after another share the total time. If neither
    tokens nor samples were observed, the speed is the highest number of steps per second of any
    process.
    """
    trained = [p for p in training(watched) if p.training_seconds > 0]
    seconds = _lasted(trained)
    for unit in ("tokens", "samples"):
        total = sum(getattr(process, unit) or 0 for process in trained)
        if total and seconds:
            return total / seconds, unit
    steps = max(((p.steps or 0) / p.training_seconds for p in trained), default=0.0)
    return (steps, "steps") if steps > 0 else None


def device(watched: Watched) -> str:
    """Return a text with the title and the name of the device that did most of the work.

    Return `unknown` if neither work nor parameters were observed.
    """
    name = _most(watched, "device")
    shown = printable(name, NAME)
    for process in training(watched):
        for each in process.devices:
            if each.device == name and each.title:
                return f"{printable(each.title, NAME)} ({shown})"
    return shown


def dtype(watched: Watched) -> str:
    """Return the dtype in which most of the work was done, or `unknown` if it was not observed."""
    return printable(_most(watched, "dtype"), NAME)


def framework(watched: Watched) -> str:
    """Return the name and version of the framework that did the training.

    Return "" if no training was observed.
    """
    for process in training(watched):
        return printable(f"{process.framework} {process.version}", NAME)
    return ""


def _most(watched: Watched, field: str) -> str:
    """Return the value of `field` that accounts for most of the matrix work.

    If no work was observed, use the size of the parameters instead. Return `unknown` if neither was
    observed.
    """
    pairs: list[tuple[str, float]] = []
    for process, weight in _weighed(watched):
        rows = totals((getattr(row, field), row.flops) for row in process.work)
        rows = rows or totals((getattr(row, field), row.bytes) for row in process.parameters)
        whole = sum(size for _, size in rows)
        pairs += [(value, weight * size / whole) for value, size in rows]
    for value, _ in totals(pairs):
        return value
    return "unknown"


def _each(rule: Callable[[Observed, Run], Iterator[Finding]]) -> Rule:
    """Turn a rule for one process into a rule that judges every process that trained.

    The new rule yields the worst finding of each kind. A finding names the ranks that it applies
    to, unless it applies to all of them.
    """

    def of_run(run: Run) -> Iterator[Finding]:
        by_kind: dict[str, list[tuple[str, Finding]]] = {}
        for process in run.trained:
            name = f"pid {process.pid}" if process.rank is None else f"rank {process.rank}"
            for each in rule(process, run):
                by_kind.setdefault(each.kind, []).append((name, each))
        for pairs in by_kind.values():
            worst = max((each for _, each in pairs), key=lambda each: each.lost)
            if len(pairs) < len(run.trained):
                names = first([name for name, _ in pairs], 4)
                worst = replace(worst, says=clipped(f"{names}: {worst.says}", SENTENCE))
            yield worst

    return of_run


def _idle_ranks(run: Run) -> Iterator[Finding]:
    """Yield a finding if some ranks took fewer steps than the others.

    The evidence is the number of steps of each rank. A rank is assumed to have a different role,
    such as an actor alongside a learner, if it takes no steps or if its model has other tensors.
    """
    # A rank's own children inherit its number, and do less than it.
    ordered = sorted(run.watched.processes, key=lambda p: (p.steps or 0, p.seconds))
    ranks = {p.rank: p for p in ordered if p.rank is not None}
    # What was killed early wrote its steps when it began.
    trained = [p for p in ranks.values() if p.steps and (p.finished or p.seconds >= LONG_TRAINING)]
    most = max(((p.steps or 0, p.trainable or 0) for p in trained), default=(0, 0))
    idle = [p for p in trained if p.trainable == most[1] and (p.steps or 0) < FEWER_STEPS * most[0]]
    if idle:
        least = idle[0].steps or 0
        yield finding(
            "idle rank",
            f"Rank {first([str(p.rank) for p in idle], 4)} took {least:,} steps, others up to"
            f" {most[0]:,}.",
            "Give every rank the same number of batches (`DistributedSampler`), and check what"
            " this rank waits for or skips.",
            1 - least / most[0],
        )


def _quota(run: Run) -> Iterator[Finding]:
    """Yield a finding if a CPU quota paused the command for a large share of the time."""
    machine = run.watched.machine
    # Linux counts it of each CPU that had something to run.
    of_all = run.watched.seconds * (run.needed or machine.cpus) or math.inf
    share = min((machine.throttled_seconds or 0.0) / of_all, 1.0)
    if share >= THROTTLED:
        yield finding(
            "quota",
            f"The CPU quota stopped the command for {percent(share, 0)} of its CPUs' time.",
            f"Raise the limit, or use fewer threads: `OMP_NUM_THREADS={run.cpus}`.",
            share,
        )


def _load(run: Run) -> Iterator[Finding]:
    """Yield a finding if other programs used CPU time that the training needed."""
    if run.trained and run.others:
        yield finding(
            "load",
            f"Other programs used {percent(run.others, 0)} of this machine's CPUs.",
            "Measure again on a quiet machine before you compare the rate.",
            run.others / 2,
        )


def _environment(run: Run) -> Iterator[Finding]:
    """Yield a finding if the training did not run in the profile's environment."""
    if other := another_environment(run.watched):
        yield finding(
            "environment",
            f"The training ran in another environment, {other}.",
            "Run it with the `python` of the profile's environment. Scripts leave it if they"
            " activate another one or name their own Python.",
            1.0,
        )


RULES: tuple[Rule, ...] = (
    _each(rules.devices),
    _each(rules.autocast),
    _each(rules.copies),
    _each(rules.fallbacks),
    _each(rules.doubles),
    _each(rules.gradients),
    _each(rules.updates),
    _each(rules.modules),
    _each(rules.losses),
    _each(rules.waiting),
    _idle_ranks,
    _quota,
    _load,
    _environment,
)
"""All rules, in one list. They yield the findings that reports, terminals and pages show."""
CAUSES = {
    "no update": frozenset({"gradients", "not finite"}),
    "not learning": frozenset({"gradients", "no update"}),
}
"""The kinds of findings that can cause a kind of finding, by kind. If one of these causes is found,
the finding itself is omitted."""
