"""Which nodes train together, and what their result means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envbuilder.fleet import groups
from envbuilder.fleet.model import OUTCOMES, PROVEN, Entry, Group, Promise
from tests.support.absence import parts, without
from tests.support.fleet_runs import entry, summary, unreported
from tests.support.fleets import RUN, across_result

PAIR = groups.Members(nodes=("n1", "n2"), profile="cpu", device="AMD EPYC (cpu)")


def promises(entries: list[Entry], gpus: int = 0) -> list[Promise]:
    return [Promise(node=e.node, profile=e.promised or None, gpus=gpus) for e in entries]


def grouped(entries: list[Entry], gpus: int = 0) -> list[tuple[str, ...]]:
    return [members.nodes for members in groups.proven(entries, promises(entries, gpus))]


def test_proven_nodes_of_one_kind_train_together() -> None:
    entries = [
        entry("a1"),
        entry("b1", device="NVIDIA A100 (cuda)"),
        entry("a2", outcome="busy"),
        entry("c1", profile="cuda-legacy"),
        entry("a3", outcome="slow"),
        entry("b2", device="NVIDIA A100 (cuda)"),
        entry("d1", framework="torch 2.13.0+cu130"),
        entry("e1", backend="conda"),
        *(unreported(f"f{n}", outcome) for n, outcome in enumerate(("lost", "failed", "wrong"))),
    ]
    assert grouped(entries) == [("a1", "a2", "a3"), ("b1", "b2")]


def test_nodes_with_other_gpus_train_apart() -> None:
    entries = [entry(f"n{n}") for n in range(4)]
    each = [Promise(node=e.node, profile="cuda", gpus=4 * (n // 2)) for n, e in enumerate(entries)]
    found = groups.proven(entries, each)
    assert [(m.nodes, m.gpus) for m in found] == [(("n0", "n1"), 0), (("n2", "n3"), 4)]


@pytest.mark.parametrize(
    ("count", "gpus", "sizes"),
    [
        (1, 0, []),
        (64, 1, [64]),
        (65, 1, [32, 33]),
        (17, 8, [5, 6, 6]),
        (4, 32, [2, 2]),
    ],
)
def test_no_group_has_more_ranks_than_can_train(count: int, gpus: int, sizes: list[int]) -> None:
    found = grouped([entry(f"n{n:03}") for n in range(count)], gpus)
    assert sorted(map(len, found)) == sizes


def test_a_name_is_that_of_its_nodes_only() -> None:
    assert PAIR.name != groups.Members(nodes=("n1", "n3"), profile="cpu").name
    assert PAIR.name == groups.Members(nodes=("n1", "n2"), profile="cpu", device="else").name
    assert groups.Members(nodes=("n1", "n2"), profile="").name.startswith("ddp-any-")


def examined(**changes: Any) -> Group:
    return groups.examined(PAIR, RUN, "7", across_result(**changes))


def test_a_group_that_is_in_step_is_verified() -> None:
    group = examined()
    assert (group.outcome, group.detail, group.job) == ("verified", "2 ranks in step", "7")
    assert (group.ranks, group.images_per_second, group.efficiency) == (2, 1100.0, 0.9)
    assert (group.profile, group.device) == ("cpu", "AMD EPYC (cpu)")


def test_one_that_is_not_failed_and_says_why() -> None:
    group = examined(status="failed", reasons=["weights equal: \x1b[1m differ", "x"], scaling=None)
    assert (group.outcome, group.detail) == ("failed", "weights equal: ?[1m differ")
    assert group.efficiency is None
    assert examined(status="failed", reasons=[]).detail == "no reason is given"


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"attempt": f"{RUN}.8"}, "its attempt is"),
        ({"attempt": "20261123t091500z-000000.7"}, "its attempt is"),
        ({"nodes": 3}, "its number of nodes is 3, expected 2"),
        ({"profile": "cuda"}, "its profile is cuda, expected cpu"),
        ({"scaling": None}, "malformed"),
        ({"scaling__status": "failed"}, "its report says failed"),
        ({"scaling__gradients_equal": False}, "did not train together"),
        ({"scaling__efficiency": None}, "did not train together"),
        ({"scaling__ranks": 3}, "passed with 3 ranks on 2 devices"),
        ({"scaling__devices__1__node": "n3"}, "its devices are those of n1, n3"),
        ({"schema": 2}, "schema"),
        ({"status": "fine"}, "status"),
    ],
)
def test_a_result_that_cannot_be_is_mixed_up(changes: dict[str, Any], detail: str) -> None:
    group = examined(**changes)
    assert group.outcome == "mixed-up"
    assert detail in group.detail
    assert group.images_per_second is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"a":1,"a":2}',
        across_result().replace(b"0.9", b"1e999"),
    ],
)
def test_bytes_that_are_no_result_are_mixed_up(content: bytes) -> None:
    assert groups.examined(PAIR, RUN, "7", content).outcome == "mixed-up"


def test_a_run_passes_only_with_its_groups() -> None:
    nodes = (entry("n1"), entry("n2"))
    verified = groups.unexamined(PAIR, "verified", "")
    assert summary(*nodes).passed
    assert summary(*nodes, across=True, groups=(verified,)).passed
    assert not summary(*nodes, across=True).passed
    failed = groups.unexamined(PAIR, "failed", "")
    assert not summary(*nodes, across=True, groups=(verified, failed)).passed


def sent_by(*ranks: int, **changes: Any) -> bytes:
    """What the first of some nodes sends of which each has so many ranks."""
    nodes = [f"n{n}" for n, number in enumerate(ranks, 1) for _ in range(number)]
    devices = [
        {"index": index, "node": node, "samples_per_second": 611.0}
        for index, node in enumerate(nodes)
    ]
    facts = {"scaling__devices": devices, "scaling__ranks": sum(ranks), "profile": "cuda"}
    return across_result(**{**facts, **changes})


def on_gpus(gpus: int, content: bytes) -> Group:
    members = groups.Members(nodes=("n1", "n2"), profile="cuda", gpus=gpus)
    return groups.examined(members, RUN, "7", content)


@pytest.mark.parametrize(
    ("gpus", "ranks", "outcome", "detail"),
    [
        (8, (8, 8), "verified", "16 ranks in step"),
        (1, (1, 1), "verified", "2 ranks in step"),
        # Where the scheduler lists no GPUs, nodes have as many ranks as they have.
        (0, (4, 4), "verified", "8 ranks in step"),
        (8, (1, 1), "wrong", "of 8 GPUs each, on n1 1 trained"),
        (8, (8, 7), "wrong", "of 8 GPUs each, on n2 7 trained"),
    ],
)
def test_all_gpus_of_each_node_train_together(
    gpus: int, ranks: tuple[int, int], outcome: str, detail: str
) -> None:
    group = on_gpus(gpus, sent_by(*ranks))
    assert (group.outcome, group.detail) == (outcome, detail)


def test_groups_need_the_gpus_that_their_profile_trains_on() -> None:
    """Nodes with a profile of CPUs have one rank each, however many GPUs they have."""
    nodes = [Promise(node=f"n{n}", profile="cpu", gpus=8 * n, covered=0) for n in range(2)]
    found = groups.proven([entry("n0"), entry("n1")], nodes)
    assert [(m.nodes, m.gpus) for m in found] == [(("n0", "n1"), 0)]


@pytest.mark.parametrize(
    "content",
    [
        sent_by(2, 1),
        sent_by(1, 1),
        sent_by(2, 2, status="failed", reasons=["weights differ"]),
        sent_by(2, 2, attempt=f"{RUN}.8"),
        sent_by(2, 2, scaling__status="failed"),
    ],
)
def test_a_result_of_a_group_without_a_part_is_never_better(content: bytes) -> None:
    before = OUTCOMES.index(on_gpus(2, content).outcome)
    assert before
    for path in parts(json.loads(content)):
        left = json.dumps(without(json.loads(content), path)).encode()
        assert OUTCOMES.index(on_gpus(2, left).outcome) >= before, path


@pytest.mark.parametrize(
    "missing",
    [
        *([(key,)] for key in ("attempt", "nodes", "status", "profile", "scaling")),
        *([("scaling", "devices", n)] for n in range(4)),
        *([("scaling", "devices", n, "node")] for n in range(4)),
        *([("scaling", "devices", n), ("scaling", "ranks")] for n in range(4)),
        [("scaling", "gradients_equal")],
        [("scaling", "efficiency")],
        [("scaling", "status")],
    ],
)
def test_a_proof_of_a_group_without_a_part_is_none(missing: list[Any]) -> None:
    data = json.loads(sent_by(2, 2))
    assert on_gpus(2, json.dumps(data).encode()).outcome == "verified"
    assert on_gpus(2, json.dumps(without(data, *missing)).encode()).outcome not in PROVEN
