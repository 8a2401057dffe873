"""What a node's result means, alone and among its equals."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.fleet import judge
from envbuilder.fleet.model import Detected, Summary
from tests.support import fleets, reports
from tests.support.fleets import RUN, STARTED, failed, promise, report, result


def judged(content: bytes, profile: str | None = "cpu") -> judge.Judged:
    return judge.examined(promise(profile=profile), "7", content, RUN, "n1.7.json")


def test_a_node_that_passed_on_a_quiet_machine_is_verified() -> None:
    entry = judged(result()).entry
    assert (entry.outcome, entry.device, entry.epoch_seconds) == (
        "verified",
        "AMD EPYC (cpu)",
        20.0,
    )
    assert (entry.profile, entry.backend, entry.framework) == ("cpu", "venv", "torch 2.13.0+cpu")
    assert (entry.accuracy, entry.images_per_second) == (0.984, 3000.0)


def test_a_busy_one_is_proven_and_its_speed_is_not_judged() -> None:
    sent = report(known__speed="not_judged", known__speed_reason="machine busy: epoch 1")
    entry = judged(result(sent=sent)).entry
    assert (entry.outcome, entry.detail) == ("busy", "machine busy: epoch 1")


def test_a_device_that_is_another_than_requested_is_wrong() -> None:
    sent = report(
        known__profile="xpu",
        device={"requested": "xpu", "used": "cpu", "name": "AMD EPYC"},
        status="failed",
        reasons=["device: trained on cpu"],
    )
    entry = judged(result(sent=sent, exit_code=5), profile="xpu").entry
    assert (entry.outcome, entry.device) == ("wrong", "AMD EPYC (cpu)")
    assert entry.detail == "it trained on cpu, not on xpu: device: trained on cpu"


def test_any_other_failure_is_one() -> None:
    sent = report(status="failed", reasons=["gradients: wrong"])
    entry = judged(result(sent=sent, exit_code=5)).entry
    assert (entry.outcome, entry.detail) == ("failed", "gradients: wrong")


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
        ({"run": "20261123t091500z-000000"}, "it is of run 20261123t091500z-000000"),
        ({"job": "8"}, "it is of job 8, expected 7"),
        ({"node": "n2"}, "it is of node n2, expected n1"),
        ({"schema": 2}, "it has schema 2"),
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


def test_a_result_is_bounded() -> None:
    entry = judged(result(message="x" * (5 << 20))).entry
    assert (entry.outcome, "larger than 4 MiB" in entry.detail) == ("mixed-up", True)


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
        each.append(judge.examined(named, "7", content, RUN, "x"))
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
    facts = {"run": RUN, "scheduler": "slurm", "started": STARTED, "finished": STARTED}
    assert Summary(**facts, quick=False, entries=entries).passed == passed
