"""The folder of a run, which all nodes can access: the plan, the jobs and their results.

fleet.json               the plan
scripts/NODE.sbatch      the submitted script
jobs.jsonl               one line per job, written when the scheduler accepts it
results/NODE.JOB.json    written by the node at the end of its job
logs/NODE.JOB.log        the output of the job
summary.json             the table

The scripts run as the user, so nobody else may be able to write them or to replace the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, files, text
from envbuilder.core.errors import BuildError, InvalidError, printable
from envbuilder.fleet import judge
from envbuilder.fleet.model import LONGEST_REASON, JobId, NodeName, Summary
from envbuilder.fleet.planning import SAFE_FOLDER, Plan
from envbuilder.fleet.slurm import SUFFIX

PLAN = "fleet.json"
JOBS = "jobs.jsonl"
SUMMARY = "summary.json"
_LOG_TAIL = 4096
"""Number of bytes to read from the end of a job's output, which contains its last error."""


class _Submitted(Struct, frozen=True, kw_only=True):
    """A line of `jobs.jsonl`."""

    node: NodeName
    job: JobId


def require_path(folder: Path) -> None:
    """Raise `InvalidError` for a path that cannot be written unquoted in a line of `#SBATCH`."""
    if not re.match(SAFE_FOLDER, str(folder)):
        raise InvalidError(
            f"{folder}: jobs cannot write into a folder of this name",
            "Name one of letters, digits and ._-/ with --folder.",
        )


def create(folder: Path, plan: Plan, scripts: Mapping[str, str]) -> None:
    """Create a run's folder with its plan and its scripts. `scripts` maps nodes to scripts.

    Raises `InvalidError` if the folder already contains a run, or if another user controls its
    content; `BuildError` if it cannot be written.
    """
    with _writing(folder):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        files.require_own(folder)
        for name in ("scripts", "results", "logs"):
            (folder / name).mkdir(0o700)
        for node, content in scripts.items():
            files.write(script(folder, node), content.encode(), 0o755)
        files.write(folder / PLAN, msgspec.json.format(msgspec.json.encode(plan), indent=1))


def read(folder: Path) -> Plan:
    """Return the plan of a run.

    Raises `InvalidError` if the plan is missing or damaged, or if the folder is not the user's own.
    """
    files.require_own(folder)
    path = folder / PLAN
    hint = "Name the folder of an earlier run: --resume FOLDER"
    try:
        with files.explained(path, hint=hint):
            plan = decoding.convert(decoding.strict_json(path.read_bytes()), Plan)
        text.stamp_time(plan.started)
    except ValueError as error:
        problem = printable(str(error), LONGEST_REASON)
        raise InvalidError(f"{path}: not the plan of a run: {problem}", hint) from error
    return plan


def script(folder: Path, node: str) -> Path:
    """Return the path of a node's script."""
    return folder / "scripts" / f"{node}{SUFFIX}"


def add_job(folder: Path, node: str, job: str) -> None:
    """Record a job, so that a resumed run finds it. Raises `BuildError` if that fails."""
    with _writing(folder), (folder / JOBS).open("ab") as out:
        out.write(msgspec.json.encode(_Submitted(node=node, job=job)) + b"\n")
        out.flush()
        os.fsync(out.fileno())


def jobs(folder: Path) -> dict[str, str]:
    """Return the newest job of each node. Incomplete lines, left by a kill, are skipped."""
    try:
        content = (folder / JOBS).read_bytes()
    except FileNotFoundError:
        return {}
    newest = {}
    for line in content.splitlines():
        with suppress(ValueError):
            submitted = decoding.from_json(line, _Submitted)
            newest[submitted.node] = submitted.job
    return newest


def result_path(folder: Path, node: str, job: str) -> Path:
    """Return the path of the result of a node's job."""
    return folder / "results" / f"{node}.{job}.json"


def arrived(folder: Path, expected: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the node and the content of each result that exists. `expected` maps nodes to jobs.

    A result that is too large or unreadable is yielded with empty content, which is malformed.
    """
    names = {entry.name for entry in os.scandir(folder / "results")}
    for node, job in expected.items():
        path = result_path(folder, node, job)
        if path.name in names:
            content = b""
            with suppress(OSError):
                content = files.read(path, judge.LARGEST)
            yield node, content


def last_words(folder: Path, node: str, job: str) -> str:
    """Return the last error that a job printed, or else its last line, or "" if there is none.

    Lines that srun prints are skipped, because they only say that a task failed.
    """
    try:
        with (folder / "logs" / f"{node}.{job}.log").open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_TAIL))
            lines = log.read(_LOG_TAIL).decode(errors="replace").splitlines()
    except OSError:
        return ""
    printed = [line.strip() for line in lines if line.strip()]
    others = [line for line in printed if not line.startswith("srun: ")] or printed
    errors = [line for line in others if "error: " in line] or others
    if errors:
        return printable(errors[-1], LONGEST_REASON)
    return ""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from following the same run. Raises `InvalidError` if one does."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise InvalidError(
            f"{folder}: another envbuilder follows this run", "Wait for it, or stop it first."
        ) from error


def save(folder: Path, summary: Summary) -> None:
    """Write the table of a run. Raises `BuildError` if that fails."""
    with _writing(folder):
        text = msgspec.json.format(msgspec.json.encode(summary), indent=1)
        files.write(folder / SUMMARY, text + b"\n")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise `BuildError` if the block cannot write the folder, `InvalidError` if a run is in it."""
    try:
        yield
    except FileExistsError as error:
        raise InvalidError(
            f"{folder}: it holds a run already",
            "Continue it with --resume, or name another folder.",
        ) from error
    except OSError as error:
        raise BuildError(
            f"{error.filename or folder}: cannot be written: {error.strerror or error}",
            "Name a folder that all nodes see with --folder.",
        ) from error
