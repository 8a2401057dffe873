"""The verification report: schema, validation of the payload's part, assembly, writing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import console, decoding
from envbuilder.core.errors import VerifyError, printable
from envbuilder.payload.numerics.precision import effective
from envbuilder.verify.report.measurements import (
    Artifact,
    Contention,
    Count,
    Dataset,
    Framework,
    Host,
    Measurements,
    Origins,
    Positive,
    Precision,
    Repeated,
    Size,
    Threads,
)

_T = TypeVar("_T")
SCHEMA = 2
"""Of the payload's part, and so of the whole report."""
MOST_LOSSES = 200
MOST_TIMED = 200
MOST_REPEATED = 100
"""Losses, timed parts and repeated steps: an environment may report any number."""
_TOO_LARGE = 2**64
"""No count, size or seed is as large, whatever an environment reports."""


class Device(Struct, frozen=True, kw_only=True):
    """The requested device, and the one that did the work."""

    requested: str
    used: str | None
    name: str | None = None
    memory_bytes: Size | None = None
    driver: str | None = None
    capability: str | None = None


class Check(Struct, frozen=True, kw_only=True):
    """One check's outcome."""

    name: str
    status: Literal["passed", "failed", "skipped", "warning"]
    seconds: float
    detail: str


class Epoch(Struct, frozen=True, kw_only=True):
    """One training pass: seconds without evaluation, accuracy as a fraction of the test set."""

    seconds: float
    data_seconds: float
    compute_seconds: float
    samples_per_second: float
    loss: float | None
    accuracy: float | None


class Baseline(Struct, frozen=True, kw_only=True):
    """The first training pass on the CPU, to compare with."""

    seconds: float | None = None
    data_seconds: float | None = None
    compute_seconds: float | None = None
    samples_per_second: float | None = None
    loss: float | None = None
    accuracy: float | None = None


class Training(Struct, frozen=True, kw_only=True):
    """All training passes. `losses` holds (step, loss) of some steps; null: not finite."""

    epochs: tuple[Epoch, ...]
    cold_start_seconds: float | None = None
    losses: Annotated[tuple[tuple[Count, float | None], ...], Meta(max_length=MOST_LOSSES)] = ()
    batch: Count | None = None
    seed: int | None = None
    optimizer: str | None = None
    min_accuracy: float | None = None
    extension: str | None = None
    reordered: str | None = None
    memory_format: str | None = None
    dropout: str | None = None


class Speed(Struct, frozen=True, kw_only=True):
    """A compile backend's speed as a ratio; `counts` is true only if its results were right."""

    counts: bool
    speedup_over_eager: float | None = None


class Gradients(Struct, frozen=True, kw_only=True):
    """Whether every gradient agreed with the eager float64 step on the CPU."""

    passed: bool


class Compiled(Struct, frozen=True, kw_only=True):
    """One compile backend that was tried."""

    backend: str
    error: str | None = None
    gradients: Gradients | None = None
    inference: Speed | None = None
    training: Speed | None = None


class ScalingDevice(Struct, frozen=True, kw_only=True):
    """One device alone: its training speed, or null if it failed."""

    index: Annotated[int, Meta(ge=0)]
    name: str | None = None
    samples_per_second: Positive | None = None
    checks: tuple[Check, ...] = ()


class Scaling(Struct, frozen=True, kw_only=True):
    """Several devices in data parallel; null if nothing ran in parallel.

    `batch` is the global batch, 64 per rank (weak scaling). `efficiency` is the speed of all
    devices together divided by the sum of their speeds alone.
    """

    devices: tuple[ScalingDevice, ...]
    ranks: Annotated[int, Meta(ge=0)]
    status: Literal["passed", "failed"]
    backend: str | None = None
    batch: Annotated[int, Meta(ge=0)] | None = None
    samples_per_second: Positive | None = None
    efficiency: Positive | None = None
    gradients_equal: bool | None = None
    checks: tuple[Check, ...] = ()
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Measured(Struct, frozen=True, kw_only=True):
    """What the payload reports, as far as envbuilder relies on it; the rest is kept as it is."""

    schema: int
    device: Device
    dataset: Dataset
    checks: tuple[Check, ...]
    training: Training | None
    status: Literal["passed", "failed", "unproven"]
    """`unproven`: nothing outside of the environment repeated a step of the training."""
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    quick: bool = False
    framework: Framework = Framework()
    precision: Precision | None = None
    threads: Threads = Threads()
    origins: Origins | None = None
    compile: tuple[Compiled, ...] = ()
    measurements: Measurements | None = None
    contention: Annotated[dict[str, Contention], Meta(max_length=MOST_TIMED)] = {}
    scaling: Scaling | None = None
    speedup: float | None = None
    baseline: Baseline | None = None
    traceback: str | None = None

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """Return the training passes; empty if nothing was trained."""
        if self.training:
            return self.training.epochs
        return ()

    @property
    def partial(self) -> bool:
        """Return whether it trained on a subset, as requested or for lack of the full data."""
        return self.quick or self.dataset.subset

    @property
    def epoch_seconds(self) -> tuple[float | None, float | None]:
        """Return the seconds of the first epoch and the median of the later, warm ones, or None."""
        seconds = [s for e in self.epochs if (s := plausible(e.seconds)) is not None]
        if not seconds or len(seconds) != len(self.epochs):
            return None, None
        return seconds[0], statistics.median(seconds[1:]) if seconds[1:] else None

    @property
    def effective_precision(self) -> str:
        """Return the effective precision, such as "float32" or "tf32"; empty if not reported."""
        if self.precision is None:
            return ""
        return printable(effective(msgspec.to_builtins(self.precision)))

    def baseline_seconds(self) -> float | None:
        """Return how long the baseline's epoch took; None without a baseline or a number."""
        if self.baseline:
            return self.baseline.seconds
        return None


class Report(Measured, frozen=True, kw_only=True):
    """A whole report: what the payload reports, and what envbuilder knows of the environment.

    Only these keys are envbuilder's own; those of `Measured` are on the same level. `against` is
    there after a comparison with an earlier report. `speed` says whether the times count: they are
    not judged if the machine was busy, which changes no verdict; older reports have neither `speed`
    nor a reason.
    """

    profile: str | None = None
    backend: str | None = None
    artifact: Artifact = Artifact()
    fingerprint: str | None = None
    host: Host = Host()
    envbuilder: str | None = None
    time: str | None = None
    against: dict[str, Any] | None = None
    speed: Literal["judged", "not_judged"] | None = None
    steps: Annotated[tuple[Repeated, ...], Meta(max_length=MOST_REPEATED)] = ()
    """Training steps that were repeated outside; empty in older and in failed reports."""
    speed_reason: str | None = None
    """Why the speed was not judged, or what of its own limited it."""

    @property
    def speed_counts(self) -> bool:
        """Return whether its times may be compared; true for reports that say nothing of it."""
        return self.speed == "judged" or (self.speed is None and self.speed_reason is None)

    @property
    def is_yardstick(self) -> bool:
        """Return whether later reports may be compared with it: it passed on a quiet machine."""
        return self.status == "passed" and self.speed_counts


def plausible(seconds: float | None) -> float | None:
    """Return a duration if it is plausible and positive, else None."""
    if seconds is not None and 0 < seconds < 1e18:
        return seconds
    return None


def restored(report: Any) -> Any:
    """Return a report as JSON restores it, without characters that act on a terminal or hide text.

    Raises `ValueError`, `TypeError` or `RecursionError` if JSON cannot represent it.
    """
    text = msgspec.json.encode(report).decode()
    return msgspec.json.decode(printable(text, len(text)))


def check(data: Any) -> Report:
    """Return a report as typed data; raise `VerifyError` if it is not valid.

    A report is untrusted: an environment may send anything. No number in it may be NaN or infinite.
    A report that did not fail must have used the requested device, contain trained epochs with a
    duration and an accuracy, and contain no failed check. Everything that keeps, compares or shows
    a report takes it from here; the payload's part alone is valid, too.
    """
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, int) and schema != SCHEMA:
        other = "a newer"
        if schema < SCHEMA:
            other = "an earlier"
        raise VerifyError(
            f"the report has schema {schema}, expected {SCHEMA}: {other} envbuilder made it",
            "Verify again with this one.",
        )
    measured = _typed(data, Report, "the payload's report")
    if measured.status != "failed":
        problem = _contradiction(measured)
        if problem:
            raise VerifyError(f"the payload's report contradicts itself: {problem}")
    return measured


def check_scaling(data: Any) -> Scaling:
    """Return the payload's report on several devices; raise `VerifyError` if it is not valid."""
    scaling = _typed(data, Scaling, "the scaling report")
    problem = _scaling_contradiction(scaling)
    if problem:
        raise VerifyError(f"the scaling report contradicts itself: {problem}")
    return scaling


def _typed(data: Any, kind: type[_T], subject: str) -> _T:
    problem: object = _unusable_number(data)
    try:
        if not problem:
            return decoding.convert(data, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        problem = error
    raise VerifyError(f"{subject} is malformed: {problem}")


def _scaling_contradiction(scaling: Scaling) -> str:
    if scaling.status == "failed":
        return ""
    checks = [*scaling.checks]
    for device in scaling.devices:
        checks += device.checks
    if any(c.status == "failed" for c in checks):
        return "passed, although a check failed"
    devices = {device.index for device in scaling.devices}
    if not scaling.ranks or not len(devices) == len(scaling.devices) == scaling.ranks:
        return f"passed with {scaling.ranks} ranks on {len(devices)} devices"
    if any(device.samples_per_second is None for device in scaling.devices):
        return "passed, although not every device trained"
    if scaling.ranks > 1 and (not scaling.gradients_equal or scaling.efficiency is None):
        return "passed, although the ranks did not train together"
    return ""


def _contradiction(measured: Measured) -> str:
    if measured.scaling is not None:
        problem = _scaling_contradiction(measured.scaling)
        if problem or measured.scaling.status == "failed":
            return f"passed, although several devices did not: {problem or 'failed'}"
    failed = [c.name for c in measured.checks if c.status == "failed"]
    if failed:
        return f"passed, although these checks failed: {', '.join(failed)}"
    if measured.device.used != measured.device.requested:
        return (
            f"passed on {measured.device.used}, although {measured.device.requested} was requested"
        )
    return _epochs_contradiction(measured.epochs)


def _epochs_contradiction(epochs: tuple[Epoch, ...]) -> str:
    if not epochs or epochs[-1].accuracy is None:
        return "passed without a trained epoch"
    for epoch in epochs:
        if epoch.seconds <= 0 or epoch.samples_per_second <= 0:
            return f"passed although an epoch took {epoch.seconds:g} s"
        if epoch.accuracy is not None and not 0 <= epoch.accuracy <= 1:
            return f"passed with an accuracy of {epoch.accuracy:g}"
    return ""


def _unusable_number(data: Any) -> str:
    """Return that a number is NaN, infinite or too large; empty if none is.

    Python's JSON parser accepts NaN, and NaN passes every check for a violated limit. It accepts
    integers of any size, too, with which arithmetic on floats ends in an exception.
    """
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, float) and not math.isfinite(value):
            return "a number is not finite"
        elif isinstance(value, int) and abs(value) >= _TOO_LARGE:
            return "a number is too large"
    return ""


def assemble(data: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the whole report: facts (profile, artifact, host …), then the payload's data.

    The payload's data change no fact.
    """
    own = {"schema": SCHEMA, **facts}
    return {**own, **data, **own}


def absent(required: Iterable[str], checks: Iterable[Check]) -> list[str]:
    """Return which of the required checks are not among those that ran and did not fail."""
    done = {check.name for check in checks if check.status in {"passed", "warning"}}
    return [name for name in required if name not in done]


def with_check(report: dict[str, Any], name: str, status: str, detail: str) -> dict[str, Any]:
    """Return a report with one more check; a failed one does not change its verdict."""
    check = {"name": name, "status": status, "seconds": 0.0, "detail": detail}
    return {**report, "checks": [*report["checks"], check]}


is_report = console.has_keys("schema", "checks", "status", "reasons")
"""Whether a file's content is a report of a verification."""


def encoded(report: dict[str, Any]) -> str:
    """Return a report as the text of a file."""
    return console.as_json(report, indent=1) + "\n"
