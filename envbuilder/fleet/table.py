"""The table at the end of a run, for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from envbuilder.core import console
from envbuilder.core.text import amount, counted, first, percent, times
from envbuilder.fleet.model import (
    LEFT_OUT,
    MARKS,
    MOST_NAMED,
    OUTCOMES,
    PROVEN,
    Entry,
    Group,
    Summary,
)
from envbuilder.verify import view
from envbuilder.verify.view import Section, Word

MOST_ROWS = 60
"""Up to so many nodes, all of them have a row; of more, only those that were not proven."""


def show(summary: Summary, terminal: Any) -> None:
    """Print the table, remarks on single nodes, and the counts, to rich's console."""
    entries = summary.entries
    everything = len(entries) <= MOST_ROWS
    shown = [entry for entry in entries if everything or entry.outcome not in PROVEN]
    if shown:
        terminal.print(view.table(nodes(shown)))
    if len(shown) < len(entries):
        terminal.print(f"and {counts([e for e in entries if e.outcome in PROVEN])}")
    for entry in entries:
        if entry.outcome != "verified" or entry.partial:
            _remark(terminal, entry.node, entry)
    terminal.print(Text(counts(entries), style="bold"))
    if summary.groups:
        terminal.print()
        terminal.print(view.table(groups(summary.groups)))
    for group in summary.groups:
        if group.outcome != "verified":
            _remark(terminal, first(group.nodes, MOST_NAMED), group)
    if summary.across:
        terminal.print(Text(together(summary), style="bold"))


def nodes(entries: Sequence[Entry]) -> Section:
    """Return a row for each node."""
    rows: list[list[str | Word]] = []
    for entry in entries:
        seconds = "-" if entry.epoch_seconds is None else f"{amount(entry.epoch_seconds)} s"
        share = "-" if entry.share is None else times(entry.share)
        promised = entry.promised or "-"
        word = Word(entry.outcome, MARKS[entry.outcome].tone)
        rows.append([entry.node, promised, entry.device or "-", seconds, share, word])
    return Section(
        title="All nodes",
        header=("node", "promised", "found", "epoch", "share", "verdict"),
        words=(0, 1, 2, 5),
        rows=rows,
    )


def groups(groups: Sequence[Group]) -> Section:
    """Return a row for each group of nodes."""
    rows: list[list[str | Word]] = []
    for group in groups:
        speed = "-" if group.images_per_second is None else f"{group.images_per_second:,.0f}"
        efficiency = "-" if group.efficiency is None else percent(group.efficiency, 0)
        together = first(group.nodes, MOST_NAMED)
        word = Word(group.outcome, MARKS[group.outcome].tone)
        rows.append([together, group.profile or "-", speed, efficiency, word])
    return Section(
        title="Trained together",
        header=("together", "profile", "images/s", "efficiency", "verdict"),
        words=(0, 1, 4),
        rows=rows,
    )


def _remark(terminal: Any, name: str, row: Entry | Group) -> None:
    """Print why a node or a group has its outcome, if that is known."""
    if row.detail:
        line = f"{name}: {row.outcome}: {row.detail}"
        wrapped = textwrap.wrap(line, console.WIDTH, subsequent_indent="  ")
        terminal.print(Text("\n".join(wrapped)))


def together(summary: Summary) -> str:
    """Return in one sentence what became of the nodes that were to train together."""
    if not summary.groups:
        return "No two nodes that are equal were proven, so none trained together."
    number = sum(group.outcome in PROVEN for group in summary.groups)
    return f"{number:,} of {counted(len(summary.groups), 'group')} of nodes trained together."


def counts(entries: Sequence[Entry]) -> str:
    """Return how many nodes have each outcome, such as `3 nodes: 2 verified, 1 wrong`."""
    number = Counter(entry.outcome for entry in entries)
    each = ", ".join(f"{number[outcome]} {outcome}" for outcome in OUTCOMES if number[outcome])
    nothing = "; nothing was examined"
    if number.keys() - LEFT_OUT:
        nothing = ""
    return f"{counted(len(entries), 'node')}: {each or 'none'}{nothing}"
