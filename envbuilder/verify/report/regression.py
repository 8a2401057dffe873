"""Read verification reports, and compare a new one with an earlier one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, files
from envbuilder.core.errors import Hint, InvalidError, VerifyError, printable
from envbuilder.core.text import amount, percent
from envbuilder.verify.report import model
from envbuilder.verify.report.model import Measured, Report


class StoredReport(Struct, frozen=True, kw_only=True):
    """A report, together with the path of the file that contains it."""

    path: Path
    report: Report


def read(path: Path) -> StoredReport:
    """Read a report; raise `InvalidError` if it is unreadable or not a complete report."""
    return parsed(files.read_named(path, decoding.LARGEST), path)


def parsed(content: bytes, path: Path) -> StoredReport:
    """Parse a file's content as a report; raise `InvalidError` if the content is not a report."""
    try:
        decoding.require_few_values(content)
        report = model.check(model.restored(msgspec.json.decode(content)))
    except VerifyError as error:
        state = "damaged: "
        if error.hints:
            state = ""
        raise InvalidError(f"{path}: {state}{error}", error.hints or _WHAT_IT_IS) from error
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{path}: damaged: {error}", _WHAT_IT_IS) from error
    return StoredReport(path=path, report=report)


_WHAT_IT_IS = Hint("Write a report", ("verify", "--output", "FILE"))


MAX_SLOWDOWN = 1.3
"""Largest accepted ratio of the new time to the earlier time. Epochs differ by about 10 % from run
to run on one machine, and by more on a shared machine."""
ACCURACY_MARGIN = 0.005
"""Largest accepted drop in accuracy, as a fraction. The accuracy is about 98.4 % after one epoch,
with a standard error of 0.13 points on 10,000 test images, so chance alone does not exceed this
margin."""


def yardstick(path: Path, *, quick: bool) -> StoredReport:
    """Read the earlier report with which a new report will be compared.

    `quick` says whether the new verification trains on a subset of the images. Raise `InvalidError`
    if the file is damaged, if the earlier verification failed, or if it trained on different images
    than the new one will. Calling this function before the training avoids a useless training run.
    """
    earlier = read(path)
    _require_usable(earlier)
    if earlier.report.partial != quick:
        raise _other_images(earlier)
    return earlier


def judge(report: dict[str, Any], earlier: StoredReport) -> dict[str, Any]:
    """Compare a report with an earlier one, and return it with the check "against" added.

    Raise `InvalidError` if the two reports cannot be compared.
    """
    new = model.check(report)
    if new.status != "passed":
        return _with_check(report, "skipped", "not compared, because the verification failed")
    compared = compare(new, earlier)
    return {
        **_with_check(report, compared.status, f"{earlier.path.name}: {compared.detail}"),
        "against": compared.figures,
    }


def _require_usable(earlier: StoredReport) -> None:
    """Raise `InvalidError` unless the report passed and its epochs have plausible durations."""
    if earlier.report.status != "passed":
        raise InvalidError(
            f"{earlier.path}: this is the report of a failed verification",
            "Name a report of a verification that passed.",
        )
    if earlier.report.epoch_seconds[0] is None:
        raise InvalidError(f"{earlier.path}: damaged: an epoch has an invalid duration")


class Compared(Struct, frozen=True, kw_only=True):
    """The outcome of a comparison: the check's status and detail, and the numbers for `against`."""

    status: Literal["passed", "warning", "failed"]
    detail: str
    figures: dict[str, Any]


def compare(new: Report, earlier: StoredReport) -> Compared:
    """Compare two reports; the new one fails if it is slower or less accurate.

    Speed: the durations of warm epochs are compared if both reports have warm epochs. Otherwise,
    the durations of the first epochs are compared. The new duration may be at most `MAX_SLOWDOWN`
    times the earlier one. Speed is not compared if the machine was busy during either verification.

    Accuracy: the accuracies after the largest number of epochs that both reports contain are
    compared. The new accuracy may be lower by at most `ACCURACY_MARGIN`.

    The detail of the result lists the differences in machine, framework and precision. Raise
    `InvalidError` if the two verifications used different images.
    """
    _require_usable(earlier)
    before = earlier.report
    notes = _differences(new, before)
    if _images(new) != _images(before):
        raise _other_images(earlier)
    epoch, seconds, seconds_before = _seconds(new, before)
    count, reached, reached_before = _accuracies(new, before)
    ratio = seconds / seconds_before
    least = reached_before - ACCURACY_MARGIN
    doubts = (
        f"speed not judged in {which} verification: {printable(report.speed_reason or '')}"
        for which, report in (("this", new), ("the earlier", before))
        if not report.speed_counts
    )
    doubt = next(doubts, "")
    speed = f"{epoch} epoch {amount(seconds)} s against {amount(seconds_before)} s: {ratio:.2f}×"
    speed += f"; {doubt}" if doubt else f", at most {MAX_SLOWDOWN:.2f}× is allowed"
    accuracy = f"accuracy {percent(reached)} against {percent(reached_before)} after {count}"
    accuracy += f" epoch{'s' if count > 1 else ''}, at least {percent(least)} is needed"
    # Negated so that NaN fails.
    problems = []
    if not doubt and not ratio <= MAX_SLOWDOWN:
        problems.append(f"slower: {speed}")
    if not reached >= least:
        problems.append(f"less accurate: {accuracy}")
    status: Literal["passed", "warning"] = "warning" if notes or doubt else "passed"
    return Compared(
        status="failed" if problems else status,
        detail="; ".join([*(problems or [speed, accuracy]), *notes]),
        figures={
            "report": earlier.path.name,
            "epoch": epoch,
            "seconds": seconds,
            "seconds_before": seconds_before,
            "max_slowdown": MAX_SLOWDOWN,
            "speed": "not_judged" if doubt else "judged",
            "epochs": count,
            "accuracy": reached,
            "accuracy_before": reached_before,
            "differences": notes,
        },
    )


def _other_images(earlier: StoredReport) -> InvalidError:
    return InvalidError(
        f"{earlier.path}: not comparable, because its run used different images (the full"
        " MNIST data set, or a subset of it)",
        "Run both verifications with --quick, or both without it.",
    )


def _with_check(report: dict[str, Any], status: str, detail: str) -> dict[str, Any]:
    """Return the report with the check "against" added.

    The whole report is marked as failed if the check failed.
    """
    result = model.with_check(report, "against", status, detail)
    if status == "failed":
        result["status"] = "failed"
        result["reasons"] = [*report["reasons"], f"against {detail}"]
    return result


def _images(report: Report) -> tuple[object, ...]:
    return report.partial, report.dataset.train, report.dataset.test, report.dataset.sha256


def _framework(report: Report) -> str:
    return f"{report.framework.name or 'unknown'} {report.framework.version or 'unknown'}"


def _differences(new: Report, earlier: Report) -> list[str]:
    """Return phrases that describe how the machine, framework and precision of two reports differ.

    An unknown value is treated as different from a known one.
    """
    return [
        *_unequal(
            ("profile", new.profile, earlier.profile), ("backend", new.backend, earlier.backend)
        ),
        *machine_differences(new, earlier),
        *_unequal(
            ("framework", _framework(new), _framework(earlier)),
            ("precision", new.effective_precision, earlier.effective_precision),
        ),
    ]


def machine_differences(new: Report, earlier: Report) -> list[str]:
    """Return phrases that describe how the machines of two reports differ.

    An unknown value is treated as different from a known one.
    """
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
    """Return the kind of epochs to compare, with their new and earlier durations in seconds.

    The kind is "warm" if both reports have warm epochs, otherwise "first".
    """
    (first, warm) = new.epoch_seconds
    (first_before, warm_before) = earlier.epoch_seconds
    if warm is not None and warm_before is not None:
        return "warm", warm, warm_before
    assert first_before is not None, "_require_usable guarantees it"
    return "first", math.nan if first is None else first, first_before


def _accuracies(new: Measured, earlier: Measured) -> tuple[int, float, float]:
    """Return the number of epochs to compare, with the new and earlier accuracies after them.

    Raise `InvalidError` if there is no epoch for which both reports have an accuracy.
    """
    accuracies = [
        (count, now.accuracy, before.accuracy)
        for count, (now, before) in enumerate(zip(new.epochs, earlier.epochs, strict=False), 1)
        if now.accuracy is not None and before.accuracy is not None
    ]
    if not accuracies:
        raise InvalidError(
            "no epoch has an accuracy in both reports", "Run both verifications with --epochs 1."
        )
    return accuracies[-1]


class Judgement(Struct, frozen=True, kw_only=True):
    """The result of comparing a report with the earlier report that has the same file name."""

    report: str
    """Name of the report's file."""
    status: Literal["passed", "warning", "failed", "skipped"]
    """`failed`: the report is slower or less accurate. `warning`: the speed was not judged, or
    something other than the machine differs. `skipped`: the reports cannot be compared."""
    detail: str

    @property
    def row(self) -> tuple[str, str, str]:
        """The judgment in words, as a table row."""
        return self.report, _WORDS[self.status], self.detail


def judge_all(
    reports: Iterable[StoredReport], earlier: Mapping[str, StoredReport]
) -> tuple[Judgement, ...]:
    """Compare each report with the earlier report whose file has the same name.

    Reports from different machines are not compared, because CI provides whichever machine is free.
    Speed is not compared if either machine was busy.
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
            compared = compare(new.report, earlier)
        except InvalidError as error:
            detail = error.message
        else:
            status = compared.status
            detail = compared.detail
    return Judgement(report=new.path.name, status=status, detail=detail)


_WORDS = {
    "passed": "as good",
    "warning": "as good, as far as can be judged",
    "failed": "worse",
    "skipped": "not compared",
}
