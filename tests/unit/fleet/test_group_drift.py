"""Groups of two runs are compared by their nodes, and only where they compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.fleet import group_drift
from envbuilder.verify.report.regression import MAX_SLOWDOWN
from tests.support.fleet_runs import earlier, entry, group, summary, unreported

if TYPE_CHECKING:
    from envbuilder.fleet.group_drift import GroupDrift
    from envbuilder.fleet.model import Entry, Group


def compared(before: list[Group], now: list[Group], *entries: Entry, **changes: Any) -> GroupDrift:
    """Compare two runs of these groups; the entries are those of the run now."""
    nodes = entries or [entry(n) for n in sorted({n for g in (*before, *now) for n in g.nodes})]
    first = earlier(*nodes, across=True, groups=tuple(before))
    second = summary(*nodes, **{"across": True, "groups": tuple(now), **changes})
    drift = group_drift.compare(first, second)
    assert drift is not None
    return drift


def kinds(drift: GroupDrift) -> list[tuple[str, str]]:
    return [("".join(change.nodes), change.kind) for change in drift.changes]


def test_the_same_again_is_no_change() -> None:
    drift = compared([group("a", "b")], [group("b", "a")])
    assert (drift.changes, drift.common) == ((), 1)
    assert group_drift.headline(drift) == "Nothing changed on 1 group of nodes."


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        ("verified", "failed", "worse"),
        ("verified", "pending", "worse"),
        ("failed", "verified", "better"),
        ("failed", "killed", "changed"),
        ("failed", "failed", None),
    ],
)
def test_outcomes_have_ranks(before: Any, now: Any, kind: str | None) -> None:
    drift = compared([group("a", "b", outcome=before)], [group("a", "b", outcome=now)])
    assert kinds(drift) == ([("ab", kind)] if kind else [])


@pytest.mark.parametrize(
    ("slowdown", "kind"),
    [
        (1.0, None),
        (MAX_SLOWDOWN - 0.001, None),
        (MAX_SLOWDOWN + 0.01, "slower"),
        (1 / MAX_SLOWDOWN + 0.001, None),
        (0.76, "faster"),
    ],
)
def test_a_group_may_vary_as_much_as_a_node(slowdown: float, kind: str | None) -> None:
    now = group("a", "b", images_per_second=90000.0 / slowdown)
    assert kinds(compared([group("a", "b")], [now])) == ([("ab", kind)] if kind else [])


def test_a_slower_group_says_how_efficient_it_was() -> None:
    now = group("a", "b", images_per_second=45000.0, efficiency=0.45)
    (change,) = compared([group("a", "b")], [now]).changes
    assert change.detail == (
        "an image took 2.00 times as long, 45,000 images/s instead of 90,000;"
        " efficiency 45 % instead of 90 %"
    )


def test_efficiency_alone_is_no_regression() -> None:
    """It falls when the devices become faster alone."""
    assert compared([group("a", "b")], [group("a", "b", efficiency=0.4)]).changes == ()


@pytest.mark.parametrize("speed", [None, 0.0])
def test_a_speed_that_is_none_is_not_compared(speed: float | None) -> None:
    odd = group("a", "b", images_per_second=speed)
    assert compared([group("a", "b")], [odd]).changes == ()
    assert compared([odd], [group("a", "b")]).changes == ()


def test_a_busy_node_says_nothing_about_speed() -> None:
    slow = group("a", "b", images_per_second=1000.0)
    nodes = (entry("a", outcome="busy", share=None), entry("b"))
    assert compared([group("a", "b")], [slow], *nodes).changes == ()


@pytest.mark.parametrize("other", [{"device": "NVIDIA A100 (cuda)"}, {"ranks": 1}])
def test_other_devices_are_named_and_their_speed_is_not_compared(other: dict[str, Any]) -> None:
    now = group("a", "b", **{"images_per_second": 1000.0, **other})
    (change,) = compared([group("a", "b")], [now]).changes
    assert change.kind == "device"
    assert change.detail.startswith("was 2 × NVIDIA H100 80GB HBM3 (cuda), is ")


def test_nodes_that_no_longer_train_together_are_worse() -> None:
    entries = (entry("a"), entry("b"), unreported("c", "failed"))
    drift = compared([group("a", "b", "c")], [group("a", "b")], *entries)
    assert kinds(drift) == [("abc", "worse"), ("ab", "new")]
    assert drift.changes[0].detail == "was verified; not in step: c"
    apart = compared([group("a", "b")], [], entry("a"), entry("b"))
    assert kinds(apart) == [("ab", "worse")]


def test_nodes_that_train_in_other_groups_are_no_regression() -> None:
    before = [group("a", "b", "c", "d")]
    drift = compared(before, [group("a", "b"), group("c", "d")])
    assert kinds(drift) == [("abcd", "changed"), ("ab", "new"), ("cd", "new")]
    drift = compared([group("a", "b", outcome="failed")], [group("a", "b", "c")])
    assert kinds(drift) == [("abc", "new"), ("ab", "better")]


def test_nodes_that_were_not_asked_for_are_gone() -> None:
    drift = compared([group("a", "b")], [], entry("a"))
    assert kinds(drift) == [("ab", "gone")]


def test_a_run_without_groups_compares_none() -> None:
    first = earlier(across=True, groups=(group("a", "b"),))
    assert group_drift.compare(first, summary(entry("a"))) is None
    drift = group_drift.compare(earlier(entry("a")), summary(across=True, groups=first.groups))
    assert drift is not None
    assert kinds(drift) == [("ab", "new")]
