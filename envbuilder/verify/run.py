"""Run the payload in an environment, follow its events, and validate its report."""

from __future__ import annotations

import json
import secrets
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct

from envbuilder.builds.mnist import Dataset
from envbuilder.builds.payload import RECORD
from envbuilder.core import files
from envbuilder.core.console import Progress, Task
from envbuilder.core.errors import VerifyError, log_text, printable, redacted_values
from envbuilder.payload.machine.device import HUNG, PHASE, SECONDS
from envbuilder.payload.report import BLIND_TEST, REQUIRED, STEP
from envbuilder.payload.training.dataset import load
from envbuilder.profiles.profile import Expected
from envbuilder.verify import blind_test, step
from envbuilder.verify.report import consistency, model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings

_INTERVAL = 0.02
"""Seconds between two samples of this process's scheduling delay."""

_MOST_PHASES = 10_000
_LONGEST_NAME = 200
"""Maximum number of recorded phases, and maximum length of a phase's name. The limits are needed
because an environment may send any number of phases."""

_SLACK = 0.25
_SLACK_SHARE = 0.01
"""Largest accepted difference between the reported duration of a pass and the time between its
events: `_SLACK` seconds plus `_SLACK_SHARE` of that time. Events may arrive late, because they pass
through a pipe and, if they come from a container, also through the engine."""

_DELAYS = 3
"""Number of processes that may each delay an event: the payload, the engine and this process."""

_EXCUSED = 0.5
"""Largest fraction of the time between two events that can be explained by delays."""

_LATEST = 1.0
"""Longest delay, in seconds, that an overloaded machine can cause. Two cores with a load of ten and
a busy disk had delays of 0.1 s. A longer delay than this limit means that this process was stopped,
so its measurements prove nothing."""


class Timeline:
    """The arrival times of the payload's phases, and the scheduling delays of this process.

    While a timeline is used as a context manager, it samples the delays in a thread. If the delays
    were ignored, a busy machine could look like an environment whose clock is wrong.
    """

    def __init__(self) -> None:
        self._arrivals: dict[str, float] = {}
        self._delays: dict[int, float] = {}
        """Longest delay within each second of the monotonic clock, in seconds."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.is_set():
            before = time.monotonic()
            time.sleep(_INTERVAL)
            now = time.monotonic()
            self.delayed(now - before - _INTERVAL, now)

    def arrived(self, phase: str, now: float | None = None) -> None:
        """Record when a phase began; ignore later events of the same phase.

        `now` is a value of `time.monotonic()`, and defaults to the current one.
        """
        if len(self._arrivals) < _MOST_PHASES and len(phase) <= _LONGEST_NAME:
            self._arrivals.setdefault(phase, time.monotonic() if now is None else now)

    def delayed(self, seconds: float, now: float) -> None:
        """Record that this process was delayed by `seconds` at time `now`."""
        self._delays[int(now)] = max(seconds, self._delays.get(int(now), 0.0))

    def problems(self, passes: Sequence[tuple[str, float]]) -> list[str]:
        """Return a sentence for each training pass with an implausible duration.

        A reported duration is implausible if it contradicts the arrival times of the pass's events.
        `passes` contains the phase and the reported duration in seconds of each training pass.
        """
        return [problem for each in passes if (problem := self._problem(*each))]

    def unconfirmed(self, passes: Iterable[tuple[str, float]]) -> str:
        """Return why a training pass's duration could not be confirmed.

        Return an empty string if all durations were confirmed.
        """
        for phase, _ in passes:
            late = self._latest(phase)
            if late > _LATEST:
                return (
                    f"{phase} was not timed from outside, because envbuilder itself was stopped"
                    f" for {late:.1f} s"
                )
        return ""

    def _latest(self, phase: str) -> float:
        """Return the longest delay of this process, in seconds, during a training pass."""
        around = range(
            int(self._arrivals.get(phase, 0.0)) - 1,
            int(self._arrivals.get(f"test {phase}", 0.0)) + 2,
        )
        return max((self._delays.get(second, 0.0) for second in around), default=0.0)

    def _problem(self, phase: str, seconds: float) -> str:
        begun = self._arrivals.get(phase)
        ended = self._arrivals.get(f"test {phase}")
        if begun is None or ended is None:
            return f"{phase} is reported, but its start or end was not observed"
        elapsed = ended - begun
        late = self._latest(phase)
        excused = min(_DELAYS * late, max(_SLACK, _EXCUSED * elapsed))
        if late > _LATEST:
            return ""  # its own delay is not the environment's fault; the speed is not judged
        if abs(elapsed - seconds) <= _SLACK + _SLACK_SHARE * elapsed + excused:
            return ""
        return (
            f"{phase} took {seconds:.2f} s according to the report, but measured from outside it"
            f" took {elapsed:.2f} s"
        )


_STEPS = 10**9
_LOSS = 1e6
"""Largest step number and loss that are shown. Progress events come from an untrusted environment.
"""
_MOST_SIGNALS = 64
"""Number of signals on Linux. An exit code above 128 plus this number does not stand for a signal.
"""


def new_run_id() -> str:
    """Return a random ID that ties a report to its run.

    The payload cannot know the ID in advance.
    """
    return secrets.token_hex(16)


def payload_arguments(job: Job, paths: Mapping[str, str]) -> tuple[str, ...]:
    """Return the payload's command-line arguments.

    `paths` maps the names of shared folders to their paths as the payload sees them. If `paths`
    does not contain `questions`, there is no blind test.
    """
    expects = job.expects
    small = job.quick or job.dataset.subset
    always = (
        ("--device", expects.device),
        ("--data", paths["data"]),
        ("--questions", paths.get("questions")),
        ("--dataset-name", job.dataset.name),
        ("--epochs", job.epochs),
        ("--precision", expects.precision),
        ("--framework", expects.framework),
        ("--framework-version", expects.version or None),
    )
    whole = (
        ("--images", expects.images),
        *(("--compile-backend", backend) for backend in expects.compile),
        *(("--require-kernels", prefix) for prefix in expects.kernels),
    )
    options = (*always, *(() if small else whole))
    arguments = ["verify"]
    for name, value in options:
        if value is not None:
            arguments += [name, str(value)]
    if small:
        arguments.append("--quick")
    if expects.extension:
        arguments += ["--extension", expects.extension]
    return tuple(arguments)


class Events(Struct):
    """A parser for the payload's output lines that shows progress and keeps the final report.

    `timeline` records the arrival time of each phase. `test` receives the payload's request for
    images and its answers.
    """

    _progress: Progress
    _timeline: Timeline | None = None
    _test: blind_test.BlindTest | None = None
    _open: ExitStack = msgspec.field(default_factory=ExitStack)
    _task: Task | None = None
    phase: str = ""
    """Name of the latest phase that began; empty before the first one."""
    run_id: Any = None
    report: Any = None

    def line(self, text: str) -> None:
        """Handle one line of output; ignore a line that does not contain a known event."""
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
            self._start(str(event.get("phase")))
            self._show(event.get("done"), event.get("total"), event.get("loss"))
        elif kind == "questions" and self._test is not None:
            self._test.ask()
        elif kind == "answers" and self._test is not None:
            self._test.answer(event)
        elif kind == "report":
            self.run_id = event.get("run_id")
            self.report = event.get("report")

    def _show(self, done: object, total: object, loss: object) -> None:
        """Show a phase's progress and loss, if the environment sent valid numbers."""
        if self._task is None or not isinstance(done, int) or not isinstance(total, int):
            return
        if 0 <= done <= total <= _STEPS:
            proper = isinstance(loss, float) and 0 <= loss < _LOSS
            self._task.update(done, total, f"loss {loss:.3f}" if proper else "")

    def _start(self, name: str) -> None:
        if name == self.phase:
            return
        self.close()
        # The name is shown on the user's terminal: no control characters from an environment.
        self.phase = name
        self._task = self._open.enter_context(self._progress.task(printable(name, 60)))

    def close(self) -> None:
        """Close the open progress task, if any."""
        self._open.close()
        self._task = None


class Job(Struct, frozen=True, kw_only=True):
    """The settings of one verification."""

    expects: Expected
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
    """Run a verification, and return the payload's report with the blind test's score added.

    `start` runs the payload, which trains the network and answers the blind test. `selection`
    contains additional arguments for the payload. The training steps that the payload recorded are
    then repeated in this process. If a step is wrong, the report is marked as failed. Raise
    `VerifyError` in the same cases as `run_payload`, or if a recorded step cannot be checked.
    """
    # Loaded in this process, too, because the report's figures on the data are checked against it.
    data = load(job.dataset.folder, job.dataset.name)
    run_id = new_run_id()
    small = job.quick or job.dataset.subset
    request = consistency.request_for(job.expects, data, epochs=job.epochs, quick=small)
    steps = step.draw(request.train, request.epochs)
    with blind_test.exchange(settings) as exchanged:
        tested = data.quick().test if small else data.test
        test = blind_test.BlindTest(tested, exchanged["questions"])
        shared = {"data": job.dataset.folder, **exchanged}

        def arguments(paths: Mapping[str, str]) -> tuple[str, ...]:
            recorded = ("--record", paths[RECORD], "--record-steps", ",".join(map(str, steps)))
            return (*payload_arguments(job, paths), *selection, *recorded, "--run-id", run_id)

        report = run_payload(
            lambda on_line: start(arguments, shared, on_line),
            progress,
            log,
            run_id,
            request,
            test,
        )
        if "blind_test" not in report:
            return report
        proof = step.prove(
            exchanged[RECORD],
            steps,
            data.train.first(request.train),
            test.answers(step.ANSWERS),
            job.expects,
            progress,
        )
        return _with_proof(report, proof)


def run_payload(
    start: Callable[[Callable[[str], None]], Completed],
    progress: Progress,
    log: Path,
    run_id: str,
    request: consistency.Request,
    test: blind_test.BlindTest,
) -> dict[str, Any]:
    """Run the payload through `start`, and return its report.

    `run_id` is the ID that `start` passes to the payload. Raise `VerifyError` if the payload was
    killed, timed out or exited without a valid report. Also raise it if the payload reported
    success, but the request, the time measured in this process, or the score of the blind test
    contradicts the report.
    """
    with Timeline() as timeline:
        done, report, hint = follow(start, Events(progress, timeline, test), progress, log, run_id)
    measured = model.check(report)
    data = _with_doubts(as_stored(report, hint), measured)
    for name in ("blind_test", "steps"):
        data.pop(name, None)  # only this process scores and repeats
    require_agreement(done, measured.status, hint)
    if measured.status != "passed":
        return data
    problem = _incomplete(measured)
    if problem:
        raise VerifyError(f"the payload reported success {problem}, which cannot be trusted", hint)
    passes = _passes(measured)
    problems = [
        *consistency.contradictions(request, measured, done.seconds),
        *timeline.problems(passes),
    ]
    if problems:
        raise VerifyError(
            f"the payload's report of success cannot be trusted: {printable('; '.join(problems))}",
            hint,
        )
    score = test.score()
    problem = blind_test.problem(score, measured.epochs[-1], request.gates)
    data["untimed"] = timeline.unconfirmed(passes) or None
    data["training"]["min_accuracy"] = request.gates.accuracy
    return _with_score(data, score, problem)


def _passes(measured: model.Measured) -> list[tuple[str, float]]:
    """Return the phase name and the duration in seconds of each reported training pass."""
    passes = [(f"epoch {number}", e.seconds) for number, e in enumerate(measured.epochs, 1)]
    seconds = measured.baseline_seconds()
    if seconds is None:
        return passes
    return [*passes, ("baseline epoch 1", seconds)]


def _with_score(data: dict[str, Any], score: blind_test.Score, problem: str) -> dict[str, Any]:
    """Return the report with the blind test's score added."""
    summary = f"{score.accuracy:.2%} of {score.images} images without labels, scored outside"
    judged = _judged(data, BLIND_TEST, problem, summary)
    return {**judged, "blind_test": msgspec.to_builtins(score)}


def _with_proof(data: dict[str, Any], proof: step.Proof) -> dict[str, Any]:
    """Return the report with the results of repeating the training steps added."""
    judged = _judged(data, STEP, proof.problem, proof.summary)
    blind_test = {**data["blind_test"], "error": proof.answers_error}
    return {**judged, "steps": msgspec.to_builtins(proof.steps), "blind_test": blind_test}


def _judged(data: dict[str, Any], name: str, problem: str, summary: str) -> dict[str, Any]:
    """Return the report with a check's detail filled in.

    If there is a problem, both the check and the report are marked as failed.
    """
    judged = {"detail": problem or summary}
    if problem:
        judged["status"] = "failed"
        data = {**data, "status": "failed", "reasons": [*data["reasons"], f"{name}: {problem}"]}
    return {**data, "checks": [c | judged if c["name"] == name else c for c in data["checks"]]}


def _with_doubts(data: dict[str, Any], measured: model.Measured) -> dict[str, Any]:
    """Return the report, with a warning added if its measurements contradict each other."""
    doubt = consistency.matmul_rate(measured)
    if doubt is None:
        return data
    warnings = [*measured.warnings, f"{doubt.name}: {doubt.detail}"]
    return {**data, "checks": [*data["checks"], msgspec.to_builtins(doubt)], "warnings": warnings}


def _incomplete(measured: model.Measured) -> str:
    """Return why a genuine payload cannot have written this passing report.

    Return an empty string if no reason was found.
    """
    lacking = model.absent((*REQUIRED, BLIND_TEST, STEP), measured.checks)
    if lacking:
        return f"without these checks: {', '.join(lacking)}"
    for check in measured.checks:
        if check.seconds < 0:
            return f"although {check.name} took {check.seconds:g} s"
    return ""


def follow(
    start: Callable[[Callable[[str], None]], Completed],
    events: Events,
    progress: Progress,
    log: Path,
    run_id: str,
) -> tuple[Completed, Any, str]:
    """Run the payload, and follow its events until it exits.

    Return the completed process, the report (which has not been checked), and a hint that says
    where the log is. Raise `VerifyError` if the payload was killed, timed out, or exited without a
    report that belongs to this run.
    """
    try:
        done = start(events.line)
    finally:
        events.close()
    hint = _keep_log(done.stderr, log, progress)
    if done.timed_out:
        raise VerifyError(f"the payload did not end within {done.seconds:.0f} s", hint)
    if events.report is None:
        is_stuck = events.phase == PHASE and HUNG in done.stderr
        raise VerifyError(_STUCK if is_stuck else _ended(done), hint)
    if events.run_id != run_id:
        raise VerifyError("the report belongs to another run and cannot be trusted", hint)
    return done, events.report, hint


def require_agreement(done: Completed, status: str, hint: str) -> None:
    """Raise `VerifyError` if the payload's exit code contradicts its report."""
    if done.returncode not in {0, 5} or (done.returncode == 0) != (status != "failed"):
        # The payload's last line goes to the end: it may be as long as a report.
        raise VerifyError(
            f"the payload's report ({status}) cannot be trusted: {_ended(done)}", hint
        )


def unfinished(job: Job, error: VerifyError) -> dict[str, Any]:
    """Return a failed report that contains the error message.

    This report is used if a run did not produce a trustworthy one.
    """
    detail = printable(error.message)
    return {
        "schema": model.SCHEMA,
        "device": {"requested": job.expects.device, "used": None},
        "framework": {},
        "precision": None,
        "dataset": {"name": job.dataset.name, "subset": job.dataset.subset},
        "quick": job.quick or job.dataset.subset,
        "checks": [{"name": "run", "status": "failed", "seconds": 0.0, "detail": detail}],
        "training": None,
        "baseline": None,
        "speedup": None,
        "status": "failed",
        "reasons": [f"run: {detail}"],
        "warnings": [],
    }


def _keep_log(text: str, log: Path, progress: Progress) -> str:
    """Write the payload's stderr to the log, and return a hint that says where the log is.

    Return an empty string if the log cannot be written, because a full disk must not hide the
    verdict.
    """
    try:
        files.ensure_folder(log.parent)
        files.write(log, log_text(text).encode(), files.PRIVATE)
    except OSError as error:
        progress.note(f"{log}: cannot be written: {error.strerror or error}")
        return ""
    return f"Its output is in {log}"


def as_stored(report: Any, hint: str) -> Any:
    """Return a report as it is after being stored as JSON, with credentials redacted.

    Raise `VerifyError` if JSON cannot represent the report.
    """
    try:
        return model.restored(redacted_values(report))
    except (ValueError, TypeError, RecursionError) as error:
        raise VerifyError(f"cannot store the payload's report: {error}", hint) from error


_STUCK = (
    f"the framework's import was stopped after {SECONDS} s, because its build or the GPU's driver"
    " hangs"
)


def _ended(done: Completed) -> str:
    """Return a phrase that describes how a payload ended unexpectedly."""
    code = done.returncode
    if code in {-9, 137}:
        return "the payload was killed (signal 9), most likely by the kernel because memory ran out"
    if code < 0 or 128 < code <= 128 + _MOST_SIGNALS:
        return f"the payload was ended by signal {-code if code < 0 else code - 128}"
    last = done.last_words.splitlines()
    return f"the payload ended with exit code {code}" + (
        f": {printable(last[-1], 300)}" if last else ""
    )
