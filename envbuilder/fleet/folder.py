"""The folder of a run, which contains the scripts, logs and results of its jobs.

All nodes can access the folder.

  scripts/NODE.sbatch      the submitted script
  results/NODE.JOB.json    the result, which the node writes at the end of its job
  logs/NODE.JOB.log        the output of the job
  summary.json             the summary table

The scripts run as the user, so nobody else must be able to write to them or to replace the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from envbuilder.core import files
from envbuilder.core.errors import BuildError, InvalidError, printable
from envbuilder.fleet import judge
from envbuilder.fleet.model import LONGEST_REASON, Summary
from envbuilder.fleet.planning import SAFE_FOLDER
from envbuilder.fleet.slurm import SUFFIX

SUMMARY = "summary.json"
_LOG_TAIL = 4096
"""Number of bytes to read from the end of a job's log, which contain the job's last error."""


def require_path(folder: Path) -> None:
    """Raise `InvalidError` unless the path can be written without quotes in an `#SBATCH` line."""
    if not re.match(SAFE_FOLDER, str(folder)):
        raise InvalidError(
            f"{folder}: jobs cannot write to a folder with this name",
            "With --folder, name a path that contains only letters, digits and ._-/.",
        )


def create(folder: Path, scripts: Mapping[str, str]) -> None:
    """Create the folder of a run and write its scripts.

    `scripts` maps each node to the content of its script. Raise `InvalidError` if the folder
    already contains a run, or if another user controls its contents. Raise `BuildError` if the
    folder cannot be written.
    """
    with _writing(folder):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        files.require_own(folder)
        for name in ("scripts", "results", "logs"):
            (folder / name).mkdir(0o700)
        for node, content in scripts.items():
            files.write(script(folder, node), content.encode(), 0o755)


def script(folder: Path, node: str) -> Path:
    """Return the path of a node's script."""
    return folder / "scripts" / f"{node}{SUFFIX}"


def result_path(folder: Path, node: str, job: str) -> Path:
    """Return the path of the result that a node's job writes to the folder."""
    return folder / "results" / f"{node}.{job}.json"


def arrived(folder: Path, expected: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the node and the content of each result that exists.

    `expected` maps nodes to jobs. If a result is too large or cannot be read, yield empty content,
    which is later treated as malformed.
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
    """Return the last error in a job's log or, if there is no error, the last line.

    Lines printed by srun are skipped, because they only say that a task failed. Return "" if there
    is no log or if it is empty.
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


def save(folder: Path, summary: Summary) -> None:
    """Write the summary table of a run. Raise `BuildError` if it cannot be written."""
    with _writing(folder):
        text = msgspec.json.format(msgspec.json.encode(summary), indent=1)
        files.write(folder / SUMMARY, text + b"\n")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Convert file errors that occur in the block to envbuilder's own errors.

    Raise `InvalidError` if the folder already contains a run, and `BuildError` if the folder cannot
    be written.
    """
    try:
        yield
    except FileExistsError as error:
        raise InvalidError(
            f"{folder}: the folder already contains a run",
            "Name another folder.",
        ) from error
    except OSError as error:
        raise BuildError(
            f"{error.filename or folder}: cannot be written: {error.strerror or error}",
            "With --folder, name a folder that all nodes can access.",
        ) from error
