"""`verify --against`: compare a new report with an earlier one of the same kind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import amount, escaped_markdown, percent, printable
from envbuilder.verify.report import history, model
from envbuilder.verify.report.comparison import epoch_seconds, precision
from envbuilder.verify.report.history import StoredReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envbuilder.verify.report.model import Measured, Report

LAST = "last"
MAX_SLOWDOWN = 1.3
"""Epochs differ by about 10 % from run to run on one machine, and by more on a shared one."""
ACCURACY_MARGIN = 0.005
"""How much lower the accuracy may be, as a fraction. It is about 98.4 % after one epoch, with a
standard error of 0.13 points on 10,000 test images: chance alone does not exceed the margin."""


class Yardstick(Struct, frozen=True, kw_only=True):
    """The report to compare with: a named one, or the last one in `folder`."""

    folder: Path
    named: StoredReport | None

    def require(
        self, *, profile: str, backend: str, quick: bool, like: Report | None
    ) -> StoredReport:
        """Return the report to compare with; raise `InvalidError` if there is none.

        Before the verification the device is still unknown (`like` is None): then any report that
        could be comparable is accepted. Checking this early avoids a training run in vain.
        """
        earlier = self.named or history.last(
            self.folder, profile=profile, backend=backend, quick=quick, like=like
        )
        if earlier is None:
            extent = "with --quick" if quick else "on the full MNIST"
            device = like.device.name if like else None
            raise InvalidError(
                f"{self.folder}: no report of a passed verification of profile {profile}, backend"
                f" {backend}, {extent}"
                + (f", on {printable(device)}" if device else "")
                + ", whose speed was judged",
                "Verify once without --against, or name a report: --against FILE",
            )
        if earlier.report.partial != quick:
            raise _other_images(earlier)
        return earlier


def yardstick(value: str, folder: Path) -> Yardstick:
    """Parse the value of `--against`: `last`, or a file, which is read immediately.

    Raises `InvalidError` if the file is damaged or its verification failed.
    """
    if value == LAST:
        return Yardstick(folder=folder, named=None)
    named = history.read(Path(value))
    _require_usable(named)
    return Yardstick(folder=folder, named=named)


def judge(report: dict[str, Any], yardstick: Yardstick, limit: float | None) -> dict[str, Any]:
    """Return a new report with the check "against"; raise `InvalidError` if not comparable."""
    new = model.check(report)
    if new.status != "passed":
        return _with_check(report, "skipped", "not compared, because the verification failed")
    profile, backend = report["profile"], report["backend"]
    earlier = yardstick.require(profile=profile, backend=backend, quick=new.partial, like=new)
    most = MAX_SLOWDOWN if limit is None else limit
    compared = compare(new, earlier, most, named=yardstick.named is not None)
    detail = f"{earlier.path.name}: {compared.detail}"
    return {**_with_check(report, compared.status, detail), "against": compared.figures}


def _require_usable(earlier: StoredReport) -> None:
    """Raise `InvalidError` unless a report passed and its epochs have a time."""
    if earlier.report.status != "passed":
        raise InvalidError(
            f"{earlier.path}: its verification failed", "Compare with a report that passed."
        )
    if epoch_seconds(earlier.report)[0] is None:
        raise InvalidError(f"{earlier.path}: damaged: an epoch has an impossible duration")


class Compared(Struct, frozen=True, kw_only=True):
    """The outcome of a comparison: that of the check, and the report's `against`."""

    status: Literal["passed", "warning", "failed"]
    detail: str
    figures: dict[str, Any]


def compare(new: Report, earlier: StoredReport, limit: float, *, named: bool) -> Compared:
    """Compare two reports; the new one fails if it is slower or less accurate.

    Speed: warm epochs if both reports have some, else the first ones; their ratio may be at most
    `limit`. It is not compared if the machine was busy during either.
    Accuracy: after the most epochs that both trained; it may be lower by at most `ACCURACY_MARGIN`.

    Raises `InvalidError` if the reports are not comparable: other images, or another machine, torch
    or precision. If the user `named` the earlier report, only the images must be the same, and the
    check lists the other differences.
    """
    _require_usable(earlier)
    before = earlier.report
    notes = _differences(new, before)
    if _images(new) != _images(before):
        raise _other_images(earlier)
    if notes and not named:
        raise InvalidError(
            f"{earlier.path}: the last report is not of the same kind: {'; '.join(notes)}",
            f"To compare anyway, name it: --against {earlier.path}",
        )
    epoch, seconds, seconds_before = _seconds(new, before)
    count, reached, reached_before = _accuracies(new, before)
    ratio, least = seconds / seconds_before, reached_before - ACCURACY_MARGIN
    doubt = _unjudged(new, before)
    speed = f"{epoch} epoch {amount(seconds)} s against {amount(seconds_before)} s: {ratio:.2f}×"
    speed += f"; {doubt}" if doubt else f", at most {limit:.2f}× is allowed"
    accuracy = f"accuracy {percent(reached)} against {percent(reached_before)} after {count}"
    accuracy += f" epoch{'s' if count > 1 else ''}, at least {percent(least)} is needed"
    # Negated so that NaN fails.
    problems = [f"slower: {speed}"] if not doubt and not ratio <= limit else []
    problems += [f"less accurate: {accuracy}"] if not reached >= least else []
    figures = {
        "report": earlier.path.name,
        "epoch": epoch,
        "seconds": seconds,
        "seconds_before": seconds_before,
        "max_slowdown": limit,
        "speed": "not_judged" if doubt else "judged",
        "epochs": count,
        "accuracy": reached,
        "accuracy_before": reached_before,
        "differences": notes,
    }
    return Compared(
        status="failed" if problems else "warning" if notes or doubt else "passed",
        detail="; ".join([*(problems or [speed, accuracy]), *notes]),
        figures=figures,
    )


def _unjudged(new: Report, before: Report) -> str:
    """Return why the speed of two reports is not compared; empty if it is."""
    for name, report in (("this", new), ("the earlier", before)):
        if not report.speed_counts:
            return (
                f"speed not judged in {name} verification: {printable(report.speed_reason or '')}"
            )
    return ""


def _other_images(earlier: StoredReport) -> InvalidError:
    return InvalidError(
        f"{earlier.path}: trained on other images (the full MNIST, or a subset of it); its times"
        " and accuracy do not compare with this run",
        "Verify both with --quick, or both without.",
    )


def _with_check(report: dict[str, Any], status: str, detail: str) -> dict[str, Any]:
    """Return a report with the check "against"; if that failed, the whole report fails."""
    result = model.with_check(report, "against", status, detail)
    if status == "failed":
        result["status"] = "failed"
        result["reasons"] = [*report["reasons"], f"against {detail}"]
    return result


def _images(report: Report) -> tuple[object, ...]:
    data = report.dataset
    return report.partial, data.train, data.test, data.sha256


def _framework(report: Report) -> str:
    return f"{report.framework.name or 'unknown'} {report.framework.version or 'unknown'}"


def _differences(new: Report, earlier: Report) -> list[str]:
    """Return how two reports differ in kind; an unknown value differs from a known one."""
    return [
        *_unequal(
            ("profile", new.profile, earlier.profile), ("backend", new.backend, earlier.backend)
        ),
        *machine_differences(new, earlier),
        *_unequal(
            ("framework", _framework(new), _framework(earlier)),
            ("precision", precision(new), precision(earlier)),
        ),
    ]


def machine_differences(new: Report, earlier: Report) -> list[str]:
    """Return how the machines of two reports differ; an unknown value differs from a known one."""
    return _unequal(
        ("device", new.device.name, earlier.device.name),
        ("CPU", new.host.cpu.model_name, earlier.host.cpu.model_name),
        ("usable CPU threads", new.host.cpu.threads, earlier.host.cpu.threads),
        ("CPU quota", new.threads.quota, earlier.threads.quota),
    )


def _unequal(*pairs: tuple[str, object, object]) -> list[str]:
    return [
        f"{name}: {printable(str(now or 'unknown'))}, then {printable(str(before or 'unknown'))}"
        for name, now, before in pairs
        if (now or None) != (before or None)
    ]


def _seconds(new: Measured, earlier: Measured) -> tuple[str, float, float]:
    """Return which epochs are compared, and their seconds: new report first."""
    (first, warm), (first_before, warm_before) = epoch_seconds(new), epoch_seconds(earlier)
    if warm is not None and warm_before is not None:
        return "warm", warm, warm_before
    assert first_before is not None, "_require_usable guarantees it"
    return "first", math.nan if first is None else first, first_before


def _accuracies(new: Measured, earlier: Measured) -> tuple[int, float, float]:
    """Return after how many epochs accuracy is compared, and both values: new report first."""
    pairs = zip(new.epochs, earlier.epochs, strict=False)
    accuracies = [
        (count, now.accuracy, before.accuracy)
        for count, (now, before) in enumerate(pairs, 1)
        if now.accuracy is not None and before.accuracy is not None
    ]
    if not accuracies:
        raise InvalidError(
            "no epoch has an accuracy in both reports", "Verify both with --epochs 1."
        )
    return accuracies[-1]


class Judgement(Struct, frozen=True, kw_only=True):
    """What a report is in comparison with the earlier one of its name."""

    report: str
    """The name of the file."""
    status: Literal["passed", "warning", "failed", "skipped"]
    """`failed`: slower or less accurate. `warning`: the speed was not judged, or something other
    than the machine differs. `skipped`: not comparable."""
    detail: str


def judge_all(
    reports: Iterable[StoredReport], earlier: Mapping[str, StoredReport]
) -> tuple[Judgement, ...]:
    """Compare each report with the earlier one whose file has the same name.

    Reports of different machines are not compared: CI lends whichever is free. Nor is the speed if
    either machine was busy.
    """
    return tuple(_judge_one(each, earlier.get(each.path.name)) for each in reports)


def _judge_one(new: StoredReport, earlier: StoredReport | None) -> Judgement:
    status: Literal["passed", "warning", "failed", "skipped"] = "skipped"
    if new.report.status != "passed":
        detail = "its verification failed"
    elif earlier is None:
        detail = "there is no earlier report of this name"
    elif others := machine_differences(new.report, earlier.report):
        detail = f"another machine: {'; '.join(others)}"
    else:
        try:
            compared = compare(new.report, earlier, MAX_SLOWDOWN, named=True)
        except InvalidError as error:
            detail = error.message
        else:
            status, detail = compared.status, compared.detail
    return Judgement(report=new.path.name, status=status, detail=detail)


def lines(judgements: Sequence[Judgement]) -> list[str]:
    """Return the judgements as lines of text."""
    return [f"{each.report}: {_WORDS[each.status]}: {each.detail}" for each in judgements]


def markdown(judgements: Sequence[Judgement]) -> str:
    """Return the judgements as a Markdown table, with all markup in cells escaped."""
    rows = [
        (escaped_markdown(each.report), _WORDS[each.status], escaped_markdown(each.detail))
        for each in judgements
    ]
    table = [("report", "against before", "why"), ("---", "---", "---"), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


_WORDS = {
    "passed": "as good",
    "warning": "as good as can be judged",
    "failed": "worse",
    "skipped": "not compared",
}
