"""Judge each node by its result, then compare the node with similar nodes.

The code has no side effects. Each node writes its result to a file. This module checks the contents
of that file, because a node may write anything.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.core import decoding
from envbuilder.core.errors import (
    BUILD_FAILED,
    HostError,
    InvalidError,
    VerifyError,
    counted,
    printable,
)
from envbuilder.core.text import amount, percent
from envbuilder.fleet.model import (
    LONGEST_REASON,
    PROVEN,
    Detected,
    Entry,
    JobId,
    NodeName,
    Outcome,
    Promise,
    RunId,
)
from envbuilder.verify.report import model
from envbuilder.verify.report.regression import MAX_SLOWDOWN

LARGEST = 4 << 20
"""Maximum size in bytes of the result that a node writes. A typical report is 20,000 to 60,000
bytes."""
LEAST_EQUALS = 3
"""Minimum number of similar nodes needed for a meaningful median."""
_LONGEST_NAME = 80
"""Maximum number of characters in a name in a node's result."""


class Result(Struct, frozen=True, kw_only=True):
    """The result that a node writes.

    It contains the node's identity, its detected hardware, how the verification ended and, if
    available, the report. The identity protects against mistakes, such as two runs that share a
    folder, but not against a node that lies on purpose.
    """

    schema: Literal[1] = 1
    run: RunId
    job: JobId
    node: NodeName
    host: Annotated[str, Meta(max_length=255)]
    """The host name that the node itself reports."""
    exit_code: int | None
    """The exit code of `envbuilder verify`, or None if the command was stopped because it took too
    long."""
    message: Annotated[str, Meta(max_length=20_000)]
    """The last lines that `envbuilder verify` printed."""
    seconds: Annotated[float, Meta(ge=0, le=1e9)]
    detected: Detected
    gpus: Annotated[int, Meta(ge=0)] | None
    """The number of GPUs that the scheduler allocated to the job. None if the scheduler does not
    report it."""
    report: dict[str, Any] | None


def encode(result: Result) -> bytes:
    """Encode a result as JSON text that `examined` can parse."""
    return msgspec.json.encode(result) + b"\n"


class Judged(Struct, frozen=True, kw_only=True):
    """A node's table row, with the data needed to compare the node with similar nodes.

    Nodes with the same `kind` are similar. `kind` is None if the node did not pass.
    """

    entry: Entry
    kind: tuple[object, ...] | None = None
    first: float | None = None
    """The duration of the first epoch in seconds."""
    warm: float | None = None
    """The median duration of the later epochs in seconds, or None if there was only one epoch."""


def unexamined(promise: Promise, outcome: Outcome, detail: str, job: str | None = None) -> Judged:
    """Return the table row of a node that returned no usable result."""
    return Judged(entry=_entry(promise, outcome, detail, job))


def examined(promise: Promise, run: str, job: str, content: bytes) -> Judged:
    """Judge a node by the content of its result file, which is untrusted.

    Return the node's table row. If the content is malformed, inconsistent or from another job, the
    outcome is `mixed-up`.
    """
    try:
        result = _parsed(content, run=run, job=job, node=promise.node)
        report = None if result.report is None else model.check(result.report)
        _require_agreement(result, report)
    except (InvalidError, VerifyError) as error:
        return unexamined(promise, "mixed-up", error.message, job)
    if report is None:
        outcome, detail = _without_report(result)
        entry = _entry(promise, outcome, detail, job)
        return Judged(entry=replace(entry, device=_seen(result.detected)))
    profile = report.profile or ""
    if promise.profile is not None and profile != promise.profile:
        return unexamined(
            promise,
            "mixed-up",
            f"its report is for profile {profile or 'none'}, expected {promise.profile}",
            job,
        )
    judged = of_report(promise, job, report, result.gpus)
    if result.exit_code is None:
        return replace(
            judged,
            entry=replace(
                judged.entry,
                outcome="timed-out",
                detail=f"stopped after {amount(result.seconds)} s",
            ),
        )
    if result.exit_code == BUILD_FAILED:
        detail = f"verify ended with exit code 1 after its report: {judged.entry.detail}"
        return replace(judged, entry=replace(judged.entry, detail=detail))
    return judged


def _parsed(content: bytes, **expected: str) -> Result:
    """Parse a result. Raise `InvalidError` if it is malformed or belongs to another job."""
    try:
        decoding.require_few_values(content)
        result = decoding.from_json(content, Result)
    except (ValueError, RecursionError) as error:
        problem = printable(str(error), LONGEST_REASON)
        raise InvalidError(f"this is not a node's result: {problem}") from error
    for key, value in expected.items():
        if getattr(result, key) != value:
            raise InvalidError(
                f"the result belongs to {key} {getattr(result, key)}, expected {value}"
            )
    return result


def _require_agreement(result: Result, report: model.Report | None) -> None:
    """Raise `VerifyError` if the exit code and the report contradict each other."""
    if report is None and result.exit_code == 0:
        raise VerifyError("the verification passed, but has no report")
    if report is None:
        return
    is_other = result.exit_code == 0
    if report.status != "failed":
        is_other = result.exit_code not in {0, BUILD_FAILED}
    if is_other:
        raise VerifyError(
            f"the verification ended with exit code {result.exit_code}, but its report says"
            f" {report.status}"
        )


def against_equals(judged: Sequence[Judged]) -> tuple[Entry, ...]:
    """Compare the nodes with similar nodes, and return their table rows.

    Similar nodes have the same profile, backend, framework, device and images. Each row contains
    the node's epoch time divided by the median of similar nodes, unless there are too few of them.
    A node that is much slower gets the outcome `slow`.
    """
    groups: dict[tuple[object, ...], list[Judged]] = {}
    for node in judged:
        if node.kind is not None and node.entry.outcome == "verified":
            groups.setdefault(node.kind, []).append(node)
    shares: dict[str, float] = {}
    for group in groups.values():
        if len(group) >= LEAST_EQUALS:
            shares |= _shares(group)
    return tuple(_with_share(node.entry, shares.get(node.entry.node)) for node in judged)


def _shares(group: Iterable[Judged]) -> dict[str, float]:
    seconds = {node.entry.node: node.warm for node in group}
    if None in seconds.values():
        seconds = {node.entry.node: node.first for node in group}
    usual = {node: value for node, value in seconds.items() if value is not None}
    median = 0.0
    if usual:
        median = statistics.median(usual.values())
    if median:
        return {node: value / median for node, value in usual.items()}
    return {}


def _with_share(entry: Entry, share: float | None) -> Entry:
    if share is None:
        return entry
    # Negated so that NaN is slow.
    if share <= MAX_SLOWDOWN:
        return replace(entry, share=share)
    return replace(
        entry,
        share=share,
        outcome="slow",
        detail=f"its epoch took {share:.2f} times as long as the median of similar nodes,"
        f" more than {amount(MAX_SLOWDOWN)}",
    )


def _entry(promise: Promise, outcome: Outcome, detail: str, job: str | None) -> Entry:
    return Entry(
        node=promise.node,
        outcome=outcome,
        promised=promise.profile or "",
        why=promise.why,
        detail=printable(detail, LONGEST_REASON),
        job=job,
    )


def _without_report(result: Result) -> tuple[Outcome, str]:
    """Return the outcome of a node that sent no report, and the reason for the outcome."""
    if result.exit_code is None:
        return "timed-out", f"stopped after {amount(result.seconds)} s"
    # The first line of an error message, or the last line of anything else.
    lines = [line.strip() for line in result.message.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    error = (errors or lines[-1:] or ["it printed nothing"])[0]
    if result.exit_code == HostError.exit_code:
        return "wrong", error
    return "broken", f"exit code {result.exit_code}: {error}"


def _seen(detected: Detected) -> str:
    names = ", ".join(dict.fromkeys(detected.accelerators)) or detected.cpu
    fits = ""
    if detected.profile:
        fits = f" ({detected.profile} fits)"
    return printable(f"{names or 'nothing known'}{fits}", _LONGEST_NAME)


def of_report(promise: Promise, job: str, report: model.Report, given: int | None = None) -> Judged:
    """Return the table row of a node, based on its report, which has already been checked.

    `given` is the number of GPUs that the scheduler allocated to the job, or None if the scheduler
    does not report it.
    """
    first, warm = report.epoch_seconds
    outcome, detail = _of_report(report)
    # Several only if all of them trained together.
    several = 1
    if report.scaling:
        several = len(report.scaling.devices)
    covered = 0 if report.device.used == "cpu" else several
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
        epoch_seconds=first if warm is None else warm,
        accuracy=last.accuracy if last else None,
        framework=printable(framework, _LONGEST_NAME),
        gpus=covered if report.status == "passed" else None,
        gpus_given=promise.gpus or None,
    )
    if entry.partial:
        only = f"{covered} of its {promise.gpus} GPUs was verified (only PyTorch supports several)"
        entry = replace(entry, detail=f"{only}; {entry.detail}")
    kind = None
    if report.status == "passed":
        images = (report.partial, report.dataset.train)
        kind = (entry.profile, entry.backend, entry.framework, entry.device, *images)
    return Judged(entry=entry, kind=kind, first=first, warm=warm)


def _miscounted(promise: Promise, given: int | None, covered: int) -> tuple[Outcome, str] | None:
    """Return the outcome and its reason if the verification covered the wrong number of GPUs.

    The same applies if `given`, the number of GPUs that the scheduler allocated to the job, is not
    the number of GPUs on the node. Return None if the numbers are correct, or if the node need not
    prove any GPUs. Call this function only for a node that has otherwise passed.
    """
    if not promise.gpus_to_prove:
        return None
    gpus = counted(promise.gpus, "GPU")
    if given not in {None, promise.gpus}:
        return "wrong", f"the scheduler lists {gpus} on this node, but gave {given} to the job"
    if covered != promise.gpus_to_prove:
        return "wrong", f"the scheduler gave {gpus} to the job, but {covered} trained"
    return None


def _of_report(report: model.Report) -> tuple[Outcome, str]:
    if report.status == "passed":
        if report.speed == "judged":
            accuracy = report.epochs[-1].accuracy if report.epochs else None
            return "verified", f"accuracy {percent(accuracy)}" if accuracy is not None else ""
        return "busy", report.speed_reason or "its report does not say whether the speed was judged"
    reason = "the report gives no reason"
    if report.reasons:
        reason = report.reasons[0]
    used = report.device.used
    if used is not None and used != report.device.requested:
        return "wrong", f"it trained on {used}, not on {report.device.requested}: {reason}"
    return ("unproven" if report.status == "unproven" else "failed"), reason
