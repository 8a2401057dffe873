"""Compute the strips of epochs: one per kind of node, each node a point, outliers by name.

A point's place is its share of the median of its equals, which the judgement is based on; so all
strips have one scale, however fast their nodes are.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.text import amount, counted, duration, times
from envbuilder.fleet.judge import LEAST_EQUALS
from envbuilder.verify.page.charts import position
from envbuilder.verify.report.regression import MAX_SLOWDOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from envbuilder.fleet.model import Entry

    Across = Callable[[float], float]

LOWEST, HIGHEST = 0.25, 3.0
"""Points beyond these shares are drawn at their places."""
_MARGIN = 2.0
"""Percent of the width on either side, so that no point is cut."""
MOST_NAMED = 12
_USUAL = (0.8, 1.4)
"""The scale covers these shares at least, so that noise does not look like a difference."""
_TICKS = (0.25, 0.5, 0.75, 1.0, MAX_SLOWDOWN, 2.0, 3.0)
_GOLDEN = 0.618


class Strip(Struct, frozen=True, kw_only=True):
    """The epochs of nodes of one kind; places are in percent of the width."""

    label: str
    note: str
    value: str
    spread: str
    box: tuple[float, float]
    """Start and width of the middle half of the nodes."""
    points: str
    outliers: str
    """SVG paths of lines without a length, which are drawn as dots."""
    named: tuple[tuple[str, str], ...]
    """Outliers, the slowest first: node and share."""
    unnamed: int
    """Outliers beyond `MOST_NAMED`."""
    spoken: str


class Strips(Struct, frozen=True, kw_only=True):
    """All strips, and their common scale: ticks as (percent, text)."""

    rows: tuple[Strip, ...]
    ticks: tuple[tuple[float, str], ...]
    median: float
    limit: float
    few: tuple[str, ...]
    """What is known of kinds with too few nodes to compare."""


def strips(entries: Sequence[Entry]) -> Strips:
    """Return the strips of a run: one for each kind with a median, the largest first."""
    timed = [e for e in entries if e.epoch_seconds is not None]
    groups = _groups(e for e in timed if e.share is not None)
    compared = {kind: group for kind, group in groups.items() if len(group) >= LEAST_EQUALS}
    drawn = {e.node for group in compared.values() for e in group}
    alone = _groups(e for e in timed if e.node not in drawn and e.outcome in {"verified", "slow"})
    shares = [e.share for group in compared.values() for e in group if e.share is not None]
    low = max(LOWEST, min([_USUAL[0], *shares]))
    high = min(HIGHEST, max([_USUAL[1], *shares]))

    def across(share: float) -> float:
        return _MARGIN + position(share - low, high - low) * (1 - _MARGIN / 50)

    ticks = [tick for tick in _TICKS if low <= tick <= high]
    ordered = sorted(compared.items(), key=lambda item: -len(item[1]))
    return Strips(
        rows=tuple(_strip(label, note, group, across) for (label, note), group in ordered),
        ticks=tuple((round(across(tick), 2), times(tick)) for tick in ticks),
        median=round(across(1.0), 2),
        limit=round(across(MAX_SLOWDOWN), 2),
        few=tuple(_few(label, note, group) for (label, note), group in alone.items()),
    )


def _groups(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    """Return entries by their device and by what did the work on it."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        note = " · ".join(filter(None, (entry.profile, entry.backend, entry.framework)))
        groups.setdefault((entry.device, note), []).append(entry)
    return groups


def _strip(label: str, note: str, group: Sequence[Entry], across: Across) -> Strip:
    shares = [entry.share or 0.0 for entry in group]
    low, _, high = statistics.quantiles(shares, n=4, method="inclusive")
    far = [e for e in group if _is_outlier(e)]
    far.sort(key=lambda entry: -(entry.share or 0.0))
    near = [e for e in group if not _is_outlier(e)]
    seconds = [e.epoch_seconds for e in group if e.epoch_seconds is not None]
    value = f"median {duration(statistics.median(seconds))}"
    spread = f"{duration(min(seconds))} to {duration(max(seconds))}"
    nodes = counted(len(group), "node")
    outliers = f"{counted(len(far), 'outlier')}" if far else "no outlier"
    return Strip(
        label=label,
        note=note,
        value=value,
        spread=f"{nodes}, {spread}",
        box=(round(across(low), 2), round(across(high) - across(low), 2)),
        points=_dots(near, across),
        outliers=_dots(far, across),
        named=tuple((e.node, times(e.share or 0.0)) for e in far[:MOST_NAMED]),
        unnamed=len(far[MOST_NAMED:]),
        spoken=f"{label}: {nodes}, {value}, {spread}, {outliers}",
    )


def _is_outlier(entry: Entry) -> bool:
    share = entry.share or 0.0
    return not 1 / MAX_SLOWDOWN <= share <= MAX_SLOWDOWN


def _dots(group: Iterable[Entry], across: Across) -> str:
    """Return one path for all points; their heights only keep them apart."""
    return "".join(
        f"M{across(entry.share or 0.0):.4g} {10 + 80 * (number * _GOLDEN % 1):.0f}h0"
        for number, entry in enumerate(group)
    )


def _few(label: str, note: str, group: Sequence[Entry]) -> str:
    times_each = [
        f"{e.node} {amount(e.epoch_seconds)} s" for e in group if e.epoch_seconds is not None
    ]
    shown = ", ".join(times_each[:MOST_NAMED])
    more = f" and {len(times_each) - MOST_NAMED} more" if len(times_each) > MOST_NAMED else ""
    return f"{label} ({note}): {shown}{more}"
