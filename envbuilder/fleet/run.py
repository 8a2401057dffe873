"""Run a plan: verify its nodes, let proven ones train together if asked for, write the table."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

from envbuilder.core import stamps
from envbuilder.core.errors import ToolError
from envbuilder.fleet import folder as folders
from envbuilder.fleet import groups, judge
from envbuilder.fleet.follow import Limits
from envbuilder.fleet.model import Summary, natural
from envbuilder.fleet.slurm import script
from envbuilder.fleet.stage import Site, Stage, Subject

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from envbuilder.core.console import Progress
    from envbuilder.fleet.folder import Plan
    from envbuilder.fleet.groups import Members
    from envbuilder.fleet.judge import Judged
    from envbuilder.fleet.model import Entry, Group, Promise
    from envbuilder.fleet.scheduler import Scheduler
    from envbuilder.fleet.slurm.script import Common

_GRACE_SECONDS = 120
"""How long the scheduler may take to end a job that is over its time."""


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
        self._site = Site(
            run=plan.run,
            folder=folder,
            scheduler=scheduler,
            progress=progress,
            now=now,
            wait=wait,
        )
        self._nodes = Stage(
            self._site,
            "verify nodes",
            "nodes",
            [self._node(promise) for promise in plan.promises],
            self._limits(script.time_limit(plan.limit_seconds)),
        )
        self._groups: Stage[Group] | None = None

    def finish(self, *, resumed: bool = False) -> Summary:
        """Do what is left of the plan, and return the table, which is also in the folder.

        If this is interrupted, the run's own jobs are cancelled; the table then says so. None is if
        a scheduler that does not answer keeps an earlier run from being taken up.
        """
        if resumed:
            self._nodes.take_up()
        try:
            self._nodes.finish()
            if self._plan.across is not None:
                self._train_together(self._plan.across, resumed=resumed)
        except BaseException:
            self._give_up()
            raise
        return self._save()

    def _train_together(self, common: Common, *, resumed: bool) -> None:
        members = groups.proven(self._entries(), self._plan.promises)
        scripts = {each.name: script.group_text(each, common) for each in members}
        folders.add_scripts(self._site.folder, scripts)
        if resumed:
            self._cancel_others({*scripts, *(promise.node for promise in self._plan.promises)})
        stage = Stage(
            self._site,
            "train together",
            "groups",
            [self._group(each) for each in members],
            self._limits(script.group_time_limit(common.limit_seconds)),
        )
        if resumed:
            stage.take_up()
        self._groups = stage
        stage.finish()

    def _cancel_others(self, subjects: set[str]) -> None:
        """Cancel jobs of groups that have other members now: nobody follows them any more."""
        states = self._site.scheduler.jobs(self._plan.run).values()
        live = [state for state in states if state.phase != "ended"]
        if others := [state.job for state in live if state.subject not in subjects]:
            self._site.scheduler.cancel(others)

    def _limits(self, minutes: int) -> Limits:
        return Limits(start=self._plan.start_seconds, run=60 * minutes + _GRACE_SECONDS)

    def _node(self, promise: Promise) -> Subject[Judged]:
        def examined(job: str, content: bytes) -> Judged:
            where = folders.result_path(self._site.folder, promise.node, job).name
            return judge.examined(promise, job, content, self._plan.run, where)

        return Subject(
            name=promise.node,
            examined=examined,
            unexamined=partial(judge.unexamined, promise),
            described=lambda judged: _node_line(judged.entry),
        )

    def _group(self, members: Members) -> Subject[Group]:
        return Subject(
            name=members.name,
            examined=partial(groups.examined, members, self._plan.run),
            unexamined=partial(groups.unexamined, members),
            described=_group_line,
        )

    def _give_up(self) -> None:
        """Write what is known, and cancel the run's own jobs: nobody follows them any more."""
        stages = [stage for stage in (self._nodes, self._groups) if stage is not None]
        jobs = [job for stage in stages for job in stage.give_up()]
        self._save()
        if jobs:
            self._site.scheduler.cancel(jobs)
        # One may have been accepted while its submission was interrupted.
        with contextlib.suppress(ToolError):
            if late := [job for stage in stages for job in stage.live() if job not in jobs]:
                self._site.scheduler.cancel(late)

    def _entries(self) -> tuple[Entry, ...]:
        """Return the rows of all nodes in natural order."""
        entries = (*judge.against_equals(self._nodes.judged), *self._plan.left_out)
        return tuple(sorted(entries, key=lambda entry: natural(entry.node)))

    def _save(self) -> Summary:
        summary = Summary(
            run=self._plan.run,
            scheduler=self._plan.scheduler,
            started=self._plan.started,
            finished=stamps.now(),
            quick=self._plan.quick,
            epochs=self._plan.epochs,
            entries=self._entries(),
            across=self._plan.across is not None,
            groups=self._groups.judged if self._groups is not None else (),
        )
        folders.save(self._site.folder, summary)
        return summary


def _node_line(entry: Entry) -> str:
    seconds = f", epoch {entry.epoch_seconds:.1f} s" if entry.epoch_seconds else ""
    detail = f": {entry.detail}" if entry.detail and entry.outcome != "verified" else ""
    return f"{entry.node}: {entry.outcome}{seconds}{detail}"


def _group_line(group: Group) -> str:
    nodes = f"{len(group.nodes)} nodes together ({', '.join(group.nodes)})"
    return f"{nodes}: {group.outcome}: {group.detail}"
