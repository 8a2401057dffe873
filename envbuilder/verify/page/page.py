"""Render any report as one HTML page that needs no network and no script.

Only `write` has side effects. A report is untrusted: it is parsed leniently, escaped by the
templates, and shown as passed only if `report.check` accepts it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder.core import files as atomic
from envbuilder.core.errors import VerifyError
from envbuilder.verify.page import bars, curve, devices, raw, sections
from envbuilder.verify.page.advice import advise
from envbuilder.verify.page.html import templates
from envbuilder.verify.page.values import items, mapping, tail, text, texts
from envbuilder.verify.report import model as reports
from envbuilder.verify.report.terminal import as_found

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Verdict(Struct, frozen=True, kw_only=True):
    """The page's verdict, its reasons, and one sentence on what it means."""

    passed: bool
    sentence: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    quick: bool


def render(report: Mapping[str, Any] | Struct) -> str:
    """Return the page of a report: a complete one as written, or the result of `report.check`.

    Never raises, whatever the report contains. "Passed" is shown only if `report.check` accepts the
    report; anything else is shown as failed.
    """
    found = mapping(msgspec.to_builtins(report) if isinstance(report, Struct) else report)
    verdict = judge(found)
    page: str = (
        templates()
        .get_template("report.html.j2")
        .render(
            verdict=verdict,
            about=_about(found),
            figures=tuple(sections.figures(found)),
            facts=tuple(sections.facts(found)),
            checks=sections.checks(found),
            epochs=bars.epochs(found),
            passes=sections.passes(found),
            training=tuple(sections.training(found)),
            loss=curve.losses(found),
            accuracy=bars.accuracies(found),
            matmuls=bars.matmuls(found),
            bandwidths=bars.bandwidths(found),
            measured=tuple(sections.measured(found)),
            memory=bars.memory(found),
            memories=tuple(sections.memories(found)),
            compiled=sections.compiled(found),
            devices=devices.devices(found),
            advice=advise(found, passed=verdict.passed),
            raw=tuple(raw.tables(found)),
            traceback=tail(found.get("traceback"), 8000),
        )
    )
    return page


def write(path: Path, page: str) -> None:
    """Write a page atomically; raise `VerifyError` if the path cannot be written."""
    hint = "The verification itself ended; name another place with --html."
    atomic.save(path, page.encode(), VerifyError, hint, "the page")


def judge(report: Mapping[str, Any]) -> Verdict:
    """Return the verdict: the report's own, provided that its form and contents support it."""
    status, reasons = report.get("status"), texts(report.get("reasons"))
    passed = status == "passed"
    if passed:
        try:
            reports.check(dict(report))
        except VerifyError as error:
            passed, reasons = False, [text(error.message), *reasons]
    if not passed and not reasons:
        reasons = [
            f"{text(check.get('name'), 80)}: {text(check.get('detail'))}"
            for check in map(mapping, items(report.get("checks")))
            if check.get("status") == "failed"
        ] or ["the report names no reason"]
    if status not in ("passed", "failed"):
        reasons.insert(0, "the report ends without a verdict")
    quick = report.get("quick") is True or mapping(report.get("dataset")).get("subset") is True
    return Verdict(
        passed=passed,
        sentence=_meaning(report, passed=passed, quick=quick),
        reasons=() if passed else tuple(reasons),
        warnings=tuple(texts(report.get("warnings"))),
        quick=quick,
    )


def _meaning(report: Mapping[str, Any], *, passed: bool, quick: bool) -> str:
    device = mapping(report.get("device"))
    asked, used = text(device.get("requested"), 40), text(device.get("used"), 80)
    asked = asked or "the device asked for"
    name = text(device.get("name"), 120)
    it = f"{name} ({asked})" if name else f"The accelerator {asked}"
    if passed:
        right = ", its numbers agree with a float64 reference," if _compared(report) else ""
        learned = "a small subset of its data, which says little about full accuracy and speed"
        done = f"{it} did the work{right} and the network learned {learned if quick else 'MNIST'}."
        found = as_found(report)
        return f"{done} Taken {found}." if found else done
    if report.get("status") not in ("passed", "failed"):
        return f"The verification did not finish, so nothing is shown about {asked}."
    if not used:
        return f"It is not shown that {asked} works here: nothing was trained on it."
    if used != asked:
        return f"The work did not run on {asked}, but on {used}."
    if _failed(report) == {"against"}:
        return f"The work ran on {asked} as it must, but not as fast or as exactly as before."
    return (
        f"The work ran on {asked}, but something in it is wrong: do not rely on this environment"
        " on this machine."
    )


def _failed(report: Mapping[str, Any]) -> set[str]:
    checks = map(mapping, items(report.get("checks")))
    return {text(check.get("name"), 80) for check in checks if check.get("status") == "failed"}


def _compared(report: Mapping[str, Any]) -> bool:
    """Return whether the numeric checks passed: arithmetic, and gradients of real steps."""
    right = {
        check.get("name")
        for check in map(mapping, items(report.get("checks")))
        if check.get("status") == "passed" and isinstance(check.get("name"), str)
    }
    return {"arithmetic", "gradients"} <= right


def _about(report: Mapping[str, Any]) -> dict[str, str]:
    """Return profile, backend, device, time and version of a report; "" if unknown."""
    device = mapping(report.get("device"))
    return {
        "profile": text(report.get("profile"), 80),
        "backend": text(report.get("backend"), 40),
        "device": text(device.get("name"), 80) or text(device.get("requested"), 40),
        "time": _time(report.get("time")),
        "version": text(report.get("envbuilder"), 40),
    }


def _time(value: Any) -> str:
    try:
        when = datetime.strptime(str(value), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return text(value, 40)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"
