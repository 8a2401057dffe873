"""Carry out a plan: submit a job for each node, follow it, read its result, and write the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envbuilder.core import text
from envbuilder.core.console import Progress
from envbuilder.core.errors import ToolError
from envbuilder.fleet import folder as folders, judge, planning
from envbuilder.fleet.model import Entry, Outcome, Summary, natural, started
from envbuilder.fleet.slurm import JobState, RefusedError, Slurm

_LONGEST_WAIT_SECONDS = 30 * 60
"""Maximum number of seconds to wait for a job to start."""
SILENT_SECONDS = 600.0
"""Number of seconds for which the scheduler may fail to respond before the run gives up on its
jobs."""
_GRACE_SECONDS = 120
"""Number of seconds that the scheduler may take to end a job after its time limit."""
_SETTLE_SECONDS = 60.0
"""Number of seconds that a result may take to appear after its job has ended. NFS may take up to 60
s to show new files."""
_KILLED_SETTLE_SECONDS = 10.0
"""Number of seconds that a result may take to appear after its job was killed. Usually, there is no
result."""
_SHORTEST_PAUSE = 1.0
_LONGEST_PAUSE = 10.0
"""Maximum number of seconds between two checks. The pauses become longer during a run."""


@dataclass(kw_only=True)
class _Track:
    """A job that is being followed, with the times at which it was submitted, started and ended.

    All times are in seconds and come from the same clock.
    """

    job: str
    submitted: float
    running: float | None = None
    ended: float | None = None

    def end(
        self, state: JobState | None, now: float, run_seconds: float
    ) -> tuple[Outcome, str] | None:
        """Return the node's outcome and the reason for it if the job need not be followed further.

        Return None if the job must still be followed. `state` is None if the scheduler does not
        know the job.
        """
        if state is not None and state.phase == "waiting":
            self.ended = None
            if now - self.submitted <= _LONGEST_WAIT_SECONDS:
                return None
            reason = ""
            if state.reason:
                reason = f": {state.reason}"
            return "pending", f"not started within {text.duration(_LONGEST_WAIT_SECONDS)}{reason}"
        if state is not None and state.phase in {"running", "ending"}:
            self.running = now if self.running is None else self.running
            self.ended = None
            if now - self.running <= run_seconds:
                return None
            return "timed-out", f"still {state.word} after {text.duration(run_seconds)}"
        self.ended = now if self.ended is None else self.ended
        killed = state is not None and state.outcome in {"killed", "timed-out"}
        if now - self.ended < (_KILLED_SETTLE_SECONDS if killed else _SETTLE_SECONDS):
            return None
        return _ended(state)


def _ended(state: JobState | None) -> tuple[Outcome, str]:
    """Return the outcome for a job that left no result, and the reason for the outcome.

    The job either ended or is no longer known to the scheduler.
    """
    if state is None:
        return "lost", "the scheduler no longer knows the job, and the job reported nothing"
    detail = state.meaning or f"the job ended before it reported ({state.word})"
    if state.outcome == "timed-out":
        detail += f" ({state.word})"
    elif state.outcome == "killed" and state.reason:
        detail += f" ({state.reason})"
    return state.outcome, detail


class Run:
    """A run in progress. Only one object at a time may control a run."""

    def __init__(
        self,
        plan: planning.Plan,
        folder: Path,
        scheduler: Slurm,
        progress: Progress,
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._scheduler = scheduler
        self._progress = progress
        self._now = now
        self._wait = wait
        self._promises = {promise.node: promise for promise in plan.promises}
        self._run_seconds = 60 * planning.time_limit(plan.limit_seconds) + _GRACE_SECONDS
        self._tracks: dict[str, _Track] = {}
        self._refused: dict[str, str] = {}
        """The reason why sbatch refused each node's job, by node."""
        self._verdicts: dict[str, judge.Judged] = {}

    def finish(self) -> Summary:
        """Carry out the plan, write the summary table to the folder, and return the table.

        If the user interrupts the run or if an error occurs, the jobs are canceled, and the table
        says so.
        """
        try:
            self._submit()
            self._follow()
        except BaseException:
            self._give_up()
            raise
        return self._save()

    def _follow(self) -> None:
        """Follow all jobs until every node has a verdict."""
        started = answered = self._now()
        with self._progress.task("verify nodes", len(self._promises), "nodes") as task:
            while self._tracks or self._refused:
                before = len(self._verdicts)
                try:
                    states = self._scheduler.jobs(self._plan.run)
                    answered = self._now()
                except ToolError as error:
                    self._collect()
                    if self._now() - answered > SILENT_SECONDS:
                        self._lose(error.message)
                else:
                    self._settle(states)
                    # After the states: a job that has ended by now has written its result.
                    self._collect()
                    self._advance(states)
                task.advance(len(self._verdicts) - before)
                if self._tracks or self._refused:
                    elapsed = self._now() - started
                    self._wait(min(_SHORTEST_PAUSE + elapsed / 60, _LONGEST_PAUSE))

    def _give_up(self) -> None:
        """Write the results so far, cancel the run's jobs, and stop following them."""
        self._collect()
        jobs = [track.job for track in self._tracks.values()]
        for node, promise in self._promises.items():
            if node not in self._verdicts:
                track = self._tracks.get(node)
                job = track.job if track else None
                reason = "it was not submitted"
                if job:
                    reason = "its job was cancelled"
                self._verdicts[node] = judge.unexamined(promise, "interrupted", reason, job)
        self._save()
        if jobs:
            self._scheduler.cancel(jobs)
        # One may have been accepted while its submission was interrupted.
        with suppress(ToolError):
            late = [
                state.job
                for state in self._scheduler.jobs(self._plan.run).values()
                if state.phase != "ended" and state.node in self._promises and state.job not in jobs
            ]
            if late:
                self._scheduler.cancel(late)

    def _track(self, name: str, job: str) -> None:
        self._tracks[name] = _Track(job=job, submitted=self._now())

    def _submit(self) -> None:
        with self._progress.task("submit jobs", len(self._promises), "jobs") as task:
            for name in self._promises:
                try:
                    job = self._scheduler.submit(folders.script(self._folder, name))
                except RefusedError as error:
                    self._refused[name] = str(error)
                else:
                    self._track(name, job)
                task.advance(1)

    def _settle(self, states: Mapping[str, JobState]) -> None:
        """Decide what happens to the nodes whose jobs sbatch refused.

        sbatch may report a failure even though the scheduler accepted the job. In that case, the
        job is followed. Otherwise, the outcome of the node is `refused`.
        """
        # Slurm may list what it refused, too: as a job that failed.
        new = {
            s.node: s.job for s in states.values() if (s.phase, s.outcome) != ("ended", "broken")
        }
        for name, reason in self._refused.items():
            if job := new.get(name):
                self._track(name, job)
            else:
                self._give_up_on(name, "refused", reason, None)
        self._refused.clear()

    def _collect(self) -> None:
        expected = {name: track.job for name, track in self._tracks.items()}
        for name, content in folders.arrived(self._folder, expected):
            del self._tracks[name]
            self._examine(name, expected[name], content)

    def _advance(self, states: Mapping[str, JobState]) -> None:
        cancelled = []
        for name, track in list(self._tracks.items()):
            state = states.get(track.job)
            end = track.end(state, self._now(), self._run_seconds)
            if end is None:
                continue
            del self._tracks[name]
            outcome, detail = end
            if state is not None and state.phase != "ended":
                cancelled.append(track.job)
            if outcome == "broken":
                code = self._scheduler.exit_code(track.job)
                words = folders.last_words(self._folder, name, track.job)
                detail += (f", exit code {code}" if code else "") + (f": {words}" if words else "")
            self._give_up_on(name, outcome, detail, track.job)
        if cancelled:
            self._scheduler.cancel(cancelled)

    def _lose(self, reason: str) -> None:
        detail = f"the scheduler has not answered for {text.duration(SILENT_SECONDS)}: {reason}"
        for name, track in self._tracks.items():
            self._give_up_on(name, "lost", detail, track.job)
        self._tracks.clear()
        self._settle({})

    def _examine(self, name: str, job: str, content: bytes) -> None:
        self._end(name, judge.examined(self._promises[name], self._plan.run, job, content))

    def _give_up_on(self, name: str, outcome: Outcome, detail: str, job: str | None) -> None:
        self._end(name, judge.unexamined(self._promises[name], outcome, detail, job))

    def _end(self, name: str, verdict: judge.Judged) -> None:
        self._verdicts[name] = verdict
        self._progress.note(_line(verdict.entry))

    def _save(self) -> Summary:
        judged = [self._verdicts[node] for node in self._promises if node in self._verdicts]
        entries = (*judge.against_equals(judged), *self._plan.left_out)
        summary = Summary(
            run=self._plan.run,
            started=started(self._plan.run),
            finished=text.stamp_now(),
            quick=self._plan.quick,
            entries=tuple(sorted(entries, key=lambda entry: natural(entry.node))),
        )
        folders.save(self._folder, summary)
        return summary


def _line(entry: Entry) -> str:
    """Return a one-line description of a node's result."""
    seconds = ""
    if entry.epoch_seconds:
        seconds = f", epoch {entry.epoch_seconds:.1f} s"
    detail = ""
    if entry.detail and entry.outcome != "verified":
        detail = f": {entry.detail}"
    return f"{entry.node}: {entry.outcome}{seconds}{detail}"
