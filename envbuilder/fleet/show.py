"""Show the results of a fleet run as a table on the terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from envbuilder.core import console, text
from envbuilder.core.errors import counted
from envbuilder.fleet.model import (
    LEFT_OUT,
    OUTCOMES,
    PROVEN,
    TONES,
    Entry,
    Summary,
)
from envbuilder.verify import view
from envbuilder.verify.view import Section, Word

MOST_ROWS = 60
"""Maximum number of nodes for which every node gets a row. If there are more nodes, only unproven
nodes get a row."""


def print_table(summary: Summary, terminal: Any) -> None:
    """Print the table to a rich console, followed by remarks on individual nodes and the counts."""
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
                Word(entry.outcome, TONES[entry.outcome]),
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
    """Print the reason for a node's outcome, if it is known."""
    if entry.detail:
        wrapped = textwrap.wrap(
            f"{entry.node}: {entry.outcome}: {entry.detail}",
            console.WIDTH,
            subsequent_indent="  ",
        )
        terminal.print(Text("\n".join(wrapped)))


def _counts(entries: Sequence[Entry]) -> str:
    """Return the number of nodes for each outcome, such as `3 nodes: 2 verified, 1 wrong`."""
    number = Counter(entry.outcome for entry in entries)
    numbers = ", ".join(f"{number[outcome]} {outcome}" for outcome in OUTCOMES if number[outcome])
    nothing = "; nothing was examined"
    if number.keys() - LEFT_OUT:
        nothing = ""
    return f"{counted(len(entries), 'node')}: {numbers or 'none'}{nothing}"
