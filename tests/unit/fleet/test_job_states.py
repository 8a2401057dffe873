"""Every state of a job that Slurm documents: what a run, and one that goes on, do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import ToolError
from envbuilder.fleet import folder as folders
from envbuilder.fleet import summaries
from envbuilder.fleet.groups import Members
from envbuilder.fleet.run import Run
from envbuilder.fleet.scheduler import RefusedError
from envbuilder.fleet.slurm import parse
from tests.support.fleets import RecordedScheduler, across_result, common, plan, promise

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.fleet.model import Entry, Summary


class State(NamedTuple):
    """What becomes of a job that stays in a state and sends nothing."""

    outcome: str
    cancelled: bool
    taken_up: bool
    """Whether a run that goes on follows it, instead of submitting another job."""
    waits_for_result: bool
    """Whether a result counts that it sends long after it was started."""


WAITING = State("pending", cancelled=True, taken_up=True, waits_for_result=False)
RUNNING = State("timed-out", cancelled=True, taken_up=True, waits_for_result=True)
ENDING = State("timed-out", cancelled=True, taken_up=False, waits_for_result=True)


def ended(outcome: str) -> State:
    return State(outcome, cancelled=False, taken_up=False, waits_for_result=False)


STATES = {
    "PENDING": WAITING,
    "CONFIGURING": WAITING,
    "POWER_UP_NODE": WAITING,
    "REQUEUED": WAITING,
    "REQUEUE_FED": WAITING,
    "REQUEUE_HOLD": WAITING,
    "RESV_DEL_HOLD": WAITING,
    "SPECIAL_EXIT": WAITING,
    "RUNNING": RUNNING,
    "EXPEDITING": RUNNING,
    "RESIZING": RUNNING,
    "SIGNALING": RUNNING,
    "STOPPED": RUNNING,
    "SUSPENDED": RUNNING,
    "UPDATE_DB": RUNNING,
    "COMPLETING": ENDING,
    "STAGE_OUT": ENDING,
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


def driven(folder: Path, scheduler: RecordedScheduler, *, resumed: bool = False) -> Entry:
    """Drive a run of one node to its end; return the node's row."""
    planned = plan(promise())
    if not resumed:
        folders.create(folder, planned, {"n1": ""})
    progress = PlainProgress(lambda line: None)
    run = Run(planned, folder, scheduler, progress, now=scheduler.now, wait=scheduler.wait)
    (entry,) = run.finish(resumed=resumed).entries
    return entry


def test_no_documented_state_is_without_a_row() -> None:
    assert parse.JOB_STATES.keys() == STATES.keys() - {"A_STATE_OF_NEXT_YEAR"}


@pytest.mark.parametrize(("word", "state"), STATES.items())
def test_a_job_that_stays_so(word: str, state: State, tmp_path: Path) -> None:
    scheduler = RecordedScheduler(tmp_path, {"n1": {0: word}})
    entry = driven(tmp_path, scheduler)
    assert (entry.outcome, entry.job) == (state.outcome, "101")
    assert scheduler.cancelled == (["101"] if state.cancelled else [])
    assert word in entry.detail or entry.outcome in {"pending", "killed", "lost"}


@pytest.mark.parametrize(("word", "state"), STATES.items())
def test_a_run_that_goes_on_finds_a_job_so(word: str, state: State, tmp_path: Path) -> None:
    folders.create(tmp_path, plan(promise()), {"n1": ""})
    scheduler = RecordedScheduler(tmp_path, {"n1": {0: word}})
    folders.add_job(tmp_path, "n1", scheduler.submit(folders.script(tmp_path, "n1")))
    entry = driven(tmp_path, scheduler, resumed=True)
    assert entry.job == ("101" if state.taken_up else "102")
    assert len(scheduler.submitted) == (1 if state.taken_up else 2)


@pytest.mark.parametrize(("word", "state"), STATES.items())
def test_a_job_becomes_so_after_it_was_started(word: str, state: State, tmp_path: Path) -> None:
    """Its result is there after the time within which a job must start."""
    scheduler = RecordedScheduler(tmp_path, {"n1": {0: "RUNNING", 5: word, 700: b""}})
    entry = driven(tmp_path, scheduler)
    assert entry.outcome == ("verified" if state.waits_for_result else state.outcome)


def test_what_was_cancelled_is_submitted_again_before_it_has_ended(tmp_path: Path) -> None:
    """Ctrl-C, then --resume while Slurm waits for the cancelled job to end (KillWait)."""
    folders.create(tmp_path, plan(promise()), {"n1": ""})
    scheduler = RecordedScheduler(tmp_path, {"101": {0: "COMPLETING", 30: "CANCELLED"}})
    folders.add_job(tmp_path, "n1", scheduler.submit(folders.script(tmp_path, "n1")))
    entry = driven(tmp_path, scheduler, resumed=True)
    assert (entry.outcome, entry.job) == ("verified", "102")


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
    entry = driven(tmp_path, LateAnswer(tmp_path, {"n1": states}))
    assert (entry.outcome, entry.job) == (outcome, "101")
    assert folders.jobs(tmp_path) == {"n1": "101"}


def test_a_refused_job_that_slurm_lists_as_failed_is_refused(tmp_path: Path) -> None:
    """Slurm 22.05 keeps what it refused for a node's configuration: FAILED, BadConstraints."""
    entry = driven(tmp_path, LateAnswer(tmp_path, {"n1": {0: "FAILED"}}))
    assert (entry.outcome, entry.job, folders.jobs(tmp_path)) == ("refused", None, {})


def test_an_earlier_job_is_not_taken_for_one_that_was_accepted_late(tmp_path: Path) -> None:
    folders.create(tmp_path, plan(promise()), {"n1": ""})
    scheduler = RecordedScheduler(tmp_path, {"n1": {0: "CANCELLED"}})
    folders.add_job(tmp_path, "n1", scheduler.submit(folders.script(tmp_path, "n1")))
    scheduler.refused = {"n1": "Invalid account"}
    entry = driven(tmp_path, scheduler, resumed=True)
    assert (entry.outcome, entry.job, entry.detail) == ("refused", None, "Invalid account")


def test_what_was_refused_by_a_scheduler_that_is_silent_then_is_refused(tmp_path: Path) -> None:
    scheduler = RecordedScheduler(tmp_path, refused={"n1": "timed out"}, silent=lambda now: True)
    assert driven(tmp_path, scheduler).outcome == "refused"


PAIR = Members(nodes=("n1", "n2"), profile="cpu").name


class Forgetful(RecordedScheduler):
    """A scheduler that does not answer some of the questions, by their number."""

    unanswered: range = range(0)

    def jobs(self, run: str) -> dict[str, parse.JobState]:
        if self.calls + 1 in self.unanswered:
            self.calls += 1
            raise ToolError("squeue failed: no answer")
        return super().jobs(run)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_nothing_is_cancelled_if_the_scheduler_does_not_say_what_there_is(
    number: int, tmp_path: Path
) -> None:
    """The program was killed while two nodes trained together; `number`: the unanswered question.

    The first is for the nodes' jobs, the others are for those of groups.
    """
    planned = plan(promise("n1"), promise("n2"), across=common(tmp_path))
    folders.create(tmp_path, planned, {"n1": "", "n2": ""})
    script: dict[str, dict[int, str | bytes]] = {PAIR: {0: "RUNNING", 40: across_result("JOB")}}
    scheduler = Forgetful(tmp_path, script)
    for name in ("n1", "n2", PAIR):
        folders.add_job(tmp_path, name, scheduler.submit(folders.script(tmp_path, name)))
    scheduler.wait(10)
    RecordedScheduler.jobs(scheduler, planned.run)
    scheduler.calls, scheduler.unanswered = 0, range(number, number + 1)

    def finished() -> Summary:
        progress = PlainProgress(lambda line: None)
        run = Run(planned, tmp_path, scheduler, progress, now=scheduler.now, wait=scheduler.wait)
        return run.finish(resumed=True)

    with pytest.raises(ToolError, match="no answer"):
        finished()
    assert scheduler.cancelled == []
    assert (tmp_path / summaries.NAME).exists() == (number > 1)
    scheduler.unanswered = range(0)
    assert finished().passed
    assert len(scheduler.submitted) == 3
