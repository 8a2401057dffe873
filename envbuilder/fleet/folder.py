"""The folder of a run, which all nodes see: what is planned, which job is whose, what came back.

fleet.json               the plan
scripts/NODE.sbatch      what was submitted
jobs.jsonl               one line a job, written when it is accepted
results/NODE.JOB.json    written by the node at the end of its job
logs/NODE.JOB.log        what the job printed
meetings/                where nodes that train together leave files for each other
summary.json             the table

Of nodes that train together, the name of their group stands for NODE. What the plan and the scripts
say runs as the user, so nobody else may write them, or exchange the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding, files, ownership, stamps
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.text import printable
from envbuilder.fleet import result as results
from envbuilder.fleet import summaries
from envbuilder.fleet.model import LONGEST_REASON, SCHEMA, Entry, JobId, NodeName, Promise, RunId
from envbuilder.fleet.slurm.script import SAFE_FOLDER, SUFFIX, Common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from envbuilder.fleet.model import Summary

PLAN, JOBS = "fleet.json", "jobs.jsonl"
_LARGEST = 64 << 20
_LOG_TAIL = 4096


class Plan(Struct, frozen=True, kw_only=True):
    """What a run is to do. It holds all that `--resume` needs."""

    schema: int
    run: RunId
    scheduler: Literal["slurm"]
    started: Annotated[str, Meta(pattern=r"^[0-9]{8}T[0-9]{6}Z\Z")]
    quick: bool
    epochs: Annotated[int, Meta(ge=0)] = 0
    """Training passes of each node; 0 if an earlier envbuilder planned it."""
    partition: Annotated[str, Meta(max_length=200)] | None
    start_seconds: Annotated[int, Meta(ge=1)]
    limit_seconds: Annotated[int, Meta(ge=1)]
    promises: tuple[Promise, ...]
    left_out: tuple[Entry, ...]
    across: Common | None = None
    """For the jobs of nodes that train together; None if none are to. Which do is known later."""


class _Submitted(Struct, frozen=True, kw_only=True):
    """A line of `jobs.jsonl`."""

    node: NodeName
    job: JobId


def require_path(folder: Path) -> None:
    """Raise `InvalidError` for a path that a line of `#SBATCH` could not hold as it is."""
    if not re.match(SAFE_FOLDER, str(folder)):
        raise InvalidError(
            f"{folder}: jobs cannot write into a folder of this name",
            "Name one of letters, digits and ._-/ with --folder.",
        )


def create(folder: Path, plan: Plan, scripts: Mapping[str, str]) -> None:
    """Write the plan and the scripts, by node.

    Raises `InvalidError` if the folder holds a run already, or another user decides what is in it;
    `BuildError` if it cannot be written.
    """
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        ownership.require_own(folder)
        for name in ("scripts", "results", "logs", "meetings"):
            (folder / name).mkdir(0o700)
        add_scripts(folder, scripts)
        files.write(folder / PLAN, msgspec.json.format(msgspec.json.encode(plan), indent=1))
    except FileExistsError as error:
        raise InvalidError(
            f"{folder}: it holds a run already",
            "Go on with it by --resume, or name another folder.",
        ) from error
    except OSError as error:
        raise _unwritable(folder, error) from error


def add_scripts(folder: Path, scripts: Mapping[str, str]) -> None:
    """Write scripts, by the names of what they are for. Raises `BuildError`."""
    try:
        for name, text in scripts.items():
            files.write(script(folder, name), text.encode(), 0o755)
    except OSError as error:
        raise _unwritable(folder, error) from error


def read(folder: Path) -> Plan:
    """Return the plan of a run.

    Raises `InvalidError` if there is none, it is damaged, or not the user's own.
    """
    ownership.require_own(folder)
    path = folder / PLAN
    hint = "Name the folder of an earlier run: --resume FOLDER"
    try:
        content = files.read(path, _LARGEST)
        decoding.require_few_values(content)
        plan = decoding.from_json(content, Plan)
        stamps.parse(plan.started)
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror or error}", hint) from error
    except (ValueError, RecursionError) as error:
        problem = printable(str(error), LONGEST_REASON)
        raise InvalidError(f"{path}: not the plan of a run: {problem}", hint) from error
    if plan.schema != SCHEMA:
        raise InvalidError(f"{path}: it has schema {plan.schema}, expected {SCHEMA}", hint)
    return plan


def script(folder: Path, node: str) -> Path:
    """Return the path of a node's script."""
    return folder / "scripts" / f"{node}{SUFFIX}"


def add_job(folder: Path, node: str, job: str) -> None:
    """Record a job, so that a later run of this program knows it. Raises `BuildError`."""
    line = msgspec.json.encode(_Submitted(node=node, job=job)) + b"\n"
    try:
        with (folder / JOBS).open("ab") as out:
            out.write(line)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise _unwritable(folder, error) from error


def jobs(folder: Path) -> dict[str, str]:
    """Return the newest job of each node. A line that was cut off by a kill is left out."""
    try:
        content = files.read(folder / JOBS, _LARGEST)
    except FileNotFoundError:
        return {}
    newest = {}
    for line in content.splitlines():
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            submitted = decoding.from_json(line, _Submitted)
            newest[submitted.node] = submitted.job
    return newest


def result_path(folder: Path, node: str, job: str) -> Path:
    """Return the path of the result of a node's job."""
    return folder / "results" / f"{node}.{job}.json"


def arrived(folder: Path, expected: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield node and content of the results that are there; `expected` maps nodes to jobs."""
    names = {entry.name for entry in os.scandir(folder / "results")}
    for node, job in expected.items():
        path = result_path(folder, node, job)
        if path.name in names:
            with contextlib.suppress(FileNotFoundError):
                yield node, _bounded(path)


def _bounded(path: Path) -> bytes:
    """Return a result; an empty one, which is malformed, if it is too large or unreadable."""
    try:
        return files.read(path, results.LARGEST)
    except FileNotFoundError:
        raise
    except OSError:
        return b""


def last_words(folder: Path, node: str, job: str) -> str:
    """Return the last error that a job printed, or else its last line; empty if there is none.

    What srun itself printed says only that a task failed.
    """
    try:
        with (folder / "logs" / f"{node}.{job}.log").open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_TAIL))
            lines = log.read(_LOG_TAIL).decode(errors="replace").splitlines()
    except OSError:
        return ""
    printed = [line.strip() for line in lines if line.strip()]
    others = [line for line in printed if not line.startswith("srun: ")] or printed
    stated = [line for line in others if "error: " in line] or others
    return printable(stated[-1], LONGEST_REASON) if stated else ""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from following the same run. Raises `InvalidError` if one does."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InvalidError(
            f"{folder}: another envbuilder follows this run", "Wait for it, or stop it first."
        ) from error
    try:
        yield
    finally:
        lock.release()


def save(folder: Path, summary: Summary) -> None:
    """Write the table. Raises `BuildError`."""
    try:
        files.write(folder / summaries.NAME, summaries.encode(summary))
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> BuildError:
    where = error.filename or folder
    return BuildError(
        f"{where}: cannot be written: {error.strerror or error}",
        "Name a folder that all nodes see with --folder.",
    )
