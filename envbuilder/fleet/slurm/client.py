"""Call Slurm's programs. None of them needs accounting, which many clusters lack."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.fleet.scheduler import JobState, RefusedError
from envbuilder.fleet.slurm import parse
from envbuilder.fleet.slurm.script import job_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envbuilder.core.process import Completed
    from envbuilder.fleet.model import Node

CALL_SECONDS = 60.0
"""How long a program may take; Slurm's own time-outs are 10 to 20 seconds a message."""
_PREFERENCES = ("SBATCH_", "SINFO_", "SQUEUE_", "SCANCEL_")
_KEPT_PREFERENCES = frozenset(
    ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION")
)
_MOST_CANCELLED = 500
"""Ids in one call of scancel, so that its arguments stay short."""


class Slurm:
    """A Slurm cluster, as its programs on this machine reach it."""

    def __init__(self, partition: str | None = None) -> None:
        self._partition = partition

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the partition, or of all partitions."""
        chosen = ("--partition", self._partition) if self._partition else ("--all",)
        text = _checked("sinfo", "--noheader", "--Node", *chosen, f"--format={parse.NODE_FORMAT}")
        return parse.nodes(text)

    def submit(self, script: Path) -> str:
        """Submit a script and return the job's id."""
        chosen = ("--partition", self._partition) if self._partition else ()
        done = _run("sbatch", "--parsable", *chosen, str(script))
        if done.returncode or done.timed_out:
            raise RefusedError(_why(done).removeprefix("sbatch: error: "))
        return parse.submitted(done.stdout)

    def jobs(self, run: str) -> dict[str, JobState]:
        """Return a run's jobs: Slurm forgets them some minutes after their end (MinJobAge)."""
        named = f"--name={job_name(run)}"
        return parse.jobs(
            _checked("squeue", "--noheader", "--states=all", named, f"--format={parse.JOB_FORMAT}")
        )

    def exit_code(self, job: str) -> str:
        """Return what a job ended with; empty if Slurm does not know it any more."""
        done = _run("scontrol", "--oneliner", "show", "job", job)
        return "" if done.returncode else parse.exit_code(done.stdout)

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs. Those that have ended make scancel fail, which says nothing of the rest."""
        for first in range(0, len(jobs), _MOST_CANCELLED):
            _run("scancel", *jobs[first : first + _MOST_CANCELLED])


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for Slurm's programs.

    Those by which users set options win over a script's own lines, and hide jobs and nodes from
    lists: only the ones that say on whose account and where jobs run are left.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT_PREFERENCES or not name.startswith(_PREFERENCES)
    }


def _run(*argv: str) -> Completed:
    try:
        return process.run(argv, base=environment(os.environ), timeout=CALL_SECONDS)
    except ToolError as error:
        raise ToolError(
            f"{argv[0]} is missing: this machine has no client of Slurm",
            "Run envbuilder where you submit jobs, such as a login node.",
        ) from error


def _checked(*argv: str) -> str:
    done = _run(*argv)
    if done.returncode or done.timed_out:
        raise ToolError(f"{argv[0]} failed: {_why(done)}", "Is the cluster reachable from here?")
    return done.stdout


def _why(done: Completed) -> str:
    if done.timed_out:
        return f"no answer within {CALL_SECONDS:g} s"
    return " ".join(done.last_words.split()) or f"exit code {done.returncode}"
