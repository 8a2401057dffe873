"""Verification: run the payload inside an environment, follow its events, take its report."""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder.core import folders
from envbuilder.core.errors import VerifyError
from envbuilder.core.text import printable
from envbuilder.packages.mnist import Dataset
from envbuilder.payload.report import BLIND_TEST, REQUIRED
from envbuilder.payload.training import dataset as contents
from envbuilder.profiles.profile import Expects
from envbuilder.verify import blind_test as blind
from envbuilder.verify.report import consistency
from envbuilder.verify.report import model as reports
from envbuilder.verify.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from envbuilder.core.console import Progress, Task
    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings
    from envbuilder.verify.blind_test import BlindTest, Score
    from envbuilder.verify.report.consistency import Request


class Outcome(Struct, frozen=True, kw_only=True):
    """A finished verification: the typed parts and the payload's report as it came."""

    measured: reports.Measured
    data: dict[str, Any]


def new_run_id() -> str:
    """What ties a report to its run: the payload cannot know it before."""
    return secrets.token_hex(16)


def payload_arguments(job: Job, seen: Mapping[str, str]) -> tuple[str, ...]:
    """The payload's arguments for a profile's expectations; `seen`: the folders as it sees them."""
    expects, dataset = job.expects, job.dataset
    arguments = ["verify", "--device", expects.device, "--data", seen["data"]]
    arguments += ["--questions", seen["questions"]]
    arguments += ["--dataset-name", dataset.name]
    if job.epochs is not None:
        arguments += ["--epochs", str(job.epochs)]
    arguments += ["--precision", expects.precision]
    if expects.torch:
        arguments += ["--torch-version", expects.torch]
    if job.quick or dataset.subset:
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
    """Follow the payload's lines on stdout: show progress, keep the final report.

    `timeline` gets each phase as it arrives; `blind_test` the payload's question and its answers.
    """

    def __init__(
        self,
        progress: Progress,
        timeline: Timeline | None = None,
        blind_test: BlindTest | None = None,
    ) -> None:
        self._progress, self._timeline, self._blind_test = progress, timeline, blind_test
        self._open: Any = None
        self._task: Task | None = None
        self._name = ""
        self.run_id: Any = None
        self.report: Any = None

    def line(self, text: str) -> None:
        """One line; anything that is not an event of ours is ignored."""
        arrival = time.monotonic()
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(event, dict):
            return
        kind = event.get("event")
        if kind == "phase":
            if self._timeline is not None:
                self._timeline.arrived(str(event.get("name")), arrival)
            self._start(str(event.get("name")))
        elif kind == "progress":
            self._start(str(event.get("phase")), event.get("total"))
            done = event.get("done")
            if self._task and isinstance(done, int):
                self._task.update(done)
        elif kind == "questions" and self._blind_test is not None:
            self._blind_test.ask()
        elif kind == "answers" and self._blind_test is not None:
            self._blind_test.answer(event)
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


class Job(Struct, frozen=True, kw_only=True):
    """What a verification is asked to do."""

    expects: Expects
    dataset: Dataset
    epochs: int | None
    quick: bool


def examine(
    job: Job,
    selection: Sequence[str],
    start: Callable[..., Completed],
    settings: Settings,
    progress: Progress,
    log: Path,
) -> dict[str, Any]:
    """Have the payload train and answer a blind test; return its report with the score.

    `selection` are further arguments for the payload, which `start` runs. Raises `VerifyError` as
    `run_payload` does.
    """
    # Read here as well: what the report says of the data is held against it.
    data = contents.load(job.dataset.folder, job.dataset.name)
    run_id, small = new_run_id(), job.quick or job.dataset.subset
    asked = consistency.request(job.expects, data, epochs=job.epochs, quick=small)
    with blind.folder(settings) as questions:
        folders = {"data": job.dataset.folder, "questions": questions}

        def arguments(seen: Mapping[str, str]) -> tuple[str, ...]:
            return (*payload_arguments(job, seen), *selection, "--run-id", run_id)

        return run_payload(
            lambda on_line: start(arguments, folders, on_line),
            *(progress, log, run_id, asked),
            blind.BlindTest(data.quick().test if small else data.test, questions),
        ).data


def run_payload(
    start: Callable[[Callable[[str], None]], Completed],
    progress: Progress,
    log: Path,
    run_id: str,
    asked: Request,
    blind_test: BlindTest,
) -> Outcome:
    """Run the payload through `start`, which gives it this id, and return what it reported.

    Raises `VerifyError` when it was killed, ran out of time or ended without a valid report; when
    it reported passed and that contradicts what was asked for, the time that went by outside, or
    the score of the blind test.
    """
    with Timeline() as timeline:
        events = Events(progress, timeline, blind_test)
        done, found, where = follow(start, events, progress, log, run_id)
    measured = reports.check(found)
    data = as_stored(found, where)
    require_agreement(done, measured.status, where)
    if measured.status != "passed":
        return Outcome(measured=measured, data=data)
    problem = _incomplete(measured)
    if problem:
        raise VerifyError(f"the payload reported passed {problem}: not to be trusted", where)
    problems = [
        *consistency.contradictions(asked, measured, done.seconds),
        *timeline.problems(_passes(measured)),
    ]
    if problems:
        raise VerifyError(
            f"the payload reported passed, not to be trusted: {printable('; '.join(problems))}",
            where,
        )
    score = blind_test.score()
    epochs = measured.training.epochs if measured.training else ()
    blind.require(score, epochs[-1].accuracy or 0.0, asked.accuracy, asked.loss)
    return Outcome(measured=measured, data=_with_score(data, score))


def _passes(measured: reports.Measured) -> list[tuple[str, float]]:
    """Each training pass that is reported: the name of its phase, and its seconds."""
    epochs = measured.training.epochs if measured.training else ()
    passes = [(f"epoch {number}", epoch.seconds) for number, epoch in enumerate(epochs, 1)]
    seconds = measured.baseline_seconds()
    return passes if seconds is None else [*passes, ("baseline epoch 1", seconds)]


def _with_score(data: dict[str, Any], score: Score) -> dict[str, Any]:
    """A report with the blind test's score, which its check of that name tells."""
    detail = f"{score.accuracy:.2%} of {score.images} images without labels, scored outside"
    checks = [c | {"detail": detail} if c["name"] == BLIND_TEST else c for c in data["checks"]]
    return {**data, "checks": checks, "blind_test": msgspec.to_builtins(score)}


def _incomplete(measured: reports.Measured) -> str:
    """Why a payload of ours cannot have given this passing report; "" where it can."""
    made = {check.name for check in measured.checks if check.status in {"passed", "warning"}}
    lacking = [name for name in (*REQUIRED, BLIND_TEST) if name not in made]
    if lacking:
        return f"without these checks: {', '.join(lacking)}"
    early = next((check for check in measured.checks if check.seconds < 0), None)
    return f"although {early.name} took {early.seconds:g} s" if early else ""


def follow(
    start: Callable[[Callable[[str], None]], Completed],
    events: Events,
    progress: Progress,
    log: Path,
    run_id: str,
) -> tuple[Completed, Any, str]:
    """Run the payload: how it ended, its report, not yet checked, and where its own words are.

    Raises `VerifyError` when it was killed, ran out of time or ended without a report of this run.
    """
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


def unfinished(job: Job, error: VerifyError) -> dict[str, Any]:
    """The report of a payload that gave none, or none to be believed: failed, and why."""
    expects, dataset = job.expects, job.dataset
    detail = printable(error.message)
    return {
        "schema": reports.SCHEMA,
        "device": {"requested": expects.device, "used": None},
        "torch": {},
        "precision": None,
        "dataset": {"name": dataset.name, "subset": dataset.subset},
        "quick": job.quick or dataset.subset,
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
        folders.ensure(log.parent, private=True)
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
    return f"the payload ended with exit code {code}" + (
        f": {printable(last[-1], 300)}" if last else ""
    )
