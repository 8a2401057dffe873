"""Judge nodes: each by its own result, then each against its equals. Pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core.errors import HostError, InvalidError, VerifyError
from envbuilder.core.text import amount, counted, percent, printable
from envbuilder.fleet import result as results
from envbuilder.fleet.model import LONGEST_REASON, PROVEN, Entry, Outcome
from envbuilder.verify.report.comparison import epoch_seconds
from envbuilder.verify.report.regression import MAX_SLOWDOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envbuilder.fleet.model import Detected, Promise
    from envbuilder.verify.report.model import Report

LEAST_EQUALS = 3
"""With fewer nodes of a kind, a median says nothing about one of them."""
_LONGEST_NAME = 80


class Judged(Struct, frozen=True, kw_only=True):
    """A node's entry, and what decides which nodes are its equals; None without a proof."""

    entry: Entry
    kind: tuple[object, ...] | None = None
    first: float | None = None
    """Seconds of the first epoch."""
    warm: float | None = None
    """Median of the later ones; None if there was one only."""


def unexamined(promise: Promise, outcome: Outcome, detail: str, job: str | None = None) -> Judged:
    """Return the entry of a node that sent no result."""
    return Judged(entry=_entry(promise, outcome, detail, job))


def examined(promise: Promise, job: str, content: bytes, run: str, where: str) -> Judged:
    """Return the entry of a node from what it sent, which may be anything."""
    try:
        result = results.parse(content, where, run=run, job=job, node=promise.node)
        report = results.report_of(result)
    except (InvalidError, VerifyError) as error:
        return unexamined(promise, "mixed-up", error.message, job)
    if report is None:
        outcome, detail = without_report(result.exit_code, result.seconds, result.message)
        entry = _entry(promise, outcome, detail, job)
        return Judged(entry=replace(entry, device=_seen(result.detected)))
    profile = report.profile or ""
    if promise.profile is not None and profile != promise.profile:
        detail = f"its report is of the profile {profile or 'none'}, expected {promise.profile}"
        return unexamined(promise, "mixed-up", detail, job)
    judged = of_report(promise, job, report, result.gpus)
    if result.exit_code is None:
        detail = f"stopped after {amount(result.seconds)} s"
        return replace(judged, entry=replace(judged.entry, outcome="timed-out", detail=detail))
    return judged


def against_equals(judged: Sequence[Judged]) -> tuple[Entry, ...]:
    """Return the entries, with each epoch as a share of its equals' median; much slower is `slow`.

    Equals have the same profile, backend, framework, device and images. A node that did other work
    has no share, and counts in no median.
    """
    groups: dict[tuple[object, ...], list[Judged]] = {}
    for each in judged:
        if each.kind is not None and each.entry.outcome == "verified":
            groups.setdefault(each.kind, []).append(each)
    shares: dict[str, float] = {}
    for group in groups.values():
        if len(group) >= LEAST_EQUALS:
            shares |= _shares(group)
    return tuple(_with_share(each.entry, shares.get(each.entry.node)) for each in judged)


def _shares(group: Iterable[Judged]) -> dict[str, float]:
    seconds = {each.entry.node: each.warm for each in group}
    if None in seconds.values():
        seconds = {each.entry.node: each.first for each in group}
    usual = {node: value for node, value in seconds.items() if value is not None}
    median = statistics.median(usual.values()) if usual else 0.0
    return {node: value / median for node, value in usual.items()} if median else {}


def _with_share(entry: Entry, share: float | None) -> Entry:
    if share is None:
        return entry
    # Negated so that NaN is slow.
    if share <= MAX_SLOWDOWN:
        return replace(entry, share=share)
    detail = (
        f"its epoch took {share:.2f} times as long as the median of its equals;"
        f" at most {amount(MAX_SLOWDOWN)} is usual"
    )
    return replace(entry, share=share, outcome="slow", detail=detail)


def _entry(promise: Promise, outcome: Outcome, detail: str, job: str | None) -> Entry:
    return Entry(
        node=promise.node,
        outcome=outcome,
        promised=promise.profile or "",
        why=promise.why,
        detail=printable(detail, LONGEST_REASON),
        job=job,
    )


def without_report(exit_code: int | None, seconds: float, message: str) -> tuple[Outcome, str]:
    """Return what became of a program that sent no report, from its end and its last lines.

    Without an exit code, it was stopped after these seconds.
    """
    if exit_code is None:
        return "timed-out", f"stopped after {amount(seconds)} s"
    error = _error(message)
    if exit_code == HostError.exit_code:
        return "wrong", error
    return "broken", f"exit code {exit_code}: {error}"


def _error(message: str) -> str:
    """Return the first line of an error message, or the last line of anything else."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    stated = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (stated or lines[-1:] or ["it printed nothing"])[0]


def _seen(detected: Detected) -> str:
    names = ", ".join(dict.fromkeys(detected.accelerators)) or detected.cpu
    fits = f" ({detected.profile} fits)" if detected.profile else ""
    return printable(f"{names or 'nothing known'}{fits}", _LONGEST_NAME)


def of_report(promise: Promise, job: str, report: Report, given: int | None = None) -> Judged:
    """Return the entry of a node from its checked report.

    `given` is how many GPUs the scheduler says, in the job, that it gave; None if it says nothing.
    """
    first, warm = epoch_seconds(report)
    outcome, detail = _of_report(report)
    covered = _gpus(report)
    if outcome in PROVEN:
        outcome, detail = _miscounted(promise, given, covered) or (outcome, detail)
    last = report.epochs[-1] if report.epochs else None
    used = report.device.used or "unknown"
    name = printable(report.device.name or "", _LONGEST_NAME)
    framework = f"{report.framework.name or ''} {report.framework.version or ''}".strip()
    entry = replace(
        _entry(promise, outcome, detail, job),
        device=f"{name} ({used})" if name else used,
        profile=printable(report.profile or "", _LONGEST_NAME),
        backend=printable(report.backend or "", _LONGEST_NAME),
        accelerator=printable(used, _LONGEST_NAME),
        epoch_seconds=first if warm is None else warm,
        images_per_second=last.samples_per_second if last else None,
        accuracy=last.accuracy if last else None,
        framework=printable(framework, _LONGEST_NAME),
        gpus=covered if report.status == "passed" else None,
        gpus_given=promise.gpus or None,
    )
    if entry.partial:
        only = f"{covered} of its {promise.gpus} GPUs was verified (several only with PyTorch)"
        entry = replace(entry, detail=f"{only}; {entry.detail}")
    kind = None
    if report.status == "passed":
        images = (report.partial, report.dataset.train)
        kind = (entry.profile, entry.backend, entry.framework, entry.device, *images)
    return Judged(entry=entry, kind=kind, first=first, warm=warm)


def _gpus(report: Report) -> int:
    """Return how many GPUs a report covers: several only if all of them trained together."""
    if report.device.used == "cpu":
        return 0
    return len(report.scaling.devices) if report.scaling else 1


def _miscounted(promise: Promise, given: int | None, covered: int) -> tuple[Outcome, str] | None:
    """Return the outcome of a node that passed with another number of GPUs; None if it is right."""
    if not promise.gpus_to_prove:
        return None
    listed = counted(promise.gpus, "GPU")
    if given not in {None, promise.gpus}:
        return "wrong", f"the scheduler lists {listed} there, and gave {given} to the job"
    if covered != promise.gpus_to_prove:
        return "wrong", f"the scheduler gave {listed} to the job, and {covered} trained"
    return None


def _of_report(report: Report) -> tuple[Outcome, str]:
    if report.status == "passed":
        if report.speed == "judged":
            accuracy = report.epochs[-1].accuracy if report.epochs else None
            return "verified", f"accuracy {percent(accuracy)}" if accuracy is not None else ""
        return "busy", report.speed_reason or "its report does not say whether its speed counts"
    reason = report.reasons[0] if report.reasons else "no reason is given"
    used = report.device.used
    if used is not None and used != report.device.requested:
        return "wrong", f"it trained on {used}, not on {report.device.requested}: {reason}"
    return ("unproven" if report.status == "unproven" else "failed"), reason
