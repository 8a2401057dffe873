"""Run a plan: submit its jobs, follow them, and collect each node's result as it comes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from envbuilder.core.errors import ToolError
from envbuilder.core.text import duration
from envbuilder.fleet import folder as folders
from envbuilder.fleet import judge
from envbuilder.fleet.follow import End, Limits, Track, step
from envbuilder.fleet.model import Summary, natural
from envbuilder.fleet.scheduler import RefusedError
from envbuilder.fleet.slurm.script import time_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from envbuilder.core.console import Progress
    from envbuilder.fleet.folder import Plan
    from envbuilder.fleet.judge import Judged
    from envbuilder.fleet.model import Outcome, Promise
    from envbuilder.fleet.scheduler import JobState, Scheduler

SILENT_SECONDS = 600.0
"""How long the scheduler may not answer before its jobs are given up."""
_GRACE_SECONDS = 120
"""How long the scheduler may take to end a job that is over its time."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
"""Seconds between two looks; the longer a run takes, the longer they are."""


class Run:
    """A run that goes on; one object drives it at a time."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        scheduler: Scheduler,
        progress: Progress,
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._scheduler = scheduler
        self._progress = progress
        self._now, self._wait = now, wait
        self._tracks: dict[str, Track] = {}
        self._judged: dict[str, Judged] = {}
        self._limits = Limits(
            start=plan.start_seconds,
            run=60 * time_limit(plan.limit_seconds) + _GRACE_SECONDS,
        )

    def finish(self, *, resumed: bool = False) -> Summary:
        """Do what is left of the plan, and return the table, which is also in the folder.

        If this is interrupted, the run's own jobs are cancelled; the table then says so.
        """
        try:
            if resumed:
                self._take_up()
            self._submit()
            self._follow()
        except BaseException:
            self._give_up()
            raise
        return self._save()

    def _take_up(self) -> None:
        """Take the results of earlier jobs, and follow those that are still there."""
        newest = folders.jobs(self._folder)
        states = self._scheduler.jobs(self._plan.run)
        newest |= self._unrecorded(newest, states)
        promises = {promise.node: promise for promise in self._plan.promises}
        for node, content in folders.arrived(self._folder, newest):
            if node in promises:
                self._judge(promises[node], newest[node], content)
        for promise in self._plan.promises:
            job = newest.get(promise.node)
            state = states.get(job) if job is not None else None
            if promise.node not in self._judged and state and state.phase != "ended":
                self._track(promise, state.job)

    def _unrecorded(
        self, recorded: Mapping[str, str], states: Mapping[str, JobState]
    ) -> dict[str, str]:
        """Return live jobs of the run that it was killed before it could record."""
        jobs = set(recorded.values())
        live = [s for s in states.values() if s.phase != "ended" and s.job not in jobs]
        for state in live:
            folders.add_job(self._folder, state.node, state.job)
        return {state.node: state.job for state in live}

    def _track(self, promise: Promise, job: str) -> None:
        self._tracks[promise.node] = Track(promise=promise, job=job, submitted=self._now())

    def _submit(self) -> None:
        open_ones = [p for p in self._plan.promises if p.node not in {*self._judged, *self._tracks}]
        if not open_ones:
            return
        with self._progress.task("submit jobs", len(open_ones), "jobs") as task:
            for promise in open_ones:
                try:
                    job = self._scheduler.submit(folders.script(self._folder, promise.node))
                except RefusedError as error:
                    self._end(judge.unexamined(promise, "refused", str(error)))
                else:
                    self._track(promise, job)
                    folders.add_job(self._folder, promise.node, job)
                task.advance(1)

    def _follow(self) -> None:
        total = len(self._plan.promises)
        started = answered = self._now()
        with self._progress.task("verify nodes", total, "nodes") as task:
            task.advance(len(self._judged))
            while self._tracks:
                before = len(self._judged)
                try:
                    states = self._scheduler.jobs(self._plan.run)
                    answered = self._now()
                except ToolError as error:
                    self._collect()
                    if self._now() - answered > SILENT_SECONDS:
                        self._lose(error.message)
                else:
                    # After the states: a job that has ended by now has written its result.
                    self._collect()
                    self._advance(states)
                task.advance(len(self._judged) - before)
                if self._tracks:
                    elapsed = self._now() - started
                    self._wait(min(_SHORTEST_PAUSE + elapsed / 60, _LONGEST_PAUSE))

    def _collect(self) -> None:
        expected = {node: track.job for node, track in self._tracks.items()}
        for node, content in folders.arrived(self._folder, expected):
            track = self._tracks.pop(node)
            self._judge(track.promise, track.job, content)

    def _judge(self, promise: Promise, job: str, content: bytes) -> None:
        where = folders.result_path(self._folder, promise.node, job).name
        self._end(judge.examined(promise, job, content, self._plan.run, where))

    def _advance(self, states: Mapping[str, JobState]) -> None:
        cancelled = []
        for node, track in list(self._tracks.items()):
            result = step(track, states.get(track.job), self._now(), self._limits)
            if isinstance(result, Track):
                self._tracks[node] = result
                continue
            del self._tracks[node]
            if result.cancel:
                cancelled.append(track.job)
            self._end(judge.unexamined(*self._described(track, result)))
        if cancelled:
            self._scheduler.cancel(cancelled)

    def _described(self, track: Track, end: End) -> tuple[Promise, Outcome, str, str]:
        detail = end.detail
        if end.outcome == "broken":
            code = self._scheduler.exit_code(track.job)
            words = folders.last_words(self._folder, track.promise.node, track.job)
            detail += f", exit code {code}" if code else ""
            detail += f": {words}" if words else ""
        return track.promise, end.outcome, detail, track.job

    def _lose(self, why: str) -> None:
        detail = f"the scheduler has not answered for {duration(SILENT_SECONDS)}: {why}"
        for track in self._tracks.values():
            self._end(judge.unexamined(track.promise, "lost", detail, track.job))
        self._tracks.clear()

    def _end(self, judged: Judged) -> None:
        entry = judged.entry
        self._judged[entry.node] = judged
        seconds = f", epoch {entry.epoch_seconds:.1f} s" if entry.epoch_seconds else ""
        detail = f": {entry.detail}" if entry.detail and entry.outcome != "verified" else ""
        self._progress.note(f"{entry.node}: {entry.outcome}{seconds}{detail}")

    def _give_up(self) -> None:
        """Write what is there, and cancel the run's own jobs: nobody follows them any more."""
        self._collect()
        jobs = [track.job for track in self._tracks.values()]
        for promise in self._plan.promises:
            if promise.node not in self._judged:
                track = self._tracks.get(promise.node)
                job = track.job if track else None
                why = "its job was cancelled" if job else "it was not submitted"
                self._judged[promise.node] = judge.unexamined(promise, "interrupted", why, job)
        self._save()
        if jobs:
            self._scheduler.cancel(jobs)

    def _save(self) -> Summary:
        entries = judge.against_equals([*self._judged.values()])
        by_node = {e.node: e for e in (*entries, *self._plan.left_out)}
        summary = Summary(
            run=self._plan.run,
            scheduler=self._plan.scheduler,
            started=self._plan.started,
            finished=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
            quick=self._plan.quick,
            entries=tuple(by_node[node] for node in sorted(by_node, key=natural)),
        )
        folders.save(self._folder, summary)
        return summary
