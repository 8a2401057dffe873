"""The page of proven hardware: a row for each report in `docs/evidence/reports`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from envbuilder.payload.frameworks import title
from envbuilder.verify.report import model
from tools.matrix import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

REPORTS = REPOSITORY / "docs/evidence/reports"
PAGE = """\
# Proven hardware

Each row is a report in this repository that `envbuilder verify` or `envbuilder doctor --prove`
wrote on that machine. Hardware that is not listed is not proven, whatever a profile says. To add
yours, use the issue form *Proven hardware*; a failed verification helps just as much. An epoch is
one pass over all 60,000 images of MNIST at batch 64.

| hardware | driver | profile | framework | verdict | epoch | accuracy | made by |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


_OF_A_USER = re.compile(r"(?<![\w.])/(home|Users|root)/")
"""Matches the beginning of a path below a user's home, which names the user."""


def page() -> str:
    """Return the page; raise `VerifyError` if a report is not valid.

    Raise `SystemExit` if a report names its user.
    """
    reports = {path: report(path) for path in REPORTS.glob("*.json")}
    rows = sorted(reports.items(), key=lambda row: (row[1].status != "passed", row[0].name))
    return PAGE + "".join(_row(path, report) for path, report in rows)


def report(path: Path) -> model.Report:
    """Return a report that can be published, or raise as `page` does."""
    text = path.read_text()
    if _OF_A_USER.search(text):
        raise SystemExit(f'{path}: names its user; run sed -i "s|/home/NAME|~|g" on it')
    return model.check(json.loads(text))


def _row(path: Path, report: model.Report) -> str:
    day = report.time or ""
    cells = (
        _hardware(report),
        report.device.driver or "–",
        f"`{report.profile}`",
        f"{title(report.framework.name)} {report.framework.version}",
        f"[{report.status}](../evidence/reports/{path.name})",
        *_epoch(report),
        f"{report.envbuilder}, {day[:4]}-{day[4:6]}-{day[6:8]}",
    )
    return f"| {' | '.join(cells)} |\n"


def _hardware(report: model.Report) -> str:
    """Return the device that trained, and the generation of a CPU, whose name often says little."""
    cpu = report.host.cpu
    name = report.device.name or cpu.model_name
    if report.device.used == "cpu" or not report.device.used:
        name = f"{name} ({cpu.generation})"
    return name


def _epoch(report: model.Report) -> tuple[str, str]:
    """Return the seconds and the accuracy of a whole epoch; dashes without one."""
    if not report.training or not report.training.epochs:
        return "–", "–"
    last = report.training.epochs[-1]
    is_whole = report.dataset and not (report.dataset.subset or report.quick)
    return f"{last.seconds:.1f} s" if is_whole else "part", f"{last.accuracy:.1%}"
