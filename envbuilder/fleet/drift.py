"""Compare a run on a fleet with an earlier one, node by node. The code is pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Literal, get_args

from msgspec import Struct

from envbuilder.core import text
from envbuilder.core.errors import InvalidError, counted
from envbuilder.fleet.model import PROVEN, Entry, NodeName, Outcome, RunId, Summary
from envbuilder.verify.report.history import MAX_SLOWDOWN

Kind = Literal["worse", "device", "slower", "gone", "changed", "new", "better", "faster"]
"""How a node changed, the most important kind first. `worse` and `better`: its outcome has another
rank; the ranks are proven, slow and anything else, best first. `changed`: it has another outcome of
the same rank. `device`: another device did the work. `slower` and `faster`: its epoch time changed
by more than the factor `MAX_SLOWDOWN`. `gone` and `new`: it is only in the earlier or only in the
later run."""
KINDS: tuple[Kind, ...] = get_args(Kind)
REGRESSIONS: frozenset[Kind] = frozenset({"worse", "device", "slower"})
_TIMED: frozenset[Outcome] = frozenset({"verified", "slow"})
"""Outcomes for which the speed was judged. The speed of a busy node is neither compared nor held
against it."""


class Change(Struct, frozen=True, kw_only=True):
    """One way in which a node differs from the earlier run. A node may have several changes."""

    node: NodeName
    kind: Kind
    detail: str


class Drift(Struct, frozen=True, kw_only=True):
    """How a run differs from an earlier one."""

    earlier: RunId
    started: str
    """The start time of the earlier run (UTC), such as 20261123T091500Z."""
    changes: tuple[Change, ...]
    """The changes, ordered by `KINDS` and then by node."""
    common: int
    """The number of nodes that are in both runs."""
    timed: int
    """The number of nodes whose speed was judged on the same device in both runs."""
    ratio: float | None
    """The median over these nodes of the epoch time divided by the earlier one. None without such
    nodes."""

    @property
    def regressed(self) -> bool:
        """Whether any node became worse or slower, or used another device."""
        return any(change.kind in REGRESSIONS for change in self.changes)


def require_comparable(earlier: Summary | None, *, run: str, quick: bool) -> None:
    """Raise `InvalidError` if a run cannot be compared with `earlier`.

    The run need not have started yet. If `earlier` is None, do nothing.
    """
    if earlier is None:
        return
    if earlier.run == run:
        raise InvalidError(f"the run {run} cannot be compared with itself", "Name an earlier run.")
    if earlier.quick != quick:
        raise InvalidError(
            f"the run {earlier.run} trained on other images (the full MNIST, or a subset of it);"
            " its times and outcomes cannot be compared with this run's",
            "Verify both with --quick, or both without.",
        )


def compare(earlier: Summary, now: Summary) -> Drift:
    """Return how `now` differs from `earlier`. Raise `InvalidError` if they cannot be compared."""
    require_comparable(
        earlier,
        run=now.run,
        quick=now.quick,
    )
    then = {entry.node: entry for entry in earlier.entries}
    both = [(then[entry.node], entry) for entry in now.entries if entry.node in then]
    changes: list[Change] = []
    for before, entry in both:
        changes += _changes(before, entry)
    for entry in now.entries:
        if entry.node not in then:
            changes.append(Change(node=entry.node, kind="new", detail=f"it is {entry.outcome}"))
    nodes = {entry.node for entry in now.entries}
    for entry in earlier.entries:
        if entry.node not in nodes:
            changes.append(Change(node=entry.node, kind="gone", detail=f"it was {entry.outcome}"))
    ratios = [ratio for pair in both if (ratio := _ratio(*pair)) is not None]
    return Drift(
        earlier=earlier.run,
        started=earlier.started,
        changes=tuple(sorted(changes, key=lambda change: KINDS.index(change.kind))),
        common=len(both),
        timed=len(ratios),
        ratio=statistics.median(ratios) if ratios else None,
    )


def sentences(drift: Drift) -> list[str]:
    """Return a summary of a comparison as sentences: the number of changes, and the speed."""
    number = Counter(change.kind for change in drift.changes)
    nodes = counted(drift.common, "node")
    shown = [f"Nothing changed on {nodes}."]
    if number:
        numbers = ", ".join(f"{number[kind]} {label(kind)}" for kind in KINDS if number[kind])
        shown = [f"{numbers}; {nodes} {'is' if drift.common == 1 else 'are'} in both runs."]
    if drift.ratio is None:
        shown.append("No node's speed was judged in both runs on the same device.")
    else:
        timed = counted(drift.timed, "node")
        shown.append(f"The median epoch of {timed} took {drift.ratio:.2f} times as long as then.")
    return shown


def lines(drift: Drift) -> list[str]:
    """Return a comparison as lines for a terminal: its summary, then every change."""
    return [
        f"Against the run {drift.earlier} of {text.readable_stamp(drift.started)}",
        *sentences(drift),
        *(f"{c.node}: {label(c.kind)}: {c.detail}" for c in drift.changes),
    ]


def label(kind: Kind) -> str:
    """Return the name of a kind of change."""
    return "on another device" if kind == "device" else kind


def _changes(before: Entry, now: Entry) -> Iterator[Change]:
    """Yield the changes of a node that is in both runs."""
    rank = _rank(now.outcome)
    earlier_rank = _rank(before.outcome)
    # A node that was merely busy did not change.
    if before.outcome != now.outcome and not rank == earlier_rank == 0:
        kind: Kind = "changed"
        if rank > earlier_rank:
            kind = "worse"
        elif rank < earlier_rank:
            kind = "better"
        reason = ""
        if now.detail and kind != "better":
            reason = f": {now.detail}"
        yield Change(
            node=now.node, kind=kind, detail=f"was {before.outcome}, is {now.outcome}{reason}"
        )
    # Without a report, `device` is what was seen there, not what did the work.
    if before.accelerator and now.accelerator:
        was = before.device
        is_now = now.device
        if before.gpus and now.gpus and before.gpus != now.gpus:
            was = f"{before.gpus} × {was}"
            is_now = f"{now.gpus} × {is_now}"
        if was != is_now:
            yield Change(node=now.node, kind="device", detail=f"was {was}, is {is_now}")
    ratio = _ratio(before, now)
    if ratio is not None and not 1 / MAX_SLOWDOWN <= ratio <= MAX_SLOWDOWN:
        yield Change(
            node=now.node,
            kind="slower" if ratio > 1 else "faster",
            detail=_speed(before, now, ratio),
        )


def _rank(outcome: Outcome) -> int:
    if outcome in PROVEN:
        return 0
    if outcome == "slow":
        return 1
    return 2


def _ratio(before: Entry, now: Entry) -> float | None:
    """Return a node's epoch time divided by the earlier one, or None if they are not comparable."""
    if not _TIMED.issuperset({before.outcome, now.outcome}) or before.device != now.device:
        return None
    seconds = now.epoch_seconds
    earlier_seconds = before.epoch_seconds
    if not seconds or not earlier_seconds or min(seconds, earlier_seconds) < 0:
        return None
    return seconds / earlier_seconds


def _speed(before: Entry, now: Entry, ratio: float) -> str:
    """Return a sentence on two epoch times, with other differences that may explain the change."""
    was = text.amount(before.epoch_seconds or 0)
    took = text.amount(now.epoch_seconds or 0)
    speed = f"its epoch took {ratio:.2f} times as long, {took} s instead of {was} s"
    for name in ("profile", "backend", "framework"):
        earlier = getattr(before, name) or "unknown"
        current = getattr(now, name) or "unknown"
        if current != earlier:
            speed += f"; its {name} was {earlier}, is {current}"
    return speed
