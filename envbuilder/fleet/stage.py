"""A stage of a run: for each subject a job is submitted and followed, and its result is taken.

A subject is what a job is submitted for: a node that is verified, or nodes that train together. How
a stage deals with jobs does not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from envbuilder.core.errors import ToolError
from envbuilder.core.text import duration
from envbuilder.fleet import folder as folders
from envbuilder.fleet.follow import End, Limits, Track, step
from envbuilder.fleet.scheduler import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from envbuilder.core.console import Progress
    from envbuilder.fleet.model import Outcome
    from envbuilder.fleet.scheduler import JobState, Scheduler

SILENT_SECONDS = 600.0
"""How long the scheduler may not answer before its jobs are given up."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
"""Seconds between two looks; the longer a stage takes, the longer they are."""

Judged = TypeVar("Judged")


@dataclass(frozen=True, kw_only=True)
class Subject(Generic[Judged]):
    """What a job is submitted for, and how it is judged.

    `examined` makes a judgement of a job and what it sent; `unexamined` of an outcome, its detail,
    and the job if there is one; `described` says a judgement in one line.
    """

    name: str
    """Of its script, its logs and its results."""
    examined: Callable[[str, bytes], Judged]
    unexamined: Callable[[Outcome, str, str | None], Judged]
    described: Callable[[Judged], str]


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a run's stages happen, and by which clock."""

    run: str
    folder: Path
    scheduler: Scheduler
    progress: Progress
    now: Callable[[], float]
    wait: Callable[[float], None]


class Stage(Generic[Judged]):
    """The jobs of some subjects; one object drives them at a time."""

    def __init__(
        self, site: Site, title: str, unit: str, subjects: Sequence[Subject[Judged]], limits: Limits
    ) -> None:
        self._site, self._title, self._unit, self._limits = site, title, unit, limits
        self._subjects = {subject.name: subject for subject in subjects}
        self._tracks: dict[str, Track] = {}
        self._refused: dict[str, str] = {}
        """Subjects whose jobs were not accepted, as far as sbatch knows → why."""
        self._earlier: frozenset[str] = frozenset()
        """Jobs of an earlier time."""
        self._judged: dict[str, Judged] = {}

    @property
    def judged(self) -> tuple[Judged, ...]:
        """Return the judgements that there are, in the order of the subjects."""
        return tuple(self._judged[name] for name in self._subjects if name in self._judged)

    def finish(self) -> None:
        """Submit the jobs that are missing, and follow all to their ends."""
        self._submit()
        self._follow()

    def give_up(self) -> list[str]:
        """Judge all that is left as interrupted; return the jobs that nobody follows any more."""
        self._collect()
        jobs = [track.job for track in self._tracks.values()]
        for name, subject in self._subjects.items():
            if name not in self._judged:
                track = self._tracks.get(name)
                job = track.job if track else None
                why = "its job was cancelled" if job else "it was not submitted"
                self._judged[name] = subject.unexamined("interrupted", why, job)
        return jobs

    def live(self) -> list[str]:
        """Return the jobs of these subjects that the scheduler has not ended."""
        states = self._site.scheduler.jobs(self._site.run).values()
        return [s.job for s in states if s.phase != "ended" and s.subject in self._subjects]

    def take_up(self) -> None:
        """Take the results of earlier jobs, and follow those that may still send one.

        Raises `ToolError` if the scheduler does not answer; nothing is changed then.
        """
        folder = self._site.folder
        newest = {n: job for n, job in folders.jobs(folder).items() if n in self._subjects}
        states = self._site.scheduler.jobs(self._site.run)
        self._earlier = frozenset(states)
        newest |= self._unrecorded(newest, states)
        for name, content in folders.arrived(folder, newest):
            self._end(name, self._subjects[name].examined(newest[name], content))
        for name, job in newest.items():
            state = states.get(job)
            if name not in self._judged and state and state.live:
                self._track(name, job)

    def _unrecorded(
        self, recorded: Mapping[str, str], states: Mapping[str, JobState]
    ) -> dict[str, str]:
        """Return live jobs that the run was killed before it could record."""
        jobs = set(recorded.values())
        live = [s for s in states.values() if s.live and s.subject in self._subjects]
        added = {state.subject: state.job for state in live if state.job not in jobs}
        for name, job in added.items():
            folders.add_job(self._site.folder, name, job)
        return added

    def _track(self, name: str, job: str) -> None:
        self._tracks[name] = Track(job=job, submitted=self._site.now())

    def _submit(self) -> None:
        names = [n for n in self._subjects if n not in self._judged and n not in self._tracks]
        if not names:
            return
        with self._site.progress.task("submit jobs", len(names), "jobs") as task:
            for name in names:
                try:
                    job = self._site.scheduler.submit(folders.script(self._site.folder, name))
                except RefusedError as error:
                    self._refused[name] = str(error)
                else:
                    self._track(name, job)
                    folders.add_job(self._site.folder, name, job)
                task.advance(1)

    def _settle(self, states: Mapping[str, JobState]) -> None:
        """Judge what was refused. sbatch may have failed, or given up, after a job was accepted."""
        # Slurm may list what it refused, too: as a job that failed.
        accepted = [s for s in states.values() if s.phase != "ended" or s.outcome != "broken"]
        new = {s.subject: s.job for s in accepted if s.job not in self._earlier}
        for name, why in self._refused.items():
            if job := new.get(name):
                self._track(name, job)
                folders.add_job(self._site.folder, name, job)
            else:
                self._end_without_result(name, "refused", why, None)
        self._refused.clear()

    def _follow(self) -> None:
        site = self._site
        started = answered = site.now()
        with site.progress.task(self._title, len(self._subjects), self._unit) as task:
            task.advance(len(self._judged))
            while self._tracks or self._refused:
                before = len(self._judged)
                try:
                    states = site.scheduler.jobs(site.run)
                    answered = site.now()
                except ToolError as error:
                    self._collect()
                    if site.now() - answered > SILENT_SECONDS:
                        self._lose(error.message)
                else:
                    self._settle(states)
                    # After the states: a job that has ended by now has written its result.
                    self._collect()
                    self._advance(states)
                task.advance(len(self._judged) - before)
                if self._tracks or self._refused:
                    elapsed = site.now() - started
                    site.wait(min(_SHORTEST_PAUSE + elapsed / 60, _LONGEST_PAUSE))

    def _collect(self) -> None:
        expected = {name: track.job for name, track in self._tracks.items()}
        for name, content in folders.arrived(self._site.folder, expected):
            del self._tracks[name]
            self._end(name, self._subjects[name].examined(expected[name], content))

    def _advance(self, states: Mapping[str, JobState]) -> None:
        cancelled = []
        for name, track in list(self._tracks.items()):
            result = step(track, states.get(track.job), self._site.now(), self._limits)
            if isinstance(result, Track):
                self._tracks[name] = result
                continue
            del self._tracks[name]
            if result.cancel:
                cancelled.append(track.job)
            detail = self._detail(name, track, result)
            self._end_without_result(name, result.outcome, detail, track.job)
        if cancelled:
            self._site.scheduler.cancel(cancelled)

    def _detail(self, name: str, track: Track, end: End) -> str:
        if end.outcome != "broken":
            return end.detail
        code = self._site.scheduler.exit_code(track.job)
        words = folders.last_words(self._site.folder, name, track.job)
        return (
            end.detail + (f", exit code {code}" if code else "") + (f": {words}" if words else "")
        )

    def _lose(self, why: str) -> None:
        detail = f"the scheduler has not answered for {duration(SILENT_SECONDS)}: {why}"
        for name, track in self._tracks.items():
            self._end_without_result(name, "lost", detail, track.job)
        self._tracks.clear()
        self._settle({})

    def _end_without_result(
        self, name: str, outcome: Outcome, detail: str, job: str | None
    ) -> None:
        self._end(name, self._subjects[name].unexamined(outcome, detail, job))

    def _end(self, name: str, judged: Judged) -> None:
        self._judged[name] = judged
        self._site.progress.note(self._subjects[name].described(judged))
