"""`verify --against`: compare a new report with an earlier one of the same kind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import amount, percent, printable
from envbuilder.verify.report import history
from envbuilder.verify.report import model as reports
from envbuilder.verify.report.comparison import epoch_seconds, precision
from envbuilder.verify.report.history import Report

if TYPE_CHECKING:
    from envbuilder.verify.report.model import Measured

LAST = "last"
MAX_SLOWDOWN = 1.3
"""Epochs differ by about 10 % from run to run on one machine, and by more on a shared one."""
ACCURACY_MARGIN = 0.005
"""How much lower the accuracy may be, as a fraction. It is about 98.4 % after one epoch, with a
standard error of 0.13 points on 10,000 test images: chance alone does not exceed the margin."""


class Yardstick(Struct, frozen=True, kw_only=True):
    """The report to compare with: a named one, or the last one in `folder`."""

    folder: Path
    named: Report | None

    def require(self, *, profile: str, backend: str, quick: bool, like: Report | None) -> Report:
        """Return the report to compare with; raise `InvalidError` if there is none.

        Before the verification the device is still unknown (`like` is None): then any report that
        could be comparable is accepted. Checking this early avoids a training run in vain.
        """
        found = self.named or history.last(
            self.folder, profile=profile, backend=backend, quick=quick, like=like
        )
        if found is None:
            digits = "with --quick" if quick else "on the full MNIST"
            device = like.measured.device.name if like else None
            raise InvalidError(
                f"{self.folder}: no report of a passed verification of profile {profile}, backend"
                f" {backend}, {digits}" + (f", on {printable(device)}" if device else ""),
                "Verify once without --against, or name a report: --against FILE",
            )
        if found.quick != quick:
            raise _other_digits(found)
        return found


def yardstick(wanted: str, folder: Path) -> Yardstick:
    """Parse the value of `--against`: `last`, or a file, which is read immediately.

    Raises `InvalidError` if the file is damaged or its verification failed.
    """
    if wanted == LAST:
        return Yardstick(folder=folder, named=None)
    named = history.read(Path(wanted))
    _require_usable(named)
    return Yardstick(folder=folder, named=named)


def judge(report: dict[str, Any], yardstick: Yardstick, limit: float | None) -> dict[str, Any]:
    """Return a new report with the check "against"; raise `InvalidError` if not comparable."""
    measured = reports.check(report)
    if measured.status != "passed":
        return _with_check(report, "skipped", "not compared, because the verification failed")
    new = Report(path=Path(), measured=measured, data=report)
    profile, backend = report["profile"], report["backend"]
    earlier = yardstick.require(profile=profile, backend=backend, quick=new.quick, like=new)
    named = yardstick.named is not None
    return compare(new, earlier, MAX_SLOWDOWN if limit is None else limit, named=named)


def _require_usable(earlier: Report) -> None:
    """Raise `InvalidError` unless a report passed and its epochs have a time."""
    if earlier.measured.status != "passed":
        raise InvalidError(
            f"{earlier.path}: its verification failed", "Compare with a report that passed."
        )
    if epoch_seconds(earlier.measured)[0] is None:
        raise InvalidError(f"{earlier.path}: damaged: the time of an epoch cannot be")


def compare(new: Report, earlier: Report, limit: float, *, named: bool) -> dict[str, Any]:
    """Return the new report with a check "against", which fails if it is slower or less accurate.

    Speed: warm epochs if both reports have some, else the first ones; their ratio may be at most
    `limit`. Accuracy: after the most epochs that both trained; it may be lower by at most
    `ACCURACY_MARGIN`.

    Raises `InvalidError` if the reports are not comparable: other images, or another machine, torch
    or precision. If the user `named` the earlier report, only the images must be the same, and the
    check lists the other differences.
    """
    _require_usable(earlier)
    notes = _differences(new, earlier)
    if _digits(new) != _digits(earlier):
        raise _other_digits(earlier)
    if notes and not named:
        raise InvalidError(
            f"{earlier.path}: the last report is not of the same kind: {'; '.join(notes)}",
            f"To compare all the same, name it: --against {earlier.path}",
        )
    epoch, now, before = _seconds(new.measured, earlier.measured)
    count, reached, reached_before = _accuracies(new.measured, earlier.measured)
    ratio, least = now / before, reached_before - ACCURACY_MARGIN
    speed = f"{epoch} epoch {amount(now)} s against {amount(before)} s: {ratio:.2f}×"
    speed += f", at most {limit:.2f}× is allowed"
    accuracy = f"accuracy {percent(reached)} against {percent(reached_before)} after {count}"
    accuracy += f" epoch{'s' if count > 1 else ''}, at least {percent(least)} is needed"
    # Negated so that NaN fails.
    problems = [f"slower: {speed}"] if not ratio <= limit else []
    problems += [f"less accurate: {accuracy}"] if not reached >= least else []
    status = "failed" if problems else "warning" if notes else "passed"
    detail = "; ".join([*(problems or [speed, accuracy]), *notes])
    name = earlier.path.name
    compared = {
        "report": name,
        "epoch": epoch,
        "seconds": now,
        "seconds_before": before,
        "max_slowdown": limit,
        "epochs": count,
        "accuracy": reached,
        "accuracy_before": reached_before,
        "differences": notes,
    }
    return {**_with_check(new.data, status, f"{name}: {detail}"), "against": compared}


def _other_digits(earlier: Report) -> InvalidError:
    return InvalidError(
        f"{earlier.path}: trained on other digits (the full MNIST, or a subset of it); its times"
        " and accuracy say nothing about this run",
        "Verify both with --quick, or both without.",
    )


def _with_check(report: dict[str, Any], status: str, detail: str) -> dict[str, Any]:
    """Return a report with the check "against"; if that failed, the whole report fails."""
    check = {"name": "against", "status": status, "seconds": 0.0, "detail": detail}
    result = {**report, "checks": [*report["checks"], check]}
    if status == "failed":
        result["status"] = "failed"
        result["reasons"] = [*report["reasons"], f"against {detail}"]
    return result


def _digits(report: Report) -> tuple[object, ...]:
    data = report.measured.dataset
    return report.quick, data.get("train"), data.get("test"), data.get("sha256")


def _differences(new: Report, earlier: Report) -> list[str]:
    """Return how two reports differ in kind; an unknown value differs from a known one."""
    found = []
    for name, keys in {
        "profile": ("profile",),
        "backend": ("backend",),
        "device": ("device", "name"),
        "CPU": ("host", "cpu", "model_name"),
        "torch": ("torch", "version"),
    }.items():
        found.append((name, new.text(*keys), earlier.text(*keys)))
    threads, before = (str(r.get("host", "cpu", "threads") or "") for r in (new, earlier))
    found.append(("usable CPU threads", printable(threads), printable(before)))
    found.append(("precision", precision(new), precision(earlier)))
    return [f"{n}: {a or 'unknown'}, then {b or 'unknown'}" for n, a, b in found if a != b]


def _seconds(new: Measured, earlier: Measured) -> tuple[str, float, float]:
    """Return which epochs are compared, and their seconds: new report first."""
    (first, warm), (first_before, warm_before) = epoch_seconds(new), epoch_seconds(earlier)
    if warm is not None and warm_before is not None:
        return "warm", warm, warm_before
    assert first_before is not None, "require_usable saw to it"
    return "first", math.nan if first is None else first, first_before


def _accuracies(new: Measured, earlier: Measured) -> tuple[int, float, float]:
    """Return after how many epochs accuracy is compared, and both values: new report first."""
    trained = [r.training.epochs if r.training else () for r in (new, earlier)]
    pairs = zip(*trained, strict=False)
    known = [
        (count, now.accuracy, before.accuracy)
        for count, (now, before) in enumerate(pairs, 1)
        if now.accuracy is not None and before.accuracy is not None
    ]
    if not known:
        raise InvalidError("no epoch has an accuracy in both reports", "Give both --epochs 1.")
    return known[-1]
