"""Verification: run the payload inside an environment, follow its events, take its report."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder import report as reports
from envbuilder.errors import VerifyError
from envbuilder.payload.report import REQUIRED
from envbuilder.summary import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from envbuilder.console import Progress, Task
    from envbuilder.mnist import Dataset
    from envbuilder.process import Completed
    from envbuilder.profiles import Expects

TIMEOUT_SECONDS = 4 * 3600.0
"""An epoch on a slow two-core machine takes minutes; a hung driver must still end."""


class Outcome(Struct, frozen=True, kw_only=True):
    """A finished verification: the typed parts and the payload's report as it came."""

    measured: reports.Measured
    data: dict[str, Any]


def new_run_id() -> str:
    """What ties a report to its run: the payload cannot know it before."""
    return secrets.token_hex(16)


def payload_arguments(
    expects: Expects, dataset: Dataset, data_dir: str, *, epochs: int | None, quick: bool
) -> tuple[str, ...]:
    """The payload's arguments for a profile's expectations; `data_dir` as the payload sees it."""
    arguments = ["verify", "--device", expects.device, "--data", data_dir]
    arguments += ["--dataset-name", dataset.name]
    if epochs is not None:
        arguments += ["--epochs", str(epochs)]
    arguments += ["--precision", expects.precision]
    if expects.torch:
        arguments += ["--torch-version", expects.torch]
    if quick or dataset.subset:
        arguments.append("--quick")
    else:
        arguments += ["--min-accuracy", str(expects.accuracy)]
        for backend in expects.compile:
            arguments += ["--compile-backend", backend]
        for prefix in expects.kernels:
            arguments += ["--require-kernels", prefix]
    if expects.extension:
        arguments += ["--extension", expects.extension]
    return tuple(arguments)


class Events:
    """Follows the payload's lines on stdout: shows progress and keeps the final report."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: Any = None
        self._task: Task | None = None
        self._name = ""
        self.run_id: Any = None
        self.report: Any = None

    def line(self, text: str) -> None:
        """One line; anything that is not an event of ours is ignored."""
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(event, dict):
            return
        kind = event.get("event")
        if kind == "phase":
            self._start(str(event.get("name")))
        elif kind == "progress":
            self._start(str(event.get("phase")), event.get("total"))
            done = event.get("done")
            if self._task and isinstance(done, int):
                self._task.update(done)
        elif kind == "report":
            self.run_id, self.report = event.get("run_id"), event.get("report")

    def _start(self, name: str, total: object = None) -> None:
        if name == self._name:
            return
        self.close()
        # Shown on the user's terminal: no control characters from inside an environment.
        self._name, clean = name, printable(name, 60)
        self._open = self._progress.task(clean, total if isinstance(total, int) else None)
        self._task = self._open.__enter__()

    def close(self) -> None:
        """End the task that is open."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = self._task = None


def run_payload(
    start: Callable[[Callable[[str], None]], Completed],
    progress: Progress,
    log: Path,
    run_id: str,
) -> Outcome:
    """Run the payload through `start`, which gives it this id, and return what it reported.

    Raises `VerifyError` when it was killed, ran out of time or ended without a valid report.
    """
    done, found, where = follow(start, progress, log, run_id)
    measured = reports.check(found)
    data = as_stored(found, where)
    require_agreement(done, measured.status, where)
    problem = _incomplete(measured) if measured.status == "passed" else ""
    if problem:
        raise VerifyError(f"the payload reported passed {problem}: not to be trusted", where)
    return Outcome(measured=measured, data=data)


def _incomplete(measured: reports.Measured) -> str:
    """Why a payload of ours cannot have given this passing report; "" where it can."""
    made = {check.name for check in measured.checks if check.status in {"passed", "warning"}}
    lacking = [name for name in REQUIRED if name not in made]
    if lacking:
        return f"without these checks: {', '.join(lacking)}"
    early = next((check for check in measured.checks if check.seconds < 0), None)
    return f"although {early.name} took {early.seconds:g} s" if early else ""


def follow(
    start: Callable[[Callable[[str], None]], Completed], progress: Progress, log: Path, run_id: str
) -> tuple[Completed, Any, str]:
    """Run the payload: how it ended, its report, not yet checked, and where its own words are.

    Raises `VerifyError` when it was killed, ran out of time or ended without a report of this run.
    """
    events = Events(progress)
    try:
        done = start(events.line)
    finally:
        events.close()
    where = _keep_log(done.stderr, log, progress)
    if done.timed_out:
        raise VerifyError(f"the payload did not end within {done.seconds:.0f} s", where)
    if events.report is None:
        raise VerifyError(_ended(done), where)
    if events.run_id != run_id:
        raise VerifyError("the report is not of this run: not to be trusted", where)
    return done, events.report, where


def require_agreement(done: Completed, status: str, where: str) -> None:
    """`VerifyError` where the payload's exit code says something else than its report."""
    if done.returncode not in {0, 5} or (done.returncode == 0) != (status == "passed"):
        # The last line that it printed comes last: it may be as long as a report.
        raise VerifyError(
            f"the payload reported {status}, not to be trusted: {_ended(done)}", where
        )


def unfinished(
    expects: Expects, dataset: Dataset, *, quick: bool, error: VerifyError
) -> dict[str, Any]:
    """The report of a payload that gave none, or none to be believed: failed, and why."""
    detail = printable(error.message)
    return {
        "schema": reports.SCHEMA,
        "device": {"requested": expects.device, "used": None},
        "torch": {},
        "precision": None,
        "dataset": {"name": dataset.name, "subset": dataset.subset},
        "quick": quick or dataset.subset,
        "checks": [{"name": "run", "status": "failed", "seconds": 0.0, "detail": detail}],
        "training": None,
        "baseline": None,
        "speedup": None,
        "status": "failed",
        "reasons": [f"run: {detail}"],
        "warnings": [],
    }


def _keep_log(text: str, log: Path, progress: Progress) -> str:
    """Where the payload's own words are. A full disk must not hide the verdict."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        progress.note(f"{log}: cannot be written: {error.strerror or error}")
        return ""
    return f"What it printed is in {log}"


def as_stored(report: Any, where: str) -> Any:
    """A report as it will be read again; `VerifyError` where JSON has no form for it."""
    try:
        return msgspec.json.decode(msgspec.json.encode(report))
    except (ValueError, TypeError, RecursionError) as error:
        raise VerifyError(f"the payload's report cannot be stored: {error}", where) from error


def _ended(done: Completed) -> str:
    """How a payload ended that should not have ended so."""
    code = done.returncode
    if code in {-9, 137}:
        return "the payload was killed (signal 9): most often by the kernel, out of memory"
    if code < 0 or code > 128:
        return f"the payload was ended by signal {-code if code < 0 else code - 128}"
    last = done.last_words.splitlines()
    return f"the payload ended with exit code {code}" + (f": {printable(last[-1])}" if last else "")
