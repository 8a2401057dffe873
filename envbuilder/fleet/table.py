"""The table at the end of a run, for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

from envbuilder.core import console
from envbuilder.core.text import amount, counted, percent
from envbuilder.fleet.model import LEFT_OUT, OUTCOMES, PROVEN, named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.fleet.model import Entry, Group, Summary

_COLOURS = {
    "verified": "green",
    "busy": "green",
    "slow": "yellow",
    "unproven": "yellow",
    "drained": "dim",
}
_COLOURS |= {"unmapped": "dim", "pending": "yellow", "interrupted": "yellow"}
NOT_ATTESTED = "Not attested: node, pod and run are those that the saved logs name."
MOST_ROWS = 60
"""Up to so many nodes, all of them have a row; of more, only those that were not proven."""


def show(summary: Summary, terminal: Any) -> None:
    """Print the table, what is to be said of single nodes, and the counts, to rich's console."""
    from rich.table import Table
    from rich.text import Text

    entries = summary.entries
    everything = len(entries) <= MOST_ROWS
    shown = [entry for entry in entries if everything or entry.outcome not in PROVEN]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node", overflow="fold", max_width=20)
    table.add_column("promised", overflow="fold", max_width=14)
    table.add_column("found", overflow="ellipsis", no_wrap=True, max_width=24)
    table.add_column("epoch", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for entry in shown:
        seconds, share = entry.epoch_seconds, entry.share
        table.add_row(
            Text(entry.node),
            Text(entry.promised or "-"),
            Text(entry.device or "-"),
            f"{amount(seconds)} s" if seconds is not None else "-",
            f"{share:.2f}×" if share is not None else "-",
            Text(entry.outcome, style=_COLOURS.get(entry.outcome, "red")),
        )
    if shown:
        terminal.print(table)
    if len(shown) < len(entries):
        terminal.print(f"and {counts([e for e in entries if e.outcome in PROVEN])}")
    for line in remarks(entries):
        terminal.print(Text(line))
    if entries or not summary.across:
        terminal.print(Text(counts(entries), style="bold"))
    if summary.across:
        _show_groups(summary, terminal)
    if not summary.attested:
        terminal.print(Text(NOT_ATTESTED))


def _show_groups(summary: Summary, terminal: Any) -> None:
    """Print the nodes that trained together."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("together", overflow="fold", max_width=28)
    table.add_column("profile", overflow="fold", max_width=14)
    table.add_column("images/s", justify="right", no_wrap=True)
    table.add_column("efficiency", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for group in summary.groups:
        speed = group.images_per_second
        table.add_row(
            Text(named(group.nodes)),
            Text(group.profile or "-"),
            f"{speed:,.0f}" if speed is not None else "-",
            percent(group.efficiency, 0) if group.efficiency is not None else "-",
            Text(group.outcome, style=_COLOURS.get(group.outcome, "red")),
        )
    if summary.groups:
        if summary.entries:
            terminal.print()
        terminal.print(table)
    for group in summary.groups:
        if group.outcome != "verified" and group.detail:
            terminal.print(Text("\n".join(_remark(named(group.nodes), group))))
    terminal.print(Text(together(summary), style="bold"))


def together(summary: Summary) -> str:
    """Return in one sentence what became of the nodes that were to train together."""
    if not summary.groups:
        return "No two nodes that are equal were proven, so none trained together."
    number = sum(group.outcome in PROVEN for group in summary.groups)
    return f"{number:,} of {counted(len(summary.groups), 'group')} of nodes trained together."


def remarks(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield why nodes were not verified, or not all of them, or their speed not judged."""
    for entry in entries:
        if (entry.outcome != "verified" or entry.partial) and entry.detail:
            yield from _remark(entry.node, entry)


def _remark(name: str, what: Entry | Group) -> list[str]:
    line = f"{name}: {what.outcome}: {what.detail}"
    return textwrap.wrap(line, console.WIDTH, subsequent_indent="  ")


def counts(entries: Sequence[Entry]) -> str:
    """Return how many nodes have each outcome, such as `3 nodes: 2 verified, 1 wrong`."""
    number = Counter(entry.outcome for entry in entries)
    each = ", ".join(f"{number[outcome]} {outcome}" for outcome in OUTCOMES if number[outcome])
    examined = sum(number[outcome] for outcome in OUTCOMES if outcome not in LEFT_OUT)
    nothing = "" if examined else "; nothing was examined"
    return f"{counted(len(entries), 'node')}: {each or 'none'}{nothing}"
