"""The verification report: its schema, validation, assembly and encoding."""

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
"""Schema version of the payload's part, and therefore of the whole report."""
MOST_LOSSES = 200
MOST_TIMED = 200
MOST_REPEATED = 100
"""Maximum numbers of losses, timed parts and repeated steps. Limits are needed because an
environment may report any number of them."""
_TOO_LARGE = 2**64
"""Smallest number that is rejected as too large. Real counts, sizes and seeds are all smaller."""


class Device(Struct, frozen=True, kw_only=True):
    """The requested device, and information about the device that did the work."""

    requested: str
    used: str | None
    name: str | None = None
    memory_bytes: Size | None = None
    driver: str | None = None
    capability: str | None = None


class Check(Struct, frozen=True, kw_only=True):
    """The outcome of one check."""

    name: str
    status: Literal["passed", "failed", "skipped", "warning"]
    seconds: float
    detail: str


class Epoch(Struct, frozen=True, kw_only=True):
    """One training epoch, with its durations (which exclude evaluation), its loss and its accuracy.

    `accuracy` is the fraction of the test set that was classified correctly.
    """

    seconds: float
    data_seconds: float
    compute_seconds: float
    samples_per_second: float
    loss: float | None
    accuracy: float | None


class Baseline(Struct, frozen=True, kw_only=True):
    """A first training epoch on the CPU, with which the device's first epoch is compared."""

    seconds: float | None = None
    data_seconds: float | None = None
    compute_seconds: float | None = None
    samples_per_second: float | None = None
    loss: float | None = None
    accuracy: float | None = None


class Training(Struct, frozen=True, kw_only=True):
    """A training run: its epochs and its parameters.

    `losses` contains (step, loss) pairs for some of the steps. A loss is null if it is not finite.
    """

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
    """The speed of a compile backend relative to eager mode.

    `counts` is true only if the backend's results were correct.
    """

    counts: bool
    speedup_over_eager: float | None = None


class Gradients(Struct, frozen=True, kw_only=True):
    """The result of comparing every gradient with that of an eager float64 step on the CPU."""

    passed: bool


class Compiled(Struct, frozen=True, kw_only=True):
    """The test results of one compile backend."""

    backend: str
    error: str | None = None
    gradients: Gradients | None = None
    inference: Speed | None = None
    training: Speed | None = None


class ScalingDevice(Struct, frozen=True, kw_only=True):
    """The result of training on one device alone; its speed is null if the training failed."""

    index: Annotated[int, Meta(ge=0)]
    name: str | None = None
    samples_per_second: Positive | None = None
    checks: tuple[Check, ...] = ()


class Scaling(Struct, frozen=True, kw_only=True):
    """The result of data-parallel training on several devices.

    The values of the joint training are null if nothing ran in parallel. `batch` is the global
    batch size, which is 64 per rank (weak scaling). `efficiency` is the joint speed of all devices
    divided by the sum of their individual speeds.
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
    """The values in the payload's report that envbuilder relies on.

    All other values in the payload's report are kept unchanged.
    """

    schema: int
    device: Device
    dataset: Dataset
    checks: tuple[Check, ...]
    training: Training | None
    status: Literal["passed", "failed", "unproven"]
    """`unproven` means that no training step was repeated outside of the environment."""
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
        """The training epochs; empty if nothing was trained."""
        if self.training:
            return self.training.epochs
        return ()

    @property
    def partial(self) -> bool:
        """Whether only a subset of the data was used.

        The subset was either requested or the only data that was available.
        """
        return self.quick or self.dataset.subset

    @property
    def epoch_seconds(self) -> tuple[float | None, float | None]:
        """The duration of the first epoch and the median duration of the later epochs, in seconds.

        The later epochs are called warm. Both values are None if the report has no epochs or if a
        duration is implausible. The median is None if there is only one epoch.
        """
        seconds = [s for e in self.epochs if (s := plausible(e.seconds)) is not None]
        if not seconds or len(seconds) != len(self.epochs):
            return None, None
        return seconds[0], statistics.median(seconds[1:]) if seconds[1:] else None

    @property
    def effective_precision(self) -> str:
        """The effective precision, such as "float32" or "tf32"; empty if it was not reported."""
        if self.precision is None:
            return ""
        return printable(effective(msgspec.to_builtins(self.precision)))

    def baseline_seconds(self) -> float | None:
        """Return the baseline epoch's duration in seconds, or None if the report has none."""
        if self.baseline:
            return self.baseline.seconds
        return None


class Report(Measured, frozen=True, kw_only=True):
    """A complete report: the payload's values, and envbuilder's own facts about the environment.

    This class adds envbuilder's keys, which are on the same level as the keys of `Measured`.
    `against` is present after a comparison with an earlier report. `speed` says whether the times
    can be compared with those of other reports. They cannot if the machine was busy, but this does
    not change the verdict. Older reports have neither `speed` nor `speed_reason`.
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
    """The training steps that were repeated outside the environment. Empty in older reports, and in
    reports of failed runs."""
    speed_reason: str | None = None
    """Why the speed was not judged, or which limit of the environment reduced it."""

    @property
    def speed_counts(self) -> bool:
        """Whether the report's times may be compared with those of other reports.

        This is True for older reports, which have neither `speed` nor `speed_reason`.
        """
        return self.speed == "judged" or (self.speed is None and self.speed_reason is None)


def plausible(seconds: float | None) -> float | None:
    """Return `seconds` if it is a plausible duration greater than 0, otherwise None."""
    if seconds is not None and 0 < seconds < 1e18:
        return seconds
    return None


def restored(report: Any) -> Any:
    """Return a report as it would be after being encoded as JSON and decoded again.

    Characters that control a terminal or hide text are removed. Raise `ValueError`, `TypeError` or
    `RecursionError` if JSON cannot represent the report.
    """
    text = msgspec.json.encode(report).decode()
    return msgspec.json.decode(printable(text, len(text)))


def check(data: Any) -> Report:
    """Return a report as typed data; raise `VerifyError` if it is not valid.

    A report is untrusted, since an environment may send anything. No number in it may be NaN or
    infinite. A report that did not fail must have used the requested device. It must contain
    trained epochs with a duration and an accuracy, and no failed check. All code that stores,
    compares or shows a report gets it from this function. A report that consists of only the
    payload's part is also accepted.
    """
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, int) and schema != SCHEMA:
        other = "a newer"
        if schema < SCHEMA:
            other = "an earlier"
        raise VerifyError(
            f"the report of {other} envbuilder has schema {schema}, expected {SCHEMA}",
            "Verify again with this envbuilder.",
        )
    measured = _typed(data, Report, "the payload's report")
    if measured.status != "failed":
        problem = _contradiction(measured)
        if problem:
            raise VerifyError(f"the payload's report contradicts itself: {problem}")
    return measured


def check_scaling(data: Any) -> Scaling:
    """Return the payload's multi-device report as typed data.

    Raise `VerifyError` if the report is not valid.
    """
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
            return f"passed, although the check of several devices did not: {problem or 'failed'}"
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
    """Return a message if any number is NaN, infinite or too large, otherwise an empty string.

    Python's JSON parser accepts NaN, which passes every check for a maximum because no comparison
    with NaN is true. The parser also accepts integers of any size, which raise an exception in
    arithmetic with floats.
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
    """Return the whole report: envbuilder's facts, followed by the payload's data.

    The facts are, for example, the profile, the artifact and the host. They take precedence over
    keys of the same name in the payload's data.
    """
    own = {"schema": SCHEMA, **facts}
    return {**own, **data, **own}


def absent(required: Iterable[str], checks: Iterable[Check]) -> list[str]:
    """Return the names of the required checks that did not run or did not pass."""
    done = {check.name for check in checks if check.status in {"passed", "warning"}}
    return [name for name in required if name not in done]


def with_check(report: dict[str, Any], name: str, status: str, detail: str) -> dict[str, Any]:
    """Return a report with one check added.

    The report's verdict stays the same, even if the check failed.
    """
    check = {"name": name, "status": status, "seconds": 0.0, "detail": detail}
    return {**report, "checks": [*report["checks"], check]}


is_report = console.has_keys("schema", "checks", "status", "reasons")
"""A function that returns whether a file's content is a verification report."""


def encoded(report: dict[str, Any]) -> str:
    """Return a report as JSON text for a file."""
    return console.as_json(report, indent=1) + "\n"
