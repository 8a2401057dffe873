"""A run from its plan to its table, with a scheduler that plays what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from envbuilder.core.console import PlainProgress
from envbuilder.fleet import folder as folders, run as runs
from envbuilder.fleet.model import Entry, Summary
from envbuilder.fleet.planning import Plan
from envbuilder.fleet.slurm import RefusedError
from tests.support.fleets import (
    RecordedScheduler,
    failed,
    plan,
    promise,
    result,
)


def laid(folder: Path, *nodes: str, **changes: Any) -> Plan:
    folders.create(folder, dict.fromkeys(nodes, "#!/bin/bash\n"))
    return plan(*(promise(node) for node in nodes), **changes)


def written(folder: Path) -> Summary:
    return msgspec.json.decode((folder / folders.SUMMARY).read_bytes(), type=Summary)


def driven(
    folder: Path, scheduler: RecordedScheduler, planned: Plan
) -> tuple[dict[str, Entry], list[str]]:
    """Drive a run to its end; return its rows by node, and what was printed."""
    lines: list[str] = []
    progress = PlainProgress(lines.append)
    now = scheduler.now
    wait = scheduler.wait
    run = runs.Run(planned, folder, scheduler, progress, now=now, wait=wait)
    summary = run.finish()
    assert written(folder) == summary
    return by_node(summary), lines


def by_node(summary: Summary) -> dict[str, Entry]:
    return {entry.node: entry for entry in summary.entries}


def test_each_end_has_an_outcome_of_its_own(tmp_path: Path) -> None:
    script: dict[str, dict[int, str | bytes]] = {
        "done": {0: "RUNNING", 20: b"", 21: "COMPLETED"},
        "slow-file": {0: "RUNNING", 5: "COMPLETED", 50: b""},
        "wrong": {0: "RUNNING", 3: failed("wrong", "JOB", 3, "error: no NVIDIA GPU was found\n")},
        "stuck": {0: "PENDING"},
        "endless": {0: "RUNNING"},
        "stopped": {0: "RUNNING", 9: failed("stopped", "JOB", None, "")},
        "silent": {0: "RUNNING", 9: "COMPLETED"},
        "gone": {0: "RUNNING", 9: "GONE"},
        "exits": {0: "RUNNING", 9: "FAILED"},
        "mixed": {0: "RUNNING", 9: result("other", "JOB")},
        "empty": {0: "RUNNING", 9: b"{}"},
    }
    planned = laid(tmp_path, *script, "refused")
    (tmp_path / "logs/exits.109.log").write_text("start\nfleet: command not found\n\n")
    scheduler = RecordedScheduler(
        tmp_path, script, refused={"refused": "Invalid feature specification"}
    )
    entries, lines = driven(tmp_path, scheduler, planned)
    assert {node: entry.outcome for node, entry in entries.items()} == {
        "done": "verified",
        "slow-file": "verified",
        "wrong": "wrong",
        "stuck": "pending",
        "endless": "timed-out",
        "stopped": "timed-out",
        "silent": "lost",
        "gone": "lost",
        "exits": "broken",
        "mixed": "mixed-up",
        "empty": "mixed-up",
        "refused": "refused",
    }
    assert entries["stuck"].detail == "not started within 30 min 0 s: Resources"
    assert entries["wrong"].detail == "no NVIDIA GPU was found"
    assert entries["wrong"].device == "AMD EPYC (cpu fits)"
    assert "exit code 127: fleet: command not found" in entries["exits"].detail
    assert "belongs to node other" in entries["mixed"].detail
    assert entries["refused"].detail == "Invalid feature specification"
    # What is still there is cancelled, and nothing else.
    by_name = {name: job for job, (name, _) in scheduler.submitted.items()}
    assert sorted(scheduler.cancelled) == sorted([by_name["stuck"], by_name["endless"]])
    assert any(line.startswith("wrong: wrong: no NVIDIA") for line in lines)


def test_a_scheduler_that_is_silent_for_a_while_loses_nothing(tmp_path: Path) -> None:
    planned = laid(tmp_path, "n1")
    scheduler = RecordedScheduler(
        tmp_path, {"n1": {0: "RUNNING", 400: b""}}, silent=lambda now: 10 < now < 390
    )
    entries, _ = driven(tmp_path, scheduler, planned)
    assert entries["n1"].outcome == "verified"


def test_one_that_stays_silent_ends_the_run(tmp_path: Path) -> None:
    planned = laid(tmp_path, "n1", "n2")
    script: dict[str, dict[int, str | bytes]] = {"n1": {0: "RUNNING"}}
    scheduler = RecordedScheduler(tmp_path, script, silent=lambda now: now > 30)
    entries, _ = driven(tmp_path, scheduler, planned)
    assert (entries["n1"].outcome, entries["n2"].outcome) == ("lost", "verified")
    assert "squeue failed" in entries["n1"].detail
    assert scheduler.clock < 2 * runs.SILENT_SECONDS


class Interrupted(RecordedScheduler):
    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        if self.clock > 10:
            raise KeyboardInterrupt


def test_an_interrupted_run_cancels_its_own_jobs(tmp_path: Path) -> None:
    planned = laid(tmp_path, "done", "long", "other")
    script: dict[str, dict[int, str | bytes]] = {"long": {0: "RUNNING"}, "other": {0: "PENDING"}}
    scheduler = Interrupted(tmp_path, script)
    scheduler.submitted["99"] = ("of-somebody-else", 0.0)
    with pytest.raises(KeyboardInterrupt):
        driven(tmp_path, scheduler, planned)
    entries = by_node(written(tmp_path))
    assert {n: e.outcome for n, e in entries.items()} == {
        "done": "verified",
        "long": "interrupted",
        "other": "interrupted",
    }
    assert scheduler.cancelled == ["102", "103"]


class InterruptedSubmission(RecordedScheduler):
    def submit(self, script: Path) -> str:
        super().submit(script)
        raise KeyboardInterrupt


def test_a_job_whose_submission_was_interrupted_is_cancelled(tmp_path: Path) -> None:
    planned = laid(tmp_path, "n1")
    scheduler = InterruptedSubmission(tmp_path, {"n1": {0: "PENDING"}})
    scheduler.submitted["99"] = ("of-somebody-else", 0.0)
    with pytest.raises(KeyboardInterrupt):
        driven(tmp_path, scheduler, planned)
    assert scheduler.cancelled == ["101"]


def test_what_no_job_was_submitted_for_is_in_the_table(tmp_path: Path) -> None:
    drained = Entry(node="n0", outcome="drained", detail="drained: fan")
    planned = laid(tmp_path, "n10", "n2", left_out=(drained,))
    entries, _ = driven(tmp_path, RecordedScheduler(tmp_path), planned)
    assert list(entries) == ["n0", "n2", "n10"]
    assert entries["n0"] == drained


class State(NamedTuple):
    """What becomes of a job that stays in a state and sends nothing."""

    outcome: str
    cancelled: bool
    waits_for_result: bool
    """Whether a result counts that it sends long after it was started."""


WAITING = State("pending", cancelled=True, waits_for_result=False)
RUNNING = State("timed-out", cancelled=True, waits_for_result=True)


def ended(outcome: str) -> State:
    return State(outcome, cancelled=False, waits_for_result=False)


STATES = {
    "PENDING": WAITING,
    "CONFIGURING": WAITING,
    "POWER_UP_NODE": WAITING,
    "REQUEUED": WAITING,
    "RUNNING": RUNNING,
    "COMPLETING": RUNNING,
    "STAGE_OUT": RUNNING,
    "BOOT_FAIL": ended("killed"),
    "CANCELLED": ended("killed"),
    "COMPLETED": ended("lost"),
    "DEADLINE": ended("timed-out"),
    "FAILED": ended("broken"),
    "LAUNCH_FAILED": ended("broken"),
    "NODE_FAIL": ended("killed"),
    "OUT_OF_MEMORY": ended("killed"),
    "PREEMPTED": ended("killed"),
    "RECONFIG_FAIL": ended("broken"),
    "REVOKED": ended("killed"),
    "TIMEOUT": ended("timed-out"),
    "A_STATE_OF_NEXT_YEAR": RUNNING,
}


def alone(folder: Path, scheduler: RecordedScheduler) -> Entry:
    """Drive a run of one node to its end; return the node's row."""
    return driven(folder, scheduler, laid(folder, "n1"))[0]["n1"]


@pytest.mark.parametrize(("word", "state"), STATES.items())
def test_a_job_that_stays_so(word: str, state: State, tmp_path: Path) -> None:
    scheduler = RecordedScheduler(tmp_path, {"n1": {0: word}})
    entry = alone(tmp_path, scheduler)
    assert (entry.outcome, entry.job) == (state.outcome, "101")
    assert scheduler.cancelled == (["101"] if state.cancelled else [])
    assert word in entry.detail or entry.outcome in {"pending", "killed", "lost"}


@pytest.mark.parametrize(("word", "state"), STATES.items())
def test_a_job_becomes_so_after_it_was_started(word: str, state: State, tmp_path: Path) -> None:
    """Its result is there after the time within which a job must start."""
    late = 1900 if state.outcome == "pending" else 700
    scheduler = RecordedScheduler(tmp_path, {"n1": {0: "RUNNING", 5: word, late: b""}})
    entry = alone(tmp_path, scheduler)
    assert entry.outcome == ("verified" if state.waits_for_result else state.outcome)


class LateAnswer(RecordedScheduler):
    """sbatch gives up on every job, and the first one has been accepted all the same."""

    def submit(self, script: Path) -> str:
        if self.number == 100:
            super().submit(script)
        raise RefusedError("no answer within 60 s")


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        ({0: "PENDING", 20: "RUNNING", 30: b""}, "verified"),
        ({0: "COMPLETED"}, "lost"),
        ({0: b"", 1: "COMPLETED"}, "verified"),
    ],
)
def test_a_job_that_was_accepted_after_sbatch_gave_up_is_followed(
    states: dict[int, str | bytes], outcome: str, tmp_path: Path
) -> None:
    entry = alone(tmp_path, LateAnswer(tmp_path, {"n1": states}))
    assert (entry.outcome, entry.job) == (outcome, "101")


def test_a_refused_job_that_slurm_lists_as_failed_is_refused(tmp_path: Path) -> None:
    """Slurm 22.05 keeps what it refused for a node's configuration: FAILED, BadConstraints."""
    entry = alone(tmp_path, LateAnswer(tmp_path, {"n1": {0: "FAILED"}}))
    assert (entry.outcome, entry.job) == ("refused", None)


def test_what_was_refused_by_a_scheduler_that_is_silent_then_is_refused(tmp_path: Path) -> None:
    scheduler = RecordedScheduler(tmp_path, refused={"n1": "timed out"}, silent=lambda now: True)
    assert alone(tmp_path, scheduler).outcome == "refused"
