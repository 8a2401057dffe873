"""Render a report as one HTML page that needs no network and no script.

The report has to pass `model.check`; a refused one has no page.
`verify` replaces a payload's invalid report by a failed one before it shows anything, so a run
that did not finish has its page, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envbuilder.core import text
from envbuilder.verify import figures, view
from envbuilder.verify.advice import advise
from envbuilder.verify.report import comparison, model


def render(data: Mapping[str, Any]) -> str:
    """Return the page of a whole report; raise `VerifyError` if it is not a valid report."""
    report = model.check(data)
    profile = report.profile or "-"
    device = report.device.name or report.device.requested
    rest = {key: value for key, value in data.items() if key != "traceback"}
    folded = [("The whole report", json.dumps(rest, indent=1, ensure_ascii=False))]
    if report.traceback:
        folded.append(("Traceback", report.traceback))
    heading = "NOT VERIFIED"
    sentence = _failed(report)
    reasons: Sequence[str] = report.reasons
    if report.status == "passed":
        heading = "VERIFIED"
        sentence = _passed(report)
    elif not reasons:
        reasons = [f"{c.name}: {c.detail}" for c in report.checks if c.status == "failed"]
        reasons = reasons or ["the report gives no reason"]
    return view.render(
        view.Page(
            heading=heading,
            title=f"{heading}: {profile} on {device}",
            verdict="passed" if report.status == "passed" else "failed",
            tag="quick look" if report.partial else "",
            sentence=sentence,
            reasons=reasons,
            warnings=[f"Warning: {warning}" for warning in report.warnings],
            subject=(
                f"Profile {profile}",
                report.backend or "",
                text.readable_stamp(report.time or ""),
            ),
            figures=list(figures.figures(report)),
            sections=figures.sections(report),
            advice=advise(report),
            folded=folded,
            source=f"the report of a verification, by version {report.envbuilder or 'unknown'}",
        )
    )


def render_comparison(rows: Sequence[comparison.Row]) -> str:
    """Return the page of some rows, in their order, with the reports' texts escaped."""
    places = range(len(comparison.COLUMNS))
    numbers = {1, *places[comparison.NUMBERS]}
    table = view.Section(
        title="Reports",
        header=comparison.COLUMNS,
        words=[place for place in places if place not in numbers],
        rows=[comparison.cells(row) for row in rows],
        notes=comparison.footnotes(rows),
    )
    return view.render(
        view.Page(
            heading=f"{len(rows)} reports side by side",
            sentence="Seconds of a training pass over MNIST. The first epoch is the one that every"
            " report has; warm: the median of those after it.",
            sections=[table],
            source="reports of verifications",
        )
    )


def _passed(report: model.Report) -> str:
    """Return what a verification that passed shows."""
    device = report.device
    subject = f"The accelerator {device.requested}"
    if device.name:
        subject = f"{device.name} ({device.requested})"
    # Arithmetic and the gradients of real steps are compared with a reference.
    passed = {check.name for check in report.checks if check.status == "passed"}
    right = ""
    if {"arithmetic", "gradients"} <= passed:
        right = ", its numbers agree with a float64 reference,"
    learned = "MNIST"
    if report.partial:
        learned = "a small subset of its data, which says little about full accuracy and speed"
    done = f"{subject} did the work{right} and the network learned {learned}."
    origin = figures.as_found(report)
    if origin:
        return f"{done} Taken {origin}."
    return done


def _failed(report: model.Report) -> str:
    """Return what a verification that failed does not show."""
    requested = report.device.requested
    used = report.device.used
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
