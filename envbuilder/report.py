"""The verification report: what the payload measured, checked at the door, with what we know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from envbuilder import atomic
from envbuilder.errors import VerifyError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1


class Device(Struct, frozen=True, kw_only=True):
    """The device asked for, and the one that did the work."""

    requested: str
    used: str | None
    name: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None


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


class Training(Struct, frozen=True, kw_only=True):
    """All training passes."""

    epochs: tuple[Epoch, ...]
    cold_start_seconds: float | None = None


class Speed(Struct, frozen=True, kw_only=True):
    """A compile backend's speed as a ratio; `counts` only where its results were right."""

    counts: bool
    speedup_over_eager: float | None = None
    speedup_over_inductor: float | None = None


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


class Measured(Struct, frozen=True, kw_only=True):
    """The parts of the payload's report that the core relies on; the rest is passed through."""

    schema: int
    device: Device
    dataset: dict[str, Any]
    checks: tuple[Check, ...]
    training: Training | None
    status: Literal["passed", "failed"]
    reasons: tuple[str, ...]
    torch: dict[str, Any] = {}
    compile: tuple[Compiled, ...] = ()
    speedup: float | None = None
    baseline: dict[str, Any] | None = None


def check(data: Any) -> Measured:
    """A payload's report as typed data; `VerifyError` when it is not one.

    A report is outside data: an environment may send anything. A passing report must name the
    device it used, trained epochs with an accuracy, and no failed check.
    """
    try:
        measured = msgspec.convert(data, Measured)
    except msgspec.ValidationError as error:
        raise VerifyError(f"the payload's report is malformed: {error}") from error
    if measured.schema != SCHEMA:
        raise VerifyError(f"the payload's report has schema {measured.schema}, expected {SCHEMA}")
    if measured.status == "passed":
        problem = _contradiction(measured)
        if problem:
            raise VerifyError(f"the payload's report contradicts itself: {problem}")
    return measured


def _contradiction(measured: Measured) -> str:
    failed = [c.name for c in measured.checks if c.status == "failed"]
    if failed:
        return f"passed, although these checks failed: {', '.join(failed)}"
    if measured.device.used != measured.device.requested:
        return (
            f"passed on {measured.device.used}, although {measured.device.requested} was asked for"
        )
    epochs = measured.training.epochs if measured.training else ()
    if not epochs or epochs[-1].accuracy is None:
        return "passed without a trained epoch"
    return ""


def assemble(data: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The whole report: what the core knows (profile, artifact, host …) over what was measured."""
    return {"schema": SCHEMA, **known, **{k: v for k, v in data.items() if k != "schema"}}


def write(report: dict[str, Any], path: Path) -> None:
    """Write a report atomically; `VerifyError` when the place cannot be written."""
    try:
        atomic.write(path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    except OSError as error:
        raise VerifyError(
            f"{path}: the report cannot be written: {error.strerror or error}",
            "The verification itself ended; name another place with --output.",
        ) from error
