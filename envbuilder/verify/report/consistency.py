"""Check a report against the request, its own totals, and the lifetime of the payload's process.

An environment may report anything, so a report is compared with facts that are known outside the
environment: the request, the data, and how long the process ran.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from envbuilder.core.errors import printable
from envbuilder.core.text import percent
from envbuilder.payload.options import FEW, Options
from envbuilder.payload.training.train import BATCH
from envbuilder.verify.report.model import Check, Measured, absent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.payload.training.dataset import Dataset
    from envbuilder.profiles.profile import Expected

_EXACT = 1e-6
"""Allowed relative error of sums that are computed from the same numbers."""

_equal = partial(math.isclose, rel_tol=_EXACT)

_ROUNDED = 0.001
"""Largest rounding error of the time that a check reports, in seconds."""

_LOSS_SHARE = 0.3
_LOSS_APART = 0.1
_LEAST_POINTS = 20
"""Limits for comparing the mean of the loss curve with the mean loss of the epochs.

The difference may be at most `_LOSS_SHARE` of the epochs' mean loss plus `_LOSS_APART`. The loss
curve holds every n-th step, and is checked only if it has at least `_LEAST_POINTS` points. For
example, the 188 points of a full epoch had a mean of 0.196, and the epoch itself had a mean loss of
0.193.
"""


MATMUL_RATE = "matmul rate"
MOST_MATMUL_SHARE = 1.1
"""Largest plausible compute rate of an epoch, relative to the rate of one large matrix product.

Under the same load, an epoch computes more slowly than a matrix product on the same device, but the
two are measured minutes apart. Idle machines reached 1.04 and 1.05 (docs/evidence/reports), and a
busy machine reached 1.27. A value above the limit means that the load changed between the two
measurements.
"""


class Gates(NamedTuple):
    """The accuracy and losses that a training run must reach.

    Losses are mean cross-entropies in nats.
    """

    accuracy: float
    """Lowest accepted fraction of correct answers in the blind test."""
    loss: float
    """Highest accepted training loss of the last epoch."""
    blind_loss: float
    """Highest accepted loss in the blind test."""


LOSS_AT_NO_ERROR = 0.2
LOSS_PER_ERROR = 8.8
"""Coefficients of the limit on both losses, used if an accuracy is stated instead of measured.

The limit is `LOSS_AT_NO_ERROR` plus `LOSS_PER_ERROR` times the allowed error rate. For an accuracy
of 97.5 %, the limit is 0.42. A network that learned nothing has a loss of ln 10 = 2.30.
"""


def gates_at(accuracy: float) -> Gates:
    """Return the gates that correspond to a required accuracy."""
    loss = LOSS_AT_NO_ERROR + LOSS_PER_ERROR * (1 - accuracy)
    return Gates(accuracy, loss, loss)


QUICK = (Gates(0.758, 1.4, 0.7), Gates(0.887, 0.5, 0.34), Gates(0.922, 0.35, 0.23))
"""Gates after one, two, and three or more epochs of 3,000 images, tested on 1,000 images.

With 95 % confidence, at most one in 10,000 honest training runs misses any of these gates.
docs/evidence/gates.md lists the training runs of all frameworks on the CPU, and the distribution of
their results.
"""

MIN_ACCURACY = 0.975
"""Accuracy required after at least one epoch of `FEW` or more images, but not of all images. No
such training run was measured."""

FULL = Gates(0.972, 0.24, 0.1)
"""Gates after one or more epochs of all images. They were measured in the same way as `QUICK`."""


def gates_for(data: Dataset, epochs: int, stated: float | None) -> Gates:
    """Return the gates for a training run.

    If the required accuracy is given as `stated`, the gates are derived from it. Otherwise, they
    depend on the number of images and epochs.
    """
    if stated is not None:
        return gates_at(stated)
    if not data.subset:
        return FULL
    if data.train.count >= FEW:
        return gates_at(MIN_ACCURACY)
    return QUICK[min(epochs, len(QUICK)) - 1]


class Request(Struct, frozen=True, kw_only=True):
    """The requested parameters of a verification, which its report must repeat."""

    device: str
    name: str
    subset: bool
    quick: bool
    epochs: int
    train: int
    test: int
    sha256: dict[str, str]
    framework: str
    version: str
    precision: str
    gates: Gates
    checks: tuple[str, ...] = ()
    """Names of the checks that must have run: those that every verification runs, and those that
    the profile adds."""


def request_for(expects: Expected, data: Dataset, *, epochs: int | None, quick: bool) -> Request:
    """Return the request that describes a verification.

    `data` is the complete data set. The verification may use only a part of it.
    """
    used = data
    if quick:
        used = data.quick()
    elif expects.images:
        used = data.first(expects.images)
    options = Options(
        device=expects.device,
        framework=expects.framework,
        epochs=epochs,
        quick=quick,
        extensions=(expects.extension,) if expects.extension else (),
        require_kernels=() if quick else expects.kernels,
        compile_backends=expects.compile,
    )
    stated = None if quick or data.subset else expects.accuracy
    return Request(
        device=expects.device,
        name=used.name,
        subset=used.subset,
        quick=quick,
        epochs=options.epochs_for(used),
        train=used.train.count,
        test=used.test.count,
        sha256=data.sha256,
        framework=expects.framework,
        version=expects.version,
        precision=expects.precision,
        gates=gates_for(used, options.epochs_for(used), stated),
        checks=(*options.required(), *(f"compile {name}" for name in options.backends())),
    )


def contradictions(request: Request, measured: Measured, seconds: float) -> list[str]:
    """Return a sentence for each contradiction in a passing report.

    `seconds` is the lifetime of the payload's process, as measured by this process.
    """
    return [
        *_unlike_request(request, measured),
        *_sums(request, measured),
        *_losses(measured),
        *_times(measured, seconds),
    ]


def matmul_rate(measured: Measured) -> Check | None:
    """Return a warning if the last epoch's compute rate is implausibly high, otherwise None.

    The rate is implausible if it exceeds the rate of the matrix product that was measured after the
    epoch by more than the tolerance (`MOST_MATMUL_SHARE`). The warning does not change the verdict,
    because it is unknown which of the two measurements was disturbed.
    """
    share = measured.measurements.matmul_share if measured.measurements else None
    if share is None or share <= MOST_MATMUL_SHARE:
        return None
    return Check(
        name=MATMUL_RATE,
        status="warning",
        seconds=0.0,
        detail=(
            f"the last epoch reached {percent(share, 0)} of the matmul rate measured after it,"
            " which is implausible: the machine was busy, or one of the two measurements is"
            " wrong. Measure again on a quiet machine"
        ),
    )


def _unlike_request(request: Request, measured: Measured) -> Iterator[str]:
    data = measured.dataset
    training = measured.training
    pairs: list[tuple[str, Any, Any]] = [
        ("device", request.device, measured.device.requested),
        ("data", request.name, data.name),
        ("subset", request.subset, data.subset),
        ("quick", request.quick, measured.quick),
        ("epochs", request.epochs, len(measured.epochs)),
        ("training images", request.train, data.train),
        ("test images", request.test, data.test),
        ("the data's sha256", request.sha256, data.sha256),
        ("framework", request.framework, measured.framework.name),
        ("precision", request.precision, measured.precision.dtype if measured.precision else None),
        ("batch", BATCH, training.batch if training else None),
    ]
    for name, expected, reported in pairs:
        if reported != expected:
            yield f"{name}: {_short(expected)} was requested, but {_short(reported)} is reported"
    for name in absent(request.checks, measured.checks):
        yield f"{name}: this check was requested, but did not run"
    if measured.scaling is not None:
        yield "several devices: not requested, but reported"
    version = str(measured.framework.version)
    comparable = version if "+" in request.version else version.partition("+")[0]
    if request.version and comparable != request.version:
        yield (
            f"{request.framework}: {request.version} was requested, but {_short(version)} is"
            " reported"
        )


def _sums(request: Request, measured: Measured) -> Iterator[str]:
    for number, epoch in enumerate(measured.epochs, 1):
        parts = (epoch.data_seconds, epoch.compute_seconds)
        if min(parts) < 0 or not _equal(sum(parts), epoch.seconds):
            yield (
                f"epoch {number} took {epoch.seconds:.3f} s, but its parts took"
                f" {epoch.data_seconds:.3f} s and {epoch.compute_seconds:.3f} s"
            )
        elif not _equal(epoch.samples_per_second * epoch.seconds, request.train):
            yield (
                f"epoch {number}: {request.train} images in {epoch.seconds:.3f} s do not give"
                f" {epoch.samples_per_second:.1f} per second"
            )
        right = (epoch.accuracy or 0) * request.test
        if abs(right - round(right)) > _EXACT * request.test:
            yield f"epoch {number}: {epoch.accuracy} is not a fraction of {request.test} images"
    baseline = measured.baseline_seconds()
    if measured.baseline is not None and (baseline is None or baseline <= 0):
        yield "the baseline has no time"
    if measured.speedup is not None:
        ratio = baseline / measured.epochs[0].seconds if baseline is not None else math.nan
        if not _equal(measured.speedup, ratio):
            yield f"the speed-up {measured.speedup:.2f} does not match its epochs"


def _losses(measured: Measured) -> Iterator[str]:
    training = measured.training
    losses = [epoch.loss for epoch in measured.epochs]
    if any(loss is None or loss < 0 for loss in losses):
        yield "an epoch has no loss"
        return
    finite = [loss for loss in losses if loss is not None]
    points = [loss for _, loss in training.losses if loss is not None] if training else []
    mean = sum(finite) / len(finite)
    curve = sum(points) / len(points) if points else mean
    if len(points) >= _LEAST_POINTS and not abs(curve - mean) <= _LOSS_SHARE * mean + _LOSS_APART:
        yield f"the epochs' mean loss is {mean:.3f}, but that of the loss curve is {curve:.3f}"


def _times(measured: Measured, seconds: float) -> Iterator[str]:
    trained = sum(epoch.seconds for epoch in measured.epochs) + (measured.baseline_seconds() or 0.0)
    checks = sum(check.seconds for check in measured.checks) - _ROUNDED * len(measured.checks)
    started = (measured.training.cold_start_seconds if measured.training else None) or 0.0
    if started < 0:
        yield f"starting took {started:.2f} s"
    for name, claimed in (
        ("training", trained),
        ("the checks", checks),
        ("starting", started),
        ("training and the checks together", trained + checks),
    ):
        if claimed > seconds:
            yield f"{name} took {claimed:.2f} s, but its process only ran for {seconds:.2f} s"


def _short(value: object) -> str:
    return printable(str(value), 60)
