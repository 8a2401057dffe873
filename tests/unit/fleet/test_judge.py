"""What a result means: a node's, alone and among its equals, and that of nodes together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.fleet import judge
from envbuilder.fleet.model import OUTCOMES, PROVEN, Detected, Entry, Group, Promise, Summary
from tests.support import fleets, reports
from tests.support.absence import parts, without
from tests.support.fleet_runs import entry, summary, unreported
from tests.support.fleets import (
    RUN,
    STARTED,
    across_result,
    failed,
    promise,
    report,
    result,
)


def judged(content: bytes, profile: str | None = "cpu") -> judge.Judged:
    return judge.examined(promise(profile=profile), RUN, "7", content)


def test_a_node_that_passed_on_a_quiet_machine_is_verified() -> None:
    entry = judged(result()).entry
    assert (entry.outcome, entry.device, entry.epoch_seconds) == (
        "verified",
        "AMD EPYC (cpu)",
        20.0,
    )
    assert (entry.profile, entry.backend, entry.framework) == ("cpu", "venv", "torch 2.13.0+cpu")
    assert (entry.accuracy, entry.images_per_second) == (0.984, 3000.0)


@pytest.mark.parametrize(
    ("changes", "exit_code", "outcome", "detail"),
    [
        (
            {"known__speed": "not_judged", "known__speed_reason": "machine busy: epoch 1"},
            0,
            "busy",
            "machine busy: epoch 1",
        ),
        (
            {
                "device": {"requested": "xpu", "used": "cpu", "name": "AMD EPYC"},
                "status": "failed",
                "reasons": ["device: trained on cpu"],
            },
            5,
            "wrong",
            "it trained on cpu, not on xpu: device: trained on cpu",
        ),
        (
            {"status": "unproven", "reasons": ["step not proven"]},
            0,
            "unproven",
            "step not proven",
        ),
        (
            {"status": "failed", "reasons": ["gradients: wrong"]},
            5,
            "failed",
            "gradients: wrong",
        ),
    ],
)
def test_less_than_verified(
    changes: dict[str, Any], exit_code: int, outcome: str, detail: str
) -> None:
    entry = judged(result(sent=report(**changes), exit_code=exit_code)).entry
    assert (entry.outcome, entry.detail, entry.device) == (outcome, detail, "AMD EPYC (cpu)")


@pytest.mark.parametrize(
    ("code", "message", "outcome", "detail"),
    [
        (3, "note: x\nerror: no GPU was found\n  hint\n", "wrong", "no GPU was found"),
        (1, "error: disk full\n", "broken", "exit code 1: disk full"),
        (4, "", "broken", "exit code 4: it printed nothing"),
        (-9, "Killed", "broken", "exit code -9: Killed"),
        (None, "", "timed-out", "stopped after 60.0 s"),
    ],
)
def test_without_a_report(code: int | None, message: str, outcome: str, detail: str) -> None:
    entry = judged(failed("n1", "7", code, message)).entry
    assert (entry.outcome, entry.detail) == (outcome, detail)
    assert entry.device == "AMD EPYC (cpu fits)"


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"run": "20261123t091500z-000000"}, "is of run 20261123t091500z-000000"),
        ({"job": "8"}, "is of job 8, expected 7"),
        ({"node": "n2"}, "is of node n2, expected n1"),
        ({"schema": 2}, "$.schema"),
        ({"exit_code": 5}, "ended with 5, and its report says passed"),
        ({"report": None}, "it passed, and has no report"),
        ({"sent": report(known__profile="cuda")}, "is of the profile cuda, expected cpu"),
        ({"sent": report(device__used="cuda")}, "contradicts itself"),
        ({"sent": report(training=None)}, "contradicts itself"),
        ({"sent": {"schema": 2}}, "malformed"),
        ({"seconds": -1.0}, "not a node's result"),
    ],
)
def test_a_result_that_lies_is_mixed_up(changes: dict[str, Any], detail: str) -> None:
    entry = judged(result(**changes)).entry
    assert (entry.outcome, entry.epoch_seconds) == ("mixed-up", None)
    assert detail in entry.detail


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"schema": 1}', b"[" * 100_000])
def test_what_is_no_result_is_mixed_up(content: bytes) -> None:
    assert judged(content).entry.outcome == "mixed-up"


def test_what_a_node_sends_cannot_draw_on_a_terminal() -> None:
    seen = Detected(cpu="\x1b[31mEvil\n" + "x" * 90)
    content = fleets.result(exit_code=3, message="error: \x1b]0;x\x07", report=None, detected=seen)
    entry = judged(content).entry
    assert "\x1b" not in entry.detail + entry.device
    assert "\n" not in entry.device


def nodes(*seconds: float, **changes: Any) -> list[judge.Judged]:
    each = []
    for number, value in enumerate(seconds):
        sent = report(training__epochs=[reports.epoch(value)], **changes)
        named = promise(f"n{number}")
        content = result(f"n{number}", sent=sent)
        each.append(judge.examined(named, RUN, "7", content))
    return each


def test_much_slower_than_its_equals_is_slow() -> None:
    entries = judge.against_equals(nodes(20.0, 21.0, 19.0, 27.0))
    assert [e.outcome for e in entries] == ["verified", "verified", "verified", "slow"]
    assert entries[3].share == pytest.approx(27 / 20.5)
    assert "1.32 times as long as the median" in entries[3].detail


def test_two_nodes_have_no_median() -> None:
    assert {e.share for e in judge.against_equals(nodes(20.0, 60.0))} == {None}


def test_a_busy_node_is_not_slow_and_counts_in_no_median() -> None:
    busy = nodes(90.0, known__speed="not_judged", known__speed_reason="machine busy")
    busy = [judge.Judged(entry=replace(b.entry, node="b"), kind=b.kind, first=90.0) for b in busy]
    entries = judge.against_equals([*nodes(20.0, 20.0, 21.0), *busy])
    assert [e.outcome for e in entries] == ["verified", "verified", "verified", "busy"]
    assert entries[3].share is None


@pytest.mark.parametrize(
    "changes",
    [
        {"device__name": "AMD EPYC 2"},
        {"known__backend": "conda"},
        {"framework__version": "2.14.0+cpu"},
        {"quick": True},
    ],
)
def test_other_kinds_are_no_equals(changes: dict[str, Any]) -> None:
    other = [
        judge.Judged(entry=replace(j.entry, node=f"o{n}"), kind=j.kind, first=j.first)
        for n, j in enumerate(nodes(60.0, **changes))
    ]
    entries = judge.against_equals([*nodes(20.0, 20.0, 20.0), *other])
    assert (entries[3].outcome, entries[3].share) == ("verified", None)


def test_warm_epochs_are_compared_where_all_have_some() -> None:
    def twice(first: float, second: float) -> judge.Judged:
        epochs = [reports.epoch(first), reports.epoch(second)]
        return judged(result(sent=report(training__epochs=epochs)))

    each = [twice(30.0, 20.0), twice(20.0, 20.0), twice(20.0, 30.0)]
    each = [
        judge.Judged(entry=replace(j.entry, node=f"n{n}"), kind=j.kind, first=j.first, warm=j.warm)
        for n, j in enumerate(each)
    ]
    assert [e.share for e in judge.against_equals(each)] == [1.0, 1.0, 1.5]


@pytest.mark.parametrize(
    ("outcomes", "passed"),
    [
        (["verified", "busy", "drained", "unmapped"], True),
        (["verified", "slow"], False),
        (["drained"], False),
        (["verified", "pending"], False),
        ([], False),
    ],
)
def test_a_run_passes_if_all_that_was_examined_was_proven(
    outcomes: list[Any], passed: bool
) -> None:
    entries = tuple(judge.unexamined(promise(), outcome, "").entry for outcome in outcomes)
    facts = {"run": RUN, "started": STARTED, "finished": STARTED}
    assert Summary(**facts, quick=False, entries=entries).passed == passed


def trained_on(gpus: int, **changes: Any) -> dict[str, Any]:
    """The report of a node whose GPUs passed; several were trained on together."""
    devices = [{"index": n, "samples_per_second": 48000.0} for n in range(gpus)]
    together = {
        "devices": devices,
        "ranks": gpus,
        "status": "passed",
        "batch": 64 * gpus,
        "efficiency": 0.9,
        "gradients_equal": True,
    }
    device = {"requested": "cuda", "used": "cuda", "name": "NVIDIA H100"}
    facts = {"known__profile": "cuda", "device": device, "scaling": together if gpus > 1 else None}
    return report(**{**facts, **changes})


def of_gpus(
    promised: int, content: bytes, covered: int | None = None, profile: str | None = "cuda"
) -> judge.Judged:
    node = Promise(node="n1", profile=profile, gpus=promised, covered=covered)
    return judge.examined(node, RUN, "7", content)


@pytest.mark.parametrize(
    ("promised", "covered", "given", "trained", "outcome", "detail"),
    [
        (8, None, 8, 8, "verified", "accuracy"),
        (1, 1, 1, 1, "verified", "accuracy"),
        (8, 8, 8, 7, "wrong", "the scheduler gave 8 GPUs to the job, and 7 trained"),
        (8, 8, None, 1, "wrong", "the scheduler gave 8 GPUs to the job, and 1 trained"),
        (8, 8, 7, 8, "wrong", "the scheduler lists 8 GPUs there, and gave 7 to the job"),
        (1, 1, 0, 1, "wrong", "the scheduler lists 1 GPU there, and gave 0 to the job"),
        # JAX and TensorFlow: one of them is verified, and that is said.
        (8, 1, 8, 1, "verified", "1 of its 8 GPUs was verified (several only with PyTorch); acc"),
        (8, 1, 7, 1, "wrong", "the scheduler lists 8 GPUs there, and gave 7 to the job"),
        # Where the scheduler lists no GPUs, it gives none out.
        (0, 0, None, 4, "verified", "accuracy"),
    ],
)
def test_all_gpus_that_the_scheduler_gives_are_proven(
    promised: int, covered: int | None, given: int | None, trained: int, outcome: str, detail: str
) -> None:
    content = result(sent=trained_on(trained), gpus=given)
    entry = of_gpus(promised, content, covered).entry
    assert entry.outcome == outcome
    assert entry.detail.startswith(detail)
    assert (entry.gpus, entry.gpus_given) == (trained, promised or None)
    assert entry.partial == (entry.detail.startswith("1 of"))


@pytest.mark.parametrize(
    ("profile", "covered", "outcome"), [(None, 8, "wrong"), ("cpu", 0, "verified")]
)
def test_a_cpu_is_no_gpu_unless_its_profile_is_promised(
    profile: str | None, covered: int, outcome: str
) -> None:
    """A node that decides itself falls back to its CPU if it sees no GPU."""
    entry = of_gpus(8, result(gpus=8), covered, profile).entry
    assert (entry.outcome, entry.gpus) == (outcome, 0)


def test_a_failure_stays_one_whatever_the_number_of_gpus() -> None:
    sent = trained_on(7, status="failed", reasons=["gradients: wrong"])
    entry = of_gpus(8, result(sent=sent, exit_code=5, gpus=8)).entry
    assert (entry.outcome, entry.gpus) == ("failed", None)


BUSY = {"known__speed": "not_judged", "known__speed_reason": "machine busy"}
LESS_THAN_VERIFIED = {
    "busy": result(sent=trained_on(2, **BUSY), gpus=2),
    "failed": result(sent=trained_on(2, status="failed"), gpus=2, exit_code=5),
    "fewer": result(sent=trained_on(1), gpus=2),
    "given fewer": result(sent=trained_on(2), gpus=1),
    "other device": result(
        sent=trained_on(2, device__used="cpu", status="failed"), gpus=2, exit_code=5
    ),
    "exit": result(report=None, exit_code=3, gpus=2),
    "stopped": result(sent=trained_on(2, status="failed"), gpus=2, exit_code=None),
}


@pytest.mark.parametrize("content", LESS_THAN_VERIFIED.values(), ids=LESS_THAN_VERIFIED)
def test_a_result_without_a_part_is_never_better(content: bytes) -> None:
    data = json.loads(content)
    before = OUTCOMES.index(of_gpus(2, content).entry.outcome)
    assert before
    for path in parts(data):
        entry = of_gpus(2, json.dumps(without(data, path)).encode()).entry
        assert OUTCOMES.index(entry.outcome) >= before, path


DEVICES = ("report", "scaling", "devices")


@pytest.mark.parametrize(
    "missing",
    [
        *([("report", key)] for key in ("scaling", "training", "status", "profile", "device")),
        *([("report", "device", key)] for key in ("used", "requested")),
        *([(key,)] for key in ("run", "job", "node", "exit_code", "gpus", "report")),
        *([(*DEVICES, n)] for n in (0, 1)),
        [(*DEVICES, 0), ("report", "scaling", "ranks")],
        [(*DEVICES, 0, "samples_per_second")],
        [("report", "training", "epochs", 0)],
        [("report", "scaling", "gradients_equal")],
    ],
)
def test_a_proof_without_a_part_is_none(missing: list[Any]) -> None:
    data = json.loads(result(sent=trained_on(2), gpus=2))
    assert of_gpus(2, json.dumps(data).encode()).entry.outcome == "verified"
    content = json.dumps(without(data, *missing)).encode()
    assert of_gpus(2, content).entry.outcome not in PROVEN


# Nodes that train together.

PAIR = judge.Members(nodes=("n1", "n2"), profile="cpu", device="AMD EPYC (cpu)")


def promises(entries: list[Entry], gpus: int = 0) -> list[Promise]:
    return [Promise(node=e.node, profile=e.promised or None, gpus=gpus) for e in entries]


def grouped(entries: list[Entry], gpus: int = 0) -> list[tuple[str, ...]]:
    return [members.nodes for members in judge.proven_groups(entries, promises(entries, gpus))]


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
    found = judge.proven_groups(entries, each)
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
    assert PAIR.name != judge.Members(nodes=("n1", "n3"), profile="cpu").name
    assert PAIR.name == judge.Members(nodes=("n1", "n2"), profile="cpu", device="else").name
    assert judge.Members(nodes=("n1", "n2"), profile="").name.startswith("ddp-any-")


def sent_group(**changes: Any) -> Group:
    return judge.examined_group(PAIR, RUN, "7", across_result(**changes))


def test_a_group_that_is_in_step_is_verified() -> None:
    group = sent_group()
    assert group.outcome == "verified"
    assert group.detail == "2 ranks in step"
    assert group.job == "7"
    assert group.ranks == 2
    assert group.images_per_second == 1100.0
    assert group.efficiency == 0.9
    assert group.profile == "cpu"
    assert group.device == "AMD EPYC (cpu)"


def test_one_that_is_not_failed_and_says_why() -> None:
    reasons = ["weights equal: \x1b[1m differ", "x"]
    group = sent_group(status="failed", reasons=reasons, scaling=None)
    assert group.outcome == "failed"
    assert group.detail == "weights equal: ?[1m differ"
    assert group.efficiency is None
    assert sent_group(status="failed", reasons=[]).detail == "no reason is given"


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
    group = sent_group(**changes)
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
    assert judge.examined_group(PAIR, RUN, "7", content).outcome == "mixed-up"


def test_a_run_passes_only_with_its_groups() -> None:
    nodes = (entry("n1"), entry("n2"))
    verified = judge.unexamined_group(PAIR, "verified", "")
    assert summary(*nodes).passed
    assert summary(*nodes, across=True, groups=(verified,)).passed
    assert not summary(*nodes, across=True).passed
    failed = judge.unexamined_group(PAIR, "failed", "")
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
    members = judge.Members(nodes=("n1", "n2"), profile="cuda", gpus=gpus)
    return judge.examined_group(members, RUN, "7", content)


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
    assert group.outcome == outcome
    assert group.detail == detail


def test_groups_need_the_gpus_that_their_profile_trains_on() -> None:
    """Nodes with a profile of CPUs have one rank each, however many GPUs they have."""
    nodes = [Promise(node=f"n{n}", profile="cpu", gpus=8 * n, covered=0) for n in range(2)]
    found = judge.proven_groups([entry("n0"), entry("n1")], nodes)
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
