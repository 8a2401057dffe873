"""Which nodes train together, and what their result means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envbuilder.fleet import groups
from envbuilder.fleet.groups import Members
from envbuilder.fleet.model import Entry, Group, Promise
from tests.support.fleet_runs import entry, summary, unreported
from tests.support.fleets import RUN, across_result

PAIR = Members(nodes=("n1", "n2"), profile="cpu", device="AMD EPYC (cpu)")


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
        (130, 0, [43, 43, 44]),
        (17, 8, [5, 6, 6]),
        (3, 32, [2]),
        (4, 32, [2, 2]),
    ],
)
def test_no_group_has_more_ranks_than_can_train(count: int, gpus: int, sizes: list[int]) -> None:
    found = grouped([entry(f"n{n:03}") for n in range(count)], gpus)
    assert sorted(map(len, found)) == sizes


def test_a_name_is_that_of_its_nodes_only() -> None:
    other = Members(nodes=("n1", "n3"), profile="cpu")
    assert PAIR.name != other.name
    assert PAIR.name == Members(nodes=("n1", "n2"), profile="cpu", device="else").name
    assert Members(nodes=("n1", "n2"), profile="").name.startswith("ddp-any-")


def test_promised_groups_need_a_profile() -> None:
    stated = [Promise(node=f"n{n}", profile="cpu" if n < 3 else None) for n in range(6)]
    assert [m.nodes for m in groups.promised(stated)] == [("n0", "n1", "n2")]


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


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"a":1,"a":2}'])
def test_bytes_that_are_no_result_are_mixed_up(content: bytes) -> None:
    assert groups.examined(PAIR, RUN, "7", content).outcome == "mixed-up"


def test_numbers_that_are_none_are_mixed_up() -> None:
    content = json.dumps(json.loads(across_result())).replace("0.9", "1e999")
    assert groups.examined(PAIR, RUN, "7", content.encode()).outcome == "mixed-up"


def test_a_run_passes_only_with_its_groups() -> None:
    nodes = (entry("n1"), entry("n2"))
    verified = groups.unexamined(PAIR, "verified", "")
    assert summary(*nodes).passed
    assert summary(*nodes, across=True, groups=(verified,)).passed
    assert not summary(*nodes, across=True).passed
    failed = groups.unexamined(PAIR, "failed", "")
    assert not summary(*nodes, across=True, groups=(verified, failed)).passed
    # On Kubernetes, a run is of nodes or of groups.
    assert summary(across=True, groups=(verified,)).passed
    assert not summary(across=True, groups=(verified, failed)).passed
    assert not summary(across=True).passed


def test_without_a_proof_of_each_the_device_is_that_of_the_report() -> None:
    unproven = Members(nodes=("n1", "n2"), profile="cpu")
    names = {"scaling__devices__0__name": "NVIDIA H100", "scaling__devices__1__name": "NVIDIA H100"}
    assert groups.examined(unproven, RUN, "7", across_result(**names)).device == "NVIDIA H100"
    names["scaling__devices__1__name"] = "NVIDIA A100"
    assert groups.examined(unproven, RUN, "7", across_result(**names)).device == ""
    assert groups.examined(PAIR, RUN, "7", across_result(**names)).device == "AMD EPYC (cpu)"
