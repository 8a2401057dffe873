"""What a node's result means, alone and among its equals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.fleet import judge
from envbuilder.fleet.model import OUTCOMES, PROVEN, Detected, Promise, Summary
from tests.support import fleets, reports
from tests.support.absence import parts, without
from tests.support.fleets import (
    RUN,
    STARTED,
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
    assert entry.accuracy == 0.984


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


def test_a_node_that_failed_after_its_report_is_verified() -> None:
    entry = judged(result(exit_code=1)).entry
    detail = "verify ended with exit code 1 after its report: accuracy 98.40 %"
    assert (entry.outcome, entry.detail) == ("verified", detail)


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
        ({"run": "20261123t091500z-000000"}, "belongs to run 20261123t091500z-000000"),
        ({"job": "8"}, "belongs to job 8, expected 7"),
        ({"node": "n2"}, "belongs to node n2, expected n1"),
        ({"schema": 2}, "$.schema"),
        ({"exit_code": 5}, "ended with exit code 5, but its report says passed"),
        ({"report": None}, "the verification passed, but has no report"),
        ({"sent": report(known__profile="cuda")}, "is for profile cuda, expected cpu"),
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
        (8, 8, 8, 7, "wrong", "the scheduler gave 8 GPUs to the job, but 7 trained"),
        (8, 8, None, 1, "wrong", "the scheduler gave 8 GPUs to the job, but 1 trained"),
        (8, 8, 7, 8, "wrong", "the scheduler lists 8 GPUs on this node, but gave 7 to the job"),
        (1, 1, 0, 1, "wrong", "the scheduler lists 1 GPU on this node, but gave 0 to the job"),
        # JAX and TensorFlow: one of them is verified, and that is said.
        (
            8,
            1,
            8,
            1,
            "verified",
            "1 of its 8 GPUs was verified (only PyTorch supports several); acc",
        ),
        (8, 1, 7, 1, "wrong", "the scheduler lists 8 GPUs on this node, but gave 7 to the job"),
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
