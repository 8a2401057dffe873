"""The folder of a run, which all nodes see: its plan, its jobs, their results.

fleet.json               the plan
scripts/NODE.sbatch      what was submitted
jobs.jsonl               one line a job, written when it is accepted
results/NODE.JOB.json    written by the node at the end of its job
logs/NODE.JOB.log        what the job printed
summary.json             the table

The scripts run as the user, so nobody else may write them, or replace the folder.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from envbuilder.core import decoding, files, text
from envbuilder.core.errors import BuildError, InvalidError, printable
from envbuilder.fleet import judge
from envbuilder.fleet.model import LONGEST_REASON, Entry, JobId, NodeName, Summary
from envbuilder.fleet.planning import SAFE_FOLDER, Plan
from envbuilder.fleet.slurm import SUFFIX

PLAN = "fleet.json"
JOBS = "jobs.jsonl"
SUMMARY = "summary.json"
_LOG_TAIL = 4096
"""Bytes that are read of a job's output, from its end: its last error is there."""


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

    Raises `InvalidError` if the folder holds a run already, or another user controls its content;
    `BuildError` if it cannot be written.
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

    Raises `InvalidError` if there is none, it is damaged, or not the user's own.
    """
    files.require_own(folder)
    hint = "Name the folder of an earlier run: --resume FOLDER"
    with _reading(folder / PLAN, "the plan of a run", hint):
        plan = decoding.convert(decoding.strict_json((folder / PLAN).read_bytes()), Plan)
        text.stamp_time(plan.started)
    return plan


@contextmanager
def _reading(path: Path, what: str, hint: str) -> Iterator[None]:
    """Raise `InvalidError` for a file that cannot be read or is invalid."""
    try:
        with files.explained(path, hint=hint):
            yield
    except ValueError as error:
        problem = printable(str(error), LONGEST_REASON)
        raise InvalidError(f"{path}: not {what}: {problem}", hint) from error


def script(folder: Path, node: str) -> Path:
    """Return the path of a node's script."""
    return folder / "scripts" / f"{node}{SUFFIX}"


def add_job(folder: Path, node: str, job: str) -> None:
    """Record a job for later runs of this program. Raises `BuildError`."""
    with _writing(folder), (folder / JOBS).open("ab") as out:
        out.write(msgspec.json.encode(_Submitted(node=node, job=job)) + b"\n")
        out.flush()
        os.fsync(out.fileno())


def jobs(folder: Path) -> dict[str, str]:
    """Return the newest job of each node, without lines that a kill cut off."""
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
    """Yield node and content of the results that exist; `expected` maps nodes to jobs.

    A result that is too large or unreadable has empty content, and is thus malformed.

    The content of one that is too large or unreadable is empty, and thus malformed.
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
    """Return the last error that a job printed, or else its last line; empty if there is none.

    srun's own output is skipped: it only says that a task failed.
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
    """Write the table. Raises `BuildError`."""
    with _writing(folder):
        files.write(folder / SUMMARY, encode(summary))


def encode(summary: Summary) -> bytes:
    """Encode a summary as text for `read_summary`."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n"


def read_summary(path: Path) -> Summary:
    """Return the summary in a file, or in a run's folder; raise `InvalidError` if it is not valid.

    The file is untrusted: its texts are cut and freed of control characters again.
    """
    file = path / SUMMARY if path.is_dir() else path
    hint = f"Name the folder of a finished run, or the file {SUMMARY} in it."
    with _reading(file, "a summary of a fleet", hint):
        data = decoding.strict_json(files.read(file, decoding.LARGEST))
        return _checked(decoding.convert(data, Summary))


def _checked(summary: Summary) -> Summary:
    """Return a summary that is safe to show; raise `ValueError` if it contradicts itself."""
    for stamp in (summary.started, summary.finished):
        text.stamp_time(stamp)
    nodes = [entry.node for entry in summary.entries]
    if len(set(nodes)) != len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        raise ValueError(f"the node {twice} is in it twice")
    return replace(summary, entries=tuple(map(_safe, summary.entries)))


def _safe(entry: Entry) -> Entry:
    values = asdict(entry)
    for key, value in values.items():
        # JSON's 1e999 is infinite.
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} of the node {entry.node} is not finite")
    texts = {k: printable(v, LONGEST_REASON) for k, v in values.items() if isinstance(v, str)}
    return replace(entry, **texts)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise `BuildError` if the folder cannot be written, `InvalidError` if it has a run."""
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
