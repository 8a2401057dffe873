"""Compare the nodes that trained together in two runs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.text import counted, percent
from envbuilder.fleet import changes
from envbuilder.fleet.changes import KINDS, Kind
from envbuilder.fleet.model import PROVEN, NodeName, named
from envbuilder.verify.report.regression import MAX_SLOWDOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envbuilder.fleet.model import Group, Summary


class GroupChange(Struct, frozen=True, kw_only=True):
    """One way in which nodes that trained together differ from the earlier run."""

    nodes: tuple[NodeName, ...]
    kind: Kind
    detail: str


class GroupDrift(Struct, frozen=True, kw_only=True):
    """How the groups of a run differ from those of an earlier one."""

    changes: tuple[GroupChange, ...]
    """In the order of `KINDS`, then in that of the groups."""
    common: int
    """Groups of the same nodes in both runs."""


def compare(earlier: Summary, now: Summary) -> GroupDrift | None:
    """Return how the groups differ; None if nodes were not to train together now.

    Groups are the same if their nodes are. Of others it matters only whether their nodes still
    train together with some: which equal nodes form a group depends on how many there are.
    """
    if not now.across:
        return None
    before = {frozenset(group.nodes): group for group in earlier.groups}
    after = {frozenset(group.nodes): group for group in now.groups}
    busy = {e.node for run in (earlier, now) for e in run.entries if e.outcome == "busy"}
    differences = [
        change
        for nodes, group in before.items()
        for change in (
            _changes(group, after[nodes], timed=not nodes & busy)
            if nodes in after
            else _dissolved(group, now)
        )
    ]
    differences += [
        GroupChange(nodes=group.nodes, kind="new", detail=f"it is {group.outcome}")
        for nodes, group in after.items()
        if nodes not in before
    ]
    return GroupDrift(
        changes=tuple(sorted(differences, key=lambda change: KINDS.index(change.kind))),
        common=len(before.keys() & after.keys()),
    )


def headline(drift: GroupDrift) -> str:
    """Return what a comparison showed in one sentence."""
    numbers = changes.numbers(change.kind for change in drift.changes)
    groups = counted(drift.common, "group")
    if not numbers:
        return f"Nothing changed on {groups} of nodes."
    verb = "is" if drift.common == 1 else "are"
    return f"Nodes together: {numbers}; {groups} {verb} in both runs."


def _changes(before: Group, now: Group, *, timed: bool) -> Iterator[GroupChange]:
    """Yield how a group that is in both runs changed."""
    if changed := changes.of_outcome(before.outcome, now.outcome, now.detail):
        yield GroupChange(nodes=now.nodes, kind=changed[0], detail=changed[1])
    if not PROVEN.issuperset({before.outcome, now.outcome}):
        return
    if _devices(before) != _devices(now):
        detail = f"was {_devices(before)}, is {_devices(now)}"
        yield GroupChange(nodes=now.nodes, kind="device", detail=detail)
    elif timed and before.images_per_second and now.images_per_second:
        yield from _paced(before, now, before.images_per_second / now.images_per_second)


def _paced(before: Group, now: Group, ratio: float) -> Iterator[GroupChange]:
    """Yield a change of speed; `ratio` is the time for an image as a multiple of the earlier one.

    The limit is that of a node: each step waits for the slowest node of the group, so what is usual
    for a node is usual for a group. Efficiency is no limit of its own, since it falls, too, when
    the devices become faster alone; it tells whether the devices or what is between them changed.
    """
    if 1 / MAX_SLOWDOWN <= ratio <= MAX_SLOWDOWN:
        return
    speeds = (
        f"{now.images_per_second or 0:,.0f} images/s instead of"
        f" {before.images_per_second or 0:,.0f}"
    )
    detail = f"an image took {ratio:.2f} times as long, {speeds}"
    if now.efficiency is not None and before.efficiency is not None:
        detail += f"; efficiency {percent(now.efficiency, 0)} instead of"
        detail += f" {percent(before.efficiency, 0)}"
    yield GroupChange(nodes=now.nodes, kind="slower" if ratio > 1 else "faster", detail=detail)


def _devices(group: Group) -> str:
    return " × ".join(filter(None, (str(group.ranks or ""), group.device or "unknown devices")))


def _dissolved(before: Group, now: Summary) -> Iterator[GroupChange]:
    """Yield what became of a group whose very nodes are no group now."""
    nodes = {entry.node for entry in now.entries} | _of(now.groups)
    if not nodes.issuperset(before.nodes):
        yield GroupChange(nodes=before.nodes, kind="gone", detail=f"it was {before.outcome}")
        return
    proven = _of(group for group in now.groups if group.outcome in PROVEN)
    without = [node for node in before.nodes if node not in proven]
    was_proven = before.outcome in PROVEN
    kind: Kind = "changed"
    if was_proven == bool(without):
        kind = "worse" if without else "better"
    elsewhere = "not in step: " + named(without) if without else "they train in other groups now"
    detail = f"was {before.outcome}; {elsewhere}"
    yield GroupChange(nodes=before.nodes, kind=kind, detail=detail)


def _of(groups: Iterable[Group]) -> set[str]:
    return {node for group in groups for node in group.nodes}
