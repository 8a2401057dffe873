"""Run Slurm's commands and parse their output.

No command needs Slurm's accounting, which many clusters lack. All output is requested with explicit
format fields, which Slurm has supported since version 17. `--json` is not used, because its output
differs between releases. Names and reasons in the output are shortened, because administrators
choose the names, and anyone can write the reasons.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, process
from envbuilder.core.errors import ToolError, printable
from envbuilder.fleet.model import LONGEST_REASON, JobId, Node, Outcome, Resource, natural

SUFFIX = ".sbatch"
"""Suffix of the file names of job scripts."""
CALL_SECONDS = 60.0
"""Maximum number of seconds that one command may take. Slurm's own timeouts are 10 to 20 seconds
per message."""
_PREFERENCES = ("SBATCH_", "SINFO_", "SQUEUE_", "SCANCEL_")
_KEPT_PREFERENCES = frozenset(
    ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION")
)
_MOST_CANCELLED = 500
"""Maximum number of job IDs to pass to one call of scancel, so that the command line stays
short."""
Phase: TypeAlias = Literal["waiting", "running", "ending", "ended"]
"""The phase of a job. In the phase `ending`, the job's script has ended or is being ended, but the
job still exists."""
NODE_FORMAT = "%N|%T|%f|%G|%E"
"""Output format for sinfo: name, state, features, generic resources and reason. The reason comes
last because it may contain any characters."""
JOB_FORMAT = "%i|%T|%o|%r"
"""Output format for squeue: ID, state, path of the script (which contains no |) and reason."""
MOST_NODES = 20_000
"""Maximum number of nodes to accept in sinfo's output. Slurm is known to run on clusters with about
15,000 nodes."""

_MARKS = "*~#!%$@^-+"
"""The marks that Slurm appends to the state of a node. `*` means that the node does not respond."""
_USABLE = frozenset(
    (
        "idle",
        "mixed",
        "allocated",
        "completing",
        "planned",
        "reserved",
        "powered_down",
        "powering_down",
        "powering_up",
        "power_up",
    )
)
_WAITING: tuple[Phase, Outcome, str] = ("waiting", "broken", "")
_ENDING: tuple[Phase, Outcome, str] = ("ending", "broken", "")
_RUNNING: tuple[Phase, Outcome, str] = ("running", "broken", "")
"""The phase for all other states, including those that newer Slurm releases add. The job is
followed, and canceled when its time limit has passed. The outcome is not used if the job
disappears."""
_BROKEN: tuple[Phase, Outcome, str] = ("ended", "broken", "")
JOB_STATES: dict[str, tuple[Phase, Outcome, str]] = {
    "PENDING": _WAITING,
    "REQUEUED": _WAITING,
    "REQUEUE_FED": _WAITING,
    "REQUEUE_HOLD": _WAITING,
    "RESV_DEL_HOLD": _WAITING,
    "SPECIAL_EXIT": _WAITING,
    # It has its nodes, which may have to boot; its script has not begun.
    "CONFIGURING": _WAITING,
    "POWER_UP_NODE": _WAITING,
    "STAGE_OUT": _ENDING,
    # Also for KillWait (30 s by default) after scancel, before it is CANCELLED.
    "COMPLETING": _ENDING,
    "COMPLETED": (
        "ended",
        "lost",
        "the job ended without reporting anything: check that its folder is shared",
    ),
    "FAILED": _BROKEN,
    "LAUNCH_FAILED": _BROKEN,
    "RECONFIG_FAIL": _BROKEN,
    "BOOT_FAIL": ("ended", "killed", "the node did not boot"),
    "CANCELLED": ("ended", "killed", "cancelled by somebody else"),
    "NODE_FAIL": ("ended", "killed", "the node failed"),
    "OUT_OF_MEMORY": ("ended", "killed", "out of memory"),
    "PREEMPTED": ("ended", "killed", "preempted by another job"),
    "REVOKED": ("ended", "killed", "revoked"),
    "DEADLINE": ("ended", "timed-out", "ended by the scheduler"),
    "TIMEOUT": ("ended", "timed-out", "ended by the scheduler"),
}
"""The phase of a job, its outcome if there is no result, and the meaning of its state, by Slurm's
word for the state or flag. The meaning describes how the job ended. The words are from "Job state
codes" in the manual page of squeue."""
_RESOURCE = re.compile(
    r"([A-Za-z0-9_.-]{1,100})(?::([A-Za-z0-9_.-]{1,100}))??(?::([0-9]{1,9})[KMGTP]?)?"
)


class JobState(Struct, frozen=True, kw_only=True):
    """The state of a job, as reported by the scheduler."""

    job: str
    phase: Phase
    word: str
    """The scheduler's word for the state, such as NODE_FAIL."""
    outcome: Outcome
    """The node's outcome if the job ended in this state without a result."""
    meaning: str
    """The meaning of the word for a job that has ended. Empty if the job itself failed."""
    reason: str
    """The reason why the job is waiting or has ended."""
    node: str
    """The name of the node, which is also the name of the job's script."""


class RefusedError(Exception):
    """Raised when the scheduler refuses a job. The message is the scheduler's reason."""


class Slurm:
    """A Slurm cluster, which is accessed through the Slurm commands on this machine."""

    def __init__(self, partition: str | None = None) -> None:
        self._partition = partition

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in the partition, or in all partitions if none is set."""
        chosen = ("--partition", self._partition) if self._partition else ("--all",)
        text = _checked("sinfo", "--noheader", "--Node", *chosen, f"--format={NODE_FORMAT}")
        return parse_nodes(text)

    def submit(self, script: Path) -> str:
        """Submit a script and return the ID of the job. Raise `RefusedError` if it is refused."""
        chosen = ("--partition", self._partition) if self._partition else ()
        done = _run("sbatch", "--parsable", *chosen, str(script))
        if done.returncode or done.timed_out:
            raise RefusedError(_why(done).removeprefix("sbatch: error: "))
        # `ID` or `ID;CLUSTER`.
        try:
            return decoding.convert(done.stdout.strip().partition(";")[0], JobId)
        except msgspec.ValidationError as error:
            raise _unexpected("sbatch", done.stdout) from error

    def jobs(self, run: str) -> dict[str, JobState]:
        """Return the state of each job of a run, by job ID.

        Slurm forgets a job some minutes after the job ends (`MinJobAge`).
        """
        return parse_jobs(
            _checked(
                "squeue",
                "--noheader",
                "--states=all",
                f"--name={job_name(run)}",
                f"--format={JOB_FORMAT}",
            )
        )

    def exit_code(self, job: str) -> str:
        """Return a job's exit code or signal, or "" if Slurm no longer knows the job."""
        done = _run("scontrol", "--oneliner", "show", "job", job)
        match = re.search(r"\bExitCode=([0-9]+):([0-9]+)", done.stdout)
        if done.returncode or match is None:
            return ""
        if match[2] != "0":
            return f"signal {match[2]}"
        return match[1]

    def cancel(self, jobs: Sequence[str]) -> None:
        """Cancel the given jobs.

        Failures of scancel are ignored, because it fails for jobs that have already ended.
        """
        for first in range(0, len(jobs), _MOST_CANCELLED):
            _run("scancel", *jobs[first : first + _MOST_CANCELLED])


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for running Slurm's commands.

    Users can set Slurm options in variables. Such variables override the options in a script, and
    can hide jobs and nodes from lists. Therefore, they are removed, except for those that set the
    account, partition, QOS or reservation.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT_PREFERENCES or not name.startswith(_PREFERENCES)
    }


def _run(*argv: str) -> process.Completed:
    try:
        return process.run(argv, base=environment(os.environ), timeout=CALL_SECONDS)
    except ToolError as error:
        raise ToolError(
            f"{argv[0]} is missing: this machine has no Slurm client",
            "Run envbuilder on a machine from which you submit jobs, such as a login node.",
        ) from error


def _checked(*argv: str) -> str:
    done = _run(*argv)
    if done.returncode or done.timed_out:
        raise ToolError(
            f"{argv[0]} failed: {_why(done)}", "Check that this machine can reach the cluster."
        )
    return done.stdout


def _why(done: process.Completed) -> str:
    if done.timed_out:
        return f"no answer within {CALL_SECONDS:g} s"
    return " ".join(done.last_words.split()) or f"exit code {done.returncode}"


def job_name(run: str) -> str:
    """Return the job name that all jobs of a run share, and that no other job has."""
    return f"envbuilder-{run}"


def parse_nodes(text: str) -> tuple[Node, ...]:
    """Return the nodes in sinfo's output, each node once and in natural order.

    Raise `ToolError` if a line does not have the requested format, or if there are too many nodes.
    """
    by_name: dict[str, Node] = {}
    for line in filter(None, text.splitlines()):
        node = _node(line)
        by_name.setdefault(node.name, node)
        if len(by_name) > MOST_NODES:
            raise ToolError(
                f"sinfo lists more than {MOST_NODES:,} nodes",
                "Select some of them with --nodes 'a*' or --partition NAME",
            )
    return tuple(by_name[name] for name in sorted(by_name, key=natural))


def _node(line: str) -> Node:
    fields = line.split("|", 4)
    if len(fields) < 5:
        raise _unexpected("sinfo", line)
    name, marked, features, resources, reason = fields
    state = marked.rstrip(_MARKS).lower()
    silent = "*" in marked[len(state) :]
    data = {
        "name": name,
        "state": printable(state, 40) + (", not responding" if silent else ""),
        "usable": state in _USABLE and not silent,
        "features": tuple(printable(f, 200) for f in _split(features)),
        "resources": tuple(_resources(resources)),
        "reason": printable("" if reason.strip() == "none" else reason.strip(), LONGEST_REASON),
    }
    try:
        return decoding.convert(data, Node)
    except msgspec.ValidationError as error:
        raise _unexpected("sinfo", line) from error


def _split(text: str) -> list[str]:
    if text == "(null)":
        return []
    return list(filter(None, text.split(",")))


def _resources(text: str) -> Iterator[Resource]:
    """Yield the generic resources listed in a string such as `gpu:h100:8(S:0-1),nvme:2`."""
    for resource in _split(re.sub(r"\([^)]*\)", "", text)):
        match = _RESOURCE.fullmatch(resource)
        if match:
            yield Resource(name=match[1], type=match[2] or "", count=int(match[3] or 1))


def parse_jobs(text: str) -> dict[str, JobState]:
    """Return the jobs in squeue's output, by job ID."""
    states = {}
    for line in filter(None, text.splitlines()):
        fields = line.split("|", 3)
        if len(fields) < 4:
            raise _unexpected("squeue", line)
        job, word, script, reason = fields
        phase, outcome, meaning = JOB_STATES.get(word, _RUNNING)
        states[job] = JobState(
            job=printable(job, 100),
            phase=phase,
            word=printable(word, 40),
            outcome=outcome,
            meaning=meaning,
            reason="" if reason == "None" else printable(reason, LONGEST_REASON),
            node=printable(script.rpartition("/")[2].removesuffix(SUFFIX), 253),
        )
    return states


def given_gpus(environ: Mapping[str, str]) -> int | None:
    """Return the number of GPUs allocated to a job on its node, or None if it is unknown.

    The number is taken from a variable that Slurm has set since version 20.11.
    """
    number = environ.get("SLURM_GPUS_ON_NODE", "")
    if re.fullmatch(r"[0-9]{1,6}", number):
        return int(number)
    return None


def _unexpected(program: str, line: str) -> ToolError:
    return ToolError(
        f"envbuilder cannot parse the output of {program}: {printable(line, 100)!r}",
        "Report this, with the output of: sinfo --version",
    )
