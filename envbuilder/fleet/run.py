"""Run a plan: verify its nodes, let proven ones train together if requested, write the table.

A run has two stages: one job for each node, then one for each group. In each, jobs are submitted
and followed, and their results are taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from envbuilder.core import text
from envbuilder.core.console import Progress
from envbuilder.core.errors import ToolError
from envbuilder.fleet import folder as folders, judge, planning
from envbuilder.fleet.model import Entry, Group, Outcome, Promise, Summary, natural
from envbuilder.fleet.slurm import JobState, RefusedError, Slurm

SILENT_SECONDS = 600.0
"""How long the scheduler may not answer before its jobs are given up."""
_GRACE_SECONDS = 120
"""How long the scheduler may take to end a job that is over its time."""
_SETTLE_SECONDS = 60.0
"""How long a result may take to appear after a job's end: NFS shows new files after up to 60 s."""
_KILLED_SETTLE_SECONDS = 10.0
"""The same for a job that was killed, which mostly has none."""
_SHORTEST_PAUSE = 1.0
_LONGEST_PAUSE = 10.0
"""Seconds between two looks; the longer a stage takes, the longer they are."""

_Subject = TypeVar("_Subject", Promise, judge.Members)
_Verdict = TypeVar("_Verdict", judge.Judged, Group)


@dataclass(frozen=True, kw_only=True)
class _Kind(Generic[_Subject, _Verdict]):
    """How a stage names and judges what its jobs are for: nodes, or groups of nodes."""

    title: str
    unit: str
    examined: Callable[[_Subject, str, str, bytes], _Verdict]
    """Judge by the run, the job, and what it sent."""
    unexamined: Callable[[_Subject, Outcome, str, str | None], _Verdict]
    """Judge by an outcome, its detail, and the job if there is one."""


_NODES = _Kind[Promise, judge.Judged](
    title="verify nodes",
    unit="nodes",
    examined=judge.examined,
    unexamined=judge.unexamined,
)
_GROUPS = _Kind[judge.Members, Group](
    title="train together",
    unit="groups",
    examined=judge.examined_group,
    unexamined=judge.unexamined_group,
)


@dataclass(kw_only=True)
class _Track:
    """A job that is followed, and since when it runs or has ended (seconds of one clock)."""

    job: str
    submitted: float
    running: float | None = None
    ended: float | None = None

    def end(
        self, state: JobState | None, now: float, start_seconds: float, run_seconds: float
    ) -> tuple[Outcome, str] | None:
        """Return outcome and detail of a job that is given up; None if it is followed further.

        `state` is None if the scheduler does not know the job (any more).
        """
        if state is not None and state.phase == "waiting":
            self.ended = None
            if now - self.submitted <= start_seconds:
                return None
            why = ""
            if state.reason:
                why = f": {state.reason}"
            return "pending", f"not started within {text.duration(start_seconds)}{why}"
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
    """Return outcome and detail of a job that ended, or is unknown, and sent no result."""
    if state is None:
        return "lost", "the scheduler no longer knows the job, which reported nothing"
    detail = state.meaning or f"the job ended before it reported ({state.word})"
    if state.outcome == "timed-out":
        detail += f" ({state.word})"
    elif state.outcome == "killed" and state.reason:
        detail += f" ({state.reason})"
    return state.outcome, detail


class _Stage(Generic[_Subject, _Verdict]):
    """The jobs of some nodes, or of some groups; one object drives them at a time."""

    def __init__(
        self,
        run: Run,
        kind: _Kind[_Subject, _Verdict],
        subjects: Mapping[str, _Subject],
        minutes: int,
    ) -> None:
        self._run = run
        self._kind: _Kind[_Subject, _Verdict] = kind
        self._subjects: Mapping[str, _Subject] = subjects
        self._run_seconds = 60 * minutes + _GRACE_SECONDS
        self._tracks: dict[str, _Track] = {}
        self._refused: dict[str, str] = {}
        """Subject → why sbatch says that it did not accept the job."""
        self._earlier: frozenset[str] = frozenset()
        """Jobs of an earlier time."""
        self._verdicts: dict[str, _Verdict] = {}

    @property
    def verdicts(self) -> tuple[_Verdict, ...]:
        """Return the verdicts that there are, in the order of the subjects."""
        return tuple(self._verdicts[name] for name in self._subjects if name in self._verdicts)

    def finish(self) -> None:
        """Submit the jobs that are missing, and follow all to their ends."""
        self._submit()
        run = self._run
        started = answered = run.now()
        with run.progress.task(self._kind.title, len(self._subjects), self._kind.unit) as task:
            task.advance(len(self._verdicts))
            while self._tracks or self._refused:
                before = len(self._verdicts)
                try:
                    states = run.scheduler.jobs(run.plan.run)
                    answered = run.now()
                except ToolError as error:
                    self._collect()
                    if run.now() - answered > SILENT_SECONDS:
                        self._lose(error.message)
                else:
                    self._settle(states)
                    # After the states: a job that has ended by now has written its result.
                    self._collect()
                    self._advance(states)
                task.advance(len(self._verdicts) - before)
                if self._tracks or self._refused:
                    elapsed = run.now() - started
                    run.wait(min(_SHORTEST_PAUSE + elapsed / 60, _LONGEST_PAUSE))

    def give_up(self) -> list[str]:
        """Judge all that is left as interrupted; return the jobs that nobody follows any more."""
        self._collect()
        jobs = [track.job for track in self._tracks.values()]
        for name, subject in self._subjects.items():
            if name not in self._verdicts:
                track = self._tracks.get(name)
                job = track.job if track else None
                why = "it was not submitted"
                if job:
                    why = "its job was cancelled"
                self._verdicts[name] = self._kind.unexamined(subject, "interrupted", why, job)
        return jobs

    def live(self) -> list[str]:
        """Return the jobs of these subjects that the scheduler has not ended."""
        states = self._run.scheduler.jobs(self._run.plan.run).values()
        return [s.job for s in states if s.phase != "ended" and s.subject in self._subjects]

    def take_up(self) -> None:
        """Take the results of earlier jobs, and follow those that may still send one.

        Raises `ToolError` if the scheduler does not answer; nothing is changed then.
        """
        newest = {n: j for n, j in folders.jobs(self._run.folder).items() if n in self._subjects}
        states = self._run.scheduler.jobs(self._run.plan.run)
        self._earlier = frozenset(states)
        # The program may have been killed before it could record a job.
        recorded = set(newest.values())
        for state in states.values():
            if state.live and state.subject in self._subjects and state.job not in recorded:
                folders.add_job(self._run.folder, state.subject, state.job)
                newest[state.subject] = state.job
        for name, content in folders.arrived(self._run.folder, newest):
            self._examine(name, newest[name], content)
        for name, job in newest.items():
            if name not in self._verdicts and job in states and states[job].live:
                self._tracks[name] = _Track(job=job, submitted=self._run.now())

    def _track(self, name: str, job: str) -> None:
        self._tracks[name] = _Track(job=job, submitted=self._run.now())
        folders.add_job(self._run.folder, name, job)

    def _submit(self) -> None:
        names = [n for n in self._subjects if n not in self._verdicts and n not in self._tracks]
        if not names:
            return
        with self._run.progress.task("submit jobs", len(names), "jobs") as task:
            for name in names:
                try:
                    job = self._run.scheduler.submit(folders.script(self._run.folder, name))
                except RefusedError as error:
                    self._refused[name] = str(error)
                else:
                    self._track(name, job)
                task.advance(1)

    def _settle(self, states: Mapping[str, JobState]) -> None:
        """Judge what was refused. sbatch may have failed, or given up, after a job was accepted."""
        # Slurm may list what it refused, too: as a job that failed.
        new = {
            s.subject: s.job
            for s in states.values()
            if s.job not in self._earlier and (s.phase, s.outcome) != ("ended", "broken")
        }
        for name, why in self._refused.items():
            if job := new.get(name):
                self._track(name, job)
            else:
                self._give_up_on(name, "refused", why, None)
        self._refused.clear()

    def _collect(self) -> None:
        expected = {name: track.job for name, track in self._tracks.items()}
        for name, content in folders.arrived(self._run.folder, expected):
            del self._tracks[name]
            self._examine(name, expected[name], content)

    def _advance(self, states: Mapping[str, JobState]) -> None:
        run = self._run
        cancelled = []
        for name, track in list(self._tracks.items()):
            state = states.get(track.job)
            end = track.end(state, run.now(), run.plan.start_seconds, self._run_seconds)
            if end is None:
                continue
            del self._tracks[name]
            outcome, detail = end
            if state is not None and state.phase != "ended":
                cancelled.append(track.job)
            if outcome == "broken":
                code = run.scheduler.exit_code(track.job)
                words = folders.last_words(run.folder, name, track.job)
                detail += (f", exit code {code}" if code else "") + (f": {words}" if words else "")
            self._give_up_on(name, outcome, detail, track.job)
        if cancelled:
            run.scheduler.cancel(cancelled)

    def _lose(self, why: str) -> None:
        detail = f"the scheduler has not answered for {text.duration(SILENT_SECONDS)}: {why}"
        for name, track in self._tracks.items():
            self._give_up_on(name, "lost", detail, track.job)
        self._tracks.clear()
        self._settle({})

    def _examine(self, name: str, job: str, content: bytes) -> None:
        self._end(name, self._kind.examined(self._subjects[name], self._run.plan.run, job, content))

    def _give_up_on(self, name: str, outcome: Outcome, detail: str, job: str | None) -> None:
        self._end(name, self._kind.unexamined(self._subjects[name], outcome, detail, job))

    def _end(self, name: str, verdict: _Verdict) -> None:
        self._verdicts[name] = verdict
        self._run.progress.note(_line(verdict))


class Run:
    """A run that goes on; one object drives it at a time."""

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
        self.plan = plan
        self.folder = folder
        self.scheduler = scheduler
        self.progress = progress
        self.now = now
        self.wait = wait
        nodes = {promise.node: promise for promise in plan.promises}
        self._nodes = _Stage(self, _NODES, nodes, planning.time_limit(plan.limit_seconds))
        self._groups: _Stage[judge.Members, Group] | None = None

    def finish(self, *, resumed: bool) -> Summary:
        """Do what is left of the plan, and return the table, which is also in the folder.

        If this is interrupted, the run's own jobs are cancelled, and the table says so. If an
        earlier run cannot be taken up, since the scheduler does not answer, its jobs go on.
        """
        if resumed:
            self._nodes.take_up()
        try:
            self._nodes.finish()
            if self.plan.across is not None:
                self._train_together(self.plan.across, resumed=resumed)
        except BaseException:
            self._give_up()
            raise
        return self._save()

    def _train_together(self, common: planning.Common, *, resumed: bool) -> None:
        members = {
            each.name: each for each in judge.proven_groups(self._entries(), self.plan.promises)
        }
        scripts = {name: planning.group_script(each, common) for name, each in members.items()}
        folders.add_scripts(self.folder, scripts)
        if resumed:
            self._cancel_others({*scripts, *(promise.node for promise in self.plan.promises)})
        stage = _Stage(self, _GROUPS, members, planning.group_time_limit(common.limit_seconds))
        if resumed:
            stage.take_up()
        self._groups = stage
        stage.finish()

    def _cancel_others(self, subjects: set[str]) -> None:
        """Cancel jobs of groups that have other members now: nobody follows them any more."""
        states = self.scheduler.jobs(self.plan.run).values()
        if others := [s.job for s in states if s.phase != "ended" and s.subject not in subjects]:
            self.scheduler.cancel(others)

    def _give_up(self) -> None:
        """Write what is known, and cancel the run's own jobs: nobody follows them any more."""
        stages = [stage for stage in (self._nodes, self._groups) if stage is not None]
        jobs = [job for stage in stages for job in stage.give_up()]
        self._save()
        if jobs:
            self.scheduler.cancel(jobs)
        # One may have been accepted while its submission was interrupted.
        with suppress(ToolError):
            if late := [job for stage in stages for job in stage.live() if job not in jobs]:
                self.scheduler.cancel(late)

    def _entries(self) -> tuple[Entry, ...]:
        """Return the rows of all nodes in natural order."""
        entries = (*judge.against_equals(self._nodes.verdicts), *self.plan.left_out)
        return tuple(sorted(entries, key=lambda entry: natural(entry.node)))

    def _save(self) -> Summary:
        summary = Summary(
            run=self.plan.run,
            started=self.plan.started,
            finished=text.stamp_now(),
            quick=self.plan.quick,
            entries=self._entries(),
            across=self.plan.across is not None,
            groups=self._groups.verdicts if self._groups is not None else (),
        )
        folders.save(self.folder, summary)
        return summary


def _line(verdict: judge.Judged | Group) -> str:
    """Sum up a node or a group in one line."""
    if isinstance(verdict, Group):
        nodes = f"{len(verdict.nodes)} nodes together ({', '.join(verdict.nodes)})"
        return f"{nodes}: {verdict.outcome}: {verdict.detail}"
    entry = verdict.entry
    seconds = ""
    if entry.epoch_seconds:
        seconds = f", epoch {entry.epoch_seconds:.1f} s"
    detail = ""
    if entry.detail and entry.outcome != "verified":
        detail = f": {entry.detail}"
    return f"{entry.node}: {entry.outcome}{seconds}{detail}"
