"""Render a report as one HTML page that needs no network and no script.

Only `write` has side effects. The report has to pass `model.check`; a refused one has no page.
`verify` replaces a payload's invalid report by a failed one before it shows anything, so a run
that did not finish has its page, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core import files, stamps
from envbuilder.core.errors import VerifyError
from envbuilder.verify.page import bars, curve, devices, raw, sections
from envbuilder.verify.page.advice import advise
from envbuilder.verify.page.bounds import displayable
from envbuilder.verify.page.html import templates
from envbuilder.verify.report import model
from envbuilder.verify.report.terminal import as_found

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from envbuilder.verify.report.model import Report


class Verdict(Struct, frozen=True, kw_only=True):
    """The page's verdict, its reasons, and one sentence on what it means."""

    passed: bool
    sentence: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    quick: bool


def render(data: Mapping[str, Any]) -> str:
    """Return the page of a whole report; raise `VerifyError` if it is not a valid report."""
    shown = displayable(data)
    report = model.check(shown)
    page: str = (
        templates()
        .get_template("report.html.j2")
        .render(
            verdict=verdict(report),
            about=_about(report),
            figures=tuple(sections.figures(report)),
            facts=tuple(sections.facts(report)),
            checks=sections.checks(report),
            epochs=bars.epochs(report),
            passes=sections.passes(report),
            training=tuple(sections.training(report)),
            loss=curve.losses(report),
            accuracy=bars.accuracies(report),
            matmuls=bars.matmuls(report.measurements),
            bandwidths=bars.bandwidths(report.measurements),
            measured=tuple(sections.measured(report.measurements)),
            memory=bars.peak_memory(report),
            memories=tuple(sections.memories(report)),
            compiled=sections.compiled(report),
            devices=devices.devices(report.scaling),
            advice=advise(report),
            raw=tuple(raw.tables(shown)),
            traceback=report.traceback,
        )
    )
    return page


def write(path: Path, page: str) -> None:
    """Write a page atomically; raise `VerifyError` if the path cannot be written."""
    hint = "The verification itself finished; choose another path with --html."
    files.save_output(path, page.encode(), VerifyError, hint, "the page")


def verdict(report: Report) -> Verdict:
    """Return the verdict of a report, and why."""
    failed = tuple(f"{c.name}: {c.detail}" for c in report.checks if c.status == "failed")
    passed = report.status == "passed"
    reasons = report.reasons or failed or ("the report gives no reason",)
    return Verdict(
        passed=passed,
        sentence=_passed(report) if passed else _failed(report),
        reasons=() if passed else reasons,
        warnings=report.warnings,
        quick=report.partial,
    )


def _passed(report: Report) -> str:
    """Return what a verification that passed shows."""
    device = report.device
    subject = (
        f"{device.name} ({device.requested})"
        if device.name
        else f"The accelerator {device.requested}"
    )
    # Arithmetic and the gradients of real steps are compared with a reference.
    compared = {"arithmetic", "gradients"} <= {
        check.name for check in report.checks if check.status == "passed"
    }
    right = ", its numbers agree with a float64 reference," if compared else ""
    subset = "a small subset of its data, which says little about full accuracy and speed"
    learned = subset if report.partial else "MNIST"
    done = f"{subject} did the work{right} and the network learned {learned}."
    origin = as_found(report)
    return f"{done} Taken {origin}." if origin else done


def _failed(report: Report) -> str:
    """Return what a verification that failed does not show."""
    requested, used = report.device.requested, report.device.used
    if not used:
        return f"This does not show that {requested} works: nothing was trained on it."
    if used != requested:
        return f"The work did not run on {requested}, but on {used}."
    if report.status == "unproven":
        return f"The work ran on {requested}, but nothing outside repeated a step of the training."
    if {check.name for check in report.checks if check.status == "failed"} == {"against"}:
        return f"The work ran on {requested} as requested, but slower or less accurate than before."
    return (
        f"The work ran on {requested}, but something is wrong with it: do not rely on this"
        " environment on this machine."
    )


def _about(report: Report) -> dict[str, str]:
    """Return profile, backend, device, time and version of a report; "" if unknown."""
    return {
        "profile": report.profile or "",
        "backend": report.backend or "",
        "device": report.device.name or report.device.requested,
        "time": stamps.readable(report.time or ""),
        "version": report.envbuilder or "",
    }
