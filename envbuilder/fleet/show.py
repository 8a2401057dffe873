"""Show a run on a fleet: a table for the terminal, and an HTML page without network or scripts."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from rich.text import Text

from envbuilder.core import console, text
from envbuilder.core.errors import counted, first
from envbuilder.fleet import drift as drifts
from envbuilder.fleet.model import (
    LEFT_OUT,
    MARKS,
    MOST_NAMED,
    OUTCOMES,
    PROVEN,
    Entry,
    Summary,
)
from envbuilder.verify import view
from envbuilder.verify.view import Fact, Section, Word

MOST_ROWS = 60
"""Maximum number of nodes for which each gets a row. With more nodes, only unproven ones do."""


def print_table(summary: Summary, terminal: Any) -> None:
    """Print the table, remarks on individual nodes and the counts to a rich console."""
    entries = summary.entries
    everything = len(entries) <= MOST_ROWS
    shown = [entry for entry in entries if everything or entry.outcome not in PROVEN]
    if shown:
        terminal.print(view.table(_nodes(shown)))
    if len(shown) < len(entries):
        terminal.print(f"and {_counts([e for e in entries if e.outcome in PROVEN])}")
    for entry in entries:
        if entry.outcome != "verified" or entry.partial:
            _remark(terminal, entry)
    terminal.print(Text(_counts(entries), style="bold"))


def _nodes(entries: Sequence[Entry]) -> Section:
    """Return a table with one row per node."""
    rows: list[list[str | Word]] = []
    for entry in entries:
        seconds = "-" if entry.epoch_seconds is None else f"{text.amount(entry.epoch_seconds)} s"
        share = "-" if entry.share is None else text.times(entry.share)
        rows.append(
            [
                entry.node,
                Word(entry.outcome, MARKS[entry.outcome].tone),
                entry.promised or "-",
                entry.device or "-",
                seconds,
                share,
            ]
        )
    return Section(
        title="All nodes",
        header=("node", "verdict", "promised", "found", "epoch", "share"),
        words=range(4),
        rows=rows,
    )


def _remark(terminal: Any, entry: Entry) -> None:
    """Print the reason for the outcome of a node, if it is known."""
    if entry.detail:
        wrapped = textwrap.wrap(
            f"{entry.node}: {entry.outcome}: {entry.detail}",
            console.WIDTH,
            subsequent_indent="  ",
        )
        terminal.print(Text("\n".join(wrapped)))


def _counts(entries: Sequence[Entry]) -> str:
    """Return the number of nodes with each outcome, such as `3 nodes: 2 verified, 1 wrong`."""
    number = Counter(entry.outcome for entry in entries)
    numbers = ", ".join(f"{number[outcome]} {outcome}" for outcome in OUTCOMES if number[outcome])
    nothing = "; nothing was examined"
    if number.keys() - LEFT_OUT:
        nothing = ""
    return f"{counted(len(entries), 'node')}: {numbers or 'none'}{nothing}"


def page(summary: Summary, drift: drifts.Drift | None = None) -> str:
    """Return the HTML page of a run, including the comparison with an earlier run, if given."""
    heading = "NOT VERIFIED"
    if summary.passed:
        heading = "VERIFIED"
    sections = [Section(title="What became of the nodes", facts=_outcomes(summary.entries))]
    if drift:
        sections.append(_drift(drift))
    # What needs attention comes first.
    urgent = sorted(summary.entries, key=lambda e: view.TONES.index(MARKS[e.outcome].tone))
    nodes = _nodes(urgent)
    sections.append(
        replace(
            nodes,
            header=(*nodes.header, "detail"),
            words=(*nodes.words, len(nodes.header)),
            rows=[(*row, _detail(e)) for row, e in zip(nodes.rows, urgent, strict=True)],
        )
    )
    return view.render(
        view.Page(
            heading=heading,
            title=f"{heading}: run {summary.run} of a fleet",
            verdict="passed" if summary.passed else "failed",
            tag="quick look" if summary.quick else "",
            sentence=_counts(summary.entries),
            reasons=_reasons(summary.entries),
            subject=_subject(summary),
            sections=sections,
            source="what the nodes sent",
        )
    )


def _outcomes(entries: Sequence[Entry]) -> list[Fact]:
    """Return the number of nodes with each outcome, and what the outcome means."""
    number = Counter(entry.outcome for entry in entries)
    return [Fact(f"{number[o]:,} {o}", MARKS[o].meaning) for o in OUTCOMES if number[o]]


def _reasons(entries: Sequence[Entry]) -> list[str]:
    """Return the reasons why a run did not pass: outcomes with their nodes, most urgent first."""
    reasons = []
    for tone in ("bad", "caution"):
        for outcome in OUTCOMES:
            nodes = [entry.node for entry in entries if entry.outcome == outcome]
            if nodes and MARKS[outcome].tone == tone:
                reasons.append(f"{len(nodes)} {outcome}: {first(nodes, MOST_NAMED)}")
    return reasons


def _subject(summary: Summary) -> tuple[str, ...]:
    started = text.stamp_time(summary.started)
    seconds = (text.stamp_time(summary.finished) - started).total_seconds()
    return (
        "Slurm",
        f"run {summary.run}",
        text.readable_stamp(summary.started),
        f"took {text.duration(max(seconds, 0))}",
    )


def _detail(row: Entry) -> str:
    """Return the reason for the outcome of a node, the source of its promise, and its job."""
    promised = ""
    if row.promised:
        promised = f"by {row.why}"
    job = ""
    if row.job and row.outcome not in PROVEN:
        job = f"job {row.job}"
    return " · ".join(filter(None, (row.detail, promised, job)))


def _drift(drift: drifts.Drift) -> Section:
    """Return a report section on the changes since an earlier run."""
    return Section(
        title=f"Against the run of {text.readable_stamp(drift.started)}",
        header=("node", "change", "detail"),
        words=range(3),
        rows=[(c.node, drifts.label(c.kind), c.detail) for c in drift.changes],
        notes=drifts.sentences(drift),
    )
