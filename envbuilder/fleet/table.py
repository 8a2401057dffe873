"""The table at the end of a run, for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
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
    Outcome,
    Summary,
    Tone,
)

_COLOURS: dict[Tone, str] = {"good": "green", "caution": "yellow", "bad": "red", "left": "dim"}
NOT_ATTESTED = "Not attested: node, pod and run are those that the saved logs name."
MOST_ROWS = 60
"""Up to so many nodes, all of them have a row; of more, only those that were not proven."""
_FOLDED = {"overflow": "fold"}
_NUMBER = {"justify": "right", "no_wrap": True}
_NODE_COLUMNS: dict[str, dict[str, Any]] = {
    "node": {**_FOLDED, "max_width": 20},
    "promised": {**_FOLDED, "max_width": 14},
    "found": {"overflow": "ellipsis", "no_wrap": True, "max_width": 24},
    "epoch": _NUMBER,
    "share": _NUMBER,
    "verdict": {"no_wrap": True},
}
_GROUP_COLUMNS: dict[str, dict[str, Any]] = {
    "together": {**_FOLDED, "max_width": 28},
    "profile": {**_FOLDED, "max_width": 14},
    "images/s": _NUMBER,
    "efficiency": _NUMBER,
    "verdict": {"no_wrap": True},
}


def show(summary: Summary, terminal: Any) -> None:
    """Print the table, remarks on single nodes, and the counts, to rich's console."""
    entries = summary.entries
    everything = len(entries) <= MOST_ROWS
    shown = [entry for entry in entries if everything or entry.outcome not in PROVEN]
    if shown:
        terminal.print(console.table(_NODE_COLUMNS, (_row(_cells(e), e.outcome) for e in shown)))
    if len(shown) < len(entries):
        terminal.print(f"and {counts([e for e in entries if e.outcome in PROVEN])}")
    for entry in entries:
        if entry.outcome != "verified" or entry.partial:
            _remark(terminal, entry.node, entry)
    if entries or not summary.across:
        terminal.print(Text(counts(entries), style="bold"))
    if summary.groups:
        if entries:
            terminal.print()
        rows = (_row(_group_cells(group), group.outcome) for group in summary.groups)
        terminal.print(console.table(_GROUP_COLUMNS, rows))
    for group in summary.groups:
        if group.outcome != "verified":
            _remark(terminal, first(group.nodes, MOST_NAMED), group)
    if summary.across:
        terminal.print(Text(together(summary), style="bold"))
    if not summary.attested:
        terminal.print(Text(NOT_ATTESTED))


def _row(cells: Sequence[str], outcome: Outcome) -> Iterator[str | Text]:
    """Yield the cells of a row, the verdict last."""
    yield from (cell or "-" for cell in cells)
    yield Text(outcome, style=_COLOURS[MARKS[outcome].tone])


def _cells(entry: Entry) -> Sequence[str]:
    seconds = "" if entry.epoch_seconds is None else f"{amount(entry.epoch_seconds)} s"
    share = "" if entry.share is None else times(entry.share)
    return entry.node, entry.promised, entry.device, seconds, share


def _group_cells(group: Group) -> Sequence[str]:
    speed = "" if group.images_per_second is None else f"{group.images_per_second:,.0f}"
    efficiency = "" if group.efficiency is None else percent(group.efficiency, 0)
    return first(group.nodes, MOST_NAMED), group.profile, speed, efficiency


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
    nothing = "" if number.keys() - LEFT_OUT else "; nothing was examined"
    return f"{counted(len(entries), 'node')}: {each or 'none'}{nothing}"
