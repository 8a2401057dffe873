"""Render a run of a fleet as one HTML page that needs no network, and works without its script.

The script, which sorts and searches the table, is the only one that the page's policy admits: by
its hash. Filters by outcome need no script.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core import resources, stamps
from envbuilder.core.text import amount, counted, duration, percent, times
from envbuilder.fleet import drift as drifts
from envbuilder.fleet import table
from envbuilder.fleet.model import LEFT_OUT, MOST_NAMED, OUTCOMES, PROVEN, Entry, named
from envbuilder.fleet.page import marks
from envbuilder.fleet.page.marks import Mark
from envbuilder.fleet.page.strips import strips
from envbuilder.verify.page.page import templates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.fleet.drift import Drift
    from envbuilder.fleet.model import Group, Outcome, Summary


class Verdict(Struct, frozen=True, kw_only=True):
    """The page's verdict: one sentence on what it means, and which nodes are the reasons."""

    passed: bool
    sentence: str
    reasons: tuple[tuple[Mark, str], ...]
    subject: str


class Row(Struct, frozen=True, kw_only=True):
    """A row of the table: texts, and the values that it is sorted by."""

    entry: Entry
    number: int
    """The place of the node among all, which the page's links name."""
    epoch: str
    share: str
    detail: str


def render(summary: Summary, drift: Drift | None = None) -> str:
    """Return the page of a run, compared with an earlier one if there is a comparison."""
    script = (resources.templates_dir() / "fleet" / "page.js").read_text(encoding="utf-8")
    legend = marks.legend(summary.entries)
    numbers = {entry.node: number for number, entry in enumerate(summary.entries)}
    rows = [_row(entry, numbers[entry.node]) for entry in summary.entries]
    page: str = (
        templates()
        .get_template("fleet.html.j2")
        .render(
            summary=summary,
            verdict=verdict(summary, legend),
            figures=tuple(_figures(summary)),
            nodes=len(rows) or sum(len(group.nodes) for group in summary.groups),
            legend=legend,
            legend_order={outcome: place for place, outcome in enumerate(OUTCOMES)},
            numbers=numbers,
            strips=strips(summary.entries),
            rows=sorted(rows, key=lambda row: marks.urgency(row.entry)),
            drift=_drifted(drift) if drift else None,
            groups=[_group(group) for group in summary.groups],
            group_marks=marks.legend(summary.groups),
            together=table.together(summary),
            script=script,
            script_hash=_source_hash(script),
        )
    )
    return page


def verdict(summary: Summary, legend: dict[Outcome, Mark]) -> Verdict:
    """Return the verdict of a run, and why."""
    left_out = sum(entry.outcome in LEFT_OUT for entry in summary.entries)
    examined = len(summary.entries) - left_out
    proven = sum(entry.outcome in PROVEN for entry in summary.entries)
    sentence = "No node was examined." if summary.entries or not summary.groups else ""
    if examined:
        nodes = f"{proven:,} of {counted(examined, 'node')}"
        them = "it" if examined == 1 else "them"
        sentence = f"{nodes} proved by training what was promised of {them}."
    if left_out:
        sentence += f" {counted(left_out, 'node')} {'was' if left_out == 1 else 'were'} left out."
    if summary.across:
        sentence = f"{sentence} {table.together(summary)}".strip()
    if not summary.attested:
        sentence = f"{sentence} {table.NOT_ATTESTED}"
    unproven = [mark for mark in legend.values() if mark.tone in {"bad", "caution"}]
    unproven.sort(key=lambda mark: marks.TONES.index(mark.tone))
    started, finished = stamps.parse(summary.started), stamps.parse(summary.finished)
    took = f"took {duration(max((finished - started).total_seconds(), 0))}"
    parts = (
        summary.scheduler.title(),
        f"run {summary.run}",
        stamps.readable(summary.started),
        took if summary.attested else "not attested",
    )
    return Verdict(
        passed=summary.passed,
        sentence=sentence,
        reasons=tuple((mark, _names(summary, mark.outcome)) for mark in unproven),
        subject=" · ".join(parts),
    )


def _names(summary: Summary, outcome: Outcome) -> str:
    return named([entry.node for entry in summary.entries if entry.outcome == outcome])


def _figures(summary: Summary) -> list[tuple[str, str, str]]:
    """Return label, value and note of the counts below the verdict."""
    if summary.groups and not summary.entries:
        return list(_group_figures(summary.groups))
    counts = [marks.tone(entry.outcome) for entry in summary.entries]
    busy = sum(entry.outcome == "busy" for entry in summary.entries)
    return [
        ("Nodes", f"{len(counts):,}", ""),
        ("Proven", f"{counts.count('good'):,}", f"{busy:,} of them busy" if busy else ""),
        ("Not proven", f"{counts.count('bad') + counts.count('caution'):,}", ""),
        ("Left out", f"{counts.count('left'):,}", ""),
    ]


def _group_figures(groups: Sequence[Group]) -> Iterator[tuple[str, str, str]]:
    """Yield the counts of a run whose nodes only trained together."""
    proven = sum(group.outcome in PROVEN for group in groups)
    yield "Nodes", f"{sum(len(group.nodes) for group in groups):,}", ""
    yield "Groups", f"{len(groups):,}", ""
    yield "Trained together", f"{proven:,}", ""
    yield "Did not", f"{len(groups) - proven:,}", ""


def _row(entry: Entry, number: int) -> Row:
    return Row(
        entry=entry,
        number=number,
        epoch="" if entry.epoch_seconds is None else f"{amount(entry.epoch_seconds)} s",
        share="" if entry.share is None else times(entry.share),
        detail=_detail(entry, job=entry.outcome not in PROVEN),
    )


def _detail(entry: Entry | Group, *, job: bool) -> str:
    """Return the reason of an outcome, and which job and pod it is of."""
    of_job = f"job {entry.job}" if entry.job and job else ""
    pod = f"pod {entry.pod}, not attested" if entry.pod else ""
    return " · ".join(filter(None, (entry.detail, of_job, pod)))


def _group(group: Group) -> dict[str, object]:
    """Return what the page says about nodes that were to train together."""
    speed = group.images_per_second
    notes = (group.profile, group.device, f"{speed:,.0f} images/s" if speed else "")
    return {
        "nodes": group.nodes[:MOST_NAMED],
        "unnamed": len(group.nodes[MOST_NAMED:]),
        "outcome": group.outcome,
        "value": f"{percent(group.efficiency, 0)} efficiency" if group.efficiency else "",
        "note": " · ".join(filter(None, notes)),
        "detail": _detail(group, job=True),
    }


def _drifted(drift: Drift) -> dict[str, object]:
    """Return what the page says about a comparison."""
    return {
        "when": stamps.readable(drift.started),
        "sentences": drifts.sentences(drift),
        "changes": [
            {
                "node": change.node,
                "label": drifts.LABELS[change.kind],
                "detail": change.detail,
                "regression": change.kind in drifts.REGRESSIONS,
            }
            for change in drift.changes
        ],
    }


def _source_hash(script: str) -> str:
    """Return a script as a Content Security Policy names it."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"sha256-{digest}"
