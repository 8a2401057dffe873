"""Two runs are compared node by node, and only where they compare."""

from __future__ import annotations

from typing import Any

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.fleet import drift
from envbuilder.verify.report.history import MAX_SLOWDOWN
from tests.support.fleet_runs import earlier, entry, summary, unreported


def changes(before: Any, now: Any) -> list[tuple[str, str]]:
    """Return node and kind of what changed between two runs of these entries."""
    compared = drift.compare(earlier(*before), summary(*now))
    return [(change.node, change.kind) for change in compared.changes]


def test_the_same_again_is_no_change() -> None:
    nodes = (entry("a"), unreported("b", "failed"), unreported("c", "drained"))
    compared = drift.compare(earlier(*nodes), summary(*nodes))
    assert (compared.changes, compared.common, compared.timed) == ((), 3, 1)
    assert compared.ratio == 1.0
    assert not compared.regressed
    assert drift.lines(compared) == [
        "Against the run 20261116t091500z-4567cd of 16 November 2026, 09:15 UTC",
        "Nothing changed on 3 nodes.",
        "The median epoch of 1 node took 1.00 times as long as then.",
    ]


def test_nodes_that_came_and_went() -> None:
    before = (entry("a"), unreported("b", "lost"))
    now = (entry("a"), unreported("c", "pending"))
    compared = drift.compare(earlier(*before), summary(*now))
    assert [(c.node, c.kind, c.detail) for c in compared.changes] == [
        ("b", "gone", "it was lost"),
        ("c", "new", "it is pending"),
    ]
    assert compared.common == 1
    assert not compared.regressed


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        ("verified", "failed", "worse"),
        ("busy", "wrong", "worse"),
        ("verified", "drained", "worse"),
        ("verified", "slow", "worse"),
        ("failed", "verified", "better"),
        ("failed", "killed", "changed"),
        ("pending", "drained", "changed"),
        ("verified", "busy", None),
    ],
)
def test_outcomes_have_ranks(before: Any, now: Any, kind: str | None) -> None:
    silent = {"epoch_seconds": None, "share": None}
    kinds = changes([entry("a", outcome=before, **silent)], [entry("a", outcome=now, **silent)])
    assert kinds == ([("a", kind)] if kind else [])


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [
        (1.0, None),
        (MAX_SLOWDOWN, None),
        (MAX_SLOWDOWN + 0.01, "slower"),
        (1 / MAX_SLOWDOWN, None),
        (0.76, "faster"),
    ],
)
def test_a_node_is_compared_with_itself(seconds: float, kind: str | None) -> None:
    kinds = changes([entry("a", epoch_seconds=1.0)], [entry("a", epoch_seconds=seconds)])
    assert kinds == ([("a", kind)] if kind else [])


@pytest.mark.parametrize("which", [0, 1])
def test_a_busy_node_says_nothing_about_speed(which: int) -> None:
    pair = [entry("a", epoch_seconds=1.0), entry("a", epoch_seconds=1.0)]
    pair[which] = entry("a", outcome="busy", epoch_seconds=9.0, share=None)
    compared = drift.compare(earlier(pair[0]), summary(pair[1]))
    assert (compared.changes, compared.timed, compared.ratio) == ((), 0, None)
    assert "No node's speed" in drift.sentences(compared)[1]


@pytest.mark.parametrize("odd", [None, 0.0, -1.0])
@pytest.mark.parametrize("which", [0, 1])
def test_a_time_that_is_none_is_not_compared(odd: float | None, which: int) -> None:
    pair = [entry("a"), entry("a")]
    pair[which] = entry("a", epoch_seconds=odd)
    assert changes(pair[:1], pair[1:]) == []


def test_another_device_is_named_and_its_speed_is_not_compared() -> None:
    other = entry("a", device="NVIDIA A100 (cuda)", epoch_seconds=9.0)
    compared = drift.compare(earlier(entry("a")), summary(other))
    (change,) = compared.changes
    assert change.kind == "device"
    assert change.detail == "was NVIDIA H100 80GB HBM3 (cuda), is NVIDIA A100 (cuda)"
    assert compared.timed == 0
    assert compared.regressed


def test_what_was_only_seen_there_is_no_device_that_did_the_work() -> None:
    seen = unreported("a", "broken", device="NVIDIA H100 80GB HBM3 (cuda fits)")
    assert changes([entry("a")], [seen]) == [("a", "worse")]


def test_a_slower_node_says_what_else_changed() -> None:
    now = entry("a", epoch_seconds=2.5, framework="torch 2.15.0", backend="docker")
    (change,) = drift.compare(earlier(entry("a")), summary(now)).changes
    assert change.detail == (
        "its epoch took 2.00 times as long, 2.50 s instead of 1.25 s; its backend was venv, is"
        " docker; its framework was torch 2.14.1+cu130, is torch 2.15.0"
    )


def test_what_matters_most_comes_first() -> None:
    before = [entry("a", epoch_seconds=1.0), unreported("b", "lost"), entry("c"), entry("d")]
    now = [
        entry("a", epoch_seconds=2.0),
        entry("b"),
        entry("c", outcome="failed", detail="arithmetic: wrong"),
        entry("e"),
    ]
    compared = drift.compare(earlier(*before), summary(*now))
    assert [c.kind for c in compared.changes] == ["worse", "slower", "gone", "new", "better"]
    assert compared.regressed
    assert drift.sentences(compared)[0] == (
        "1 worse, 1 slower, 1 gone, 1 new, 1 better; 3 nodes are in both runs."
    )
    assert drift.lines(compared)[3] == "c: worse: was verified, is failed: arithmetic: wrong"


def test_runs_that_do_not_compare_are_refused() -> None:
    with pytest.raises(InvalidError, match="other images") as caught:
        drift.compare(earlier(entry("a"), quick=True), summary(entry("a")))
    assert "--quick" in caught.value.hint
    with pytest.raises(InvalidError, match="with itself"):
        drift.compare(summary(entry("a")), summary(entry("a")))


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        (8, 7, ["device"]),
        (8, None, []),
    ],
)
def test_another_number_of_gpus_is_another_device_if_both_runs_state_it(
    before: int | None, now: int | None, kinds: list[str]
) -> None:
    compared = drift.compare(earlier(entry("a", gpus=before)), summary(entry("a", gpus=now)))
    assert [c.kind for c in compared.changes] == kinds
    name = "NVIDIA H100 80GB HBM3 (cuda)"
    assert [c.detail for c in compared.changes] == [
        f"was {before} × {name}, is {now} × {name}" for _ in kinds
    ]
