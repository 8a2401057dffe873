"""`envbuilder tune`: time settings in an environment, alternating with its defaults."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.core.errors import VerifyError
from envbuilder.core.text import printable
from envbuilder.verify.tuning import candidates, rules
from envbuilder.verify.tuning.rules import Finding, Pair, Rules, Setting, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed
    from envbuilder.packages.mnist import Dataset
    from envbuilder.profiles.profile import Expected

    Start = Callable[..., Completed]
    Ask = Callable[[tuple[str, ...]], object]
    """A function that runs `trial` with arguments; it returns a report or raises `VerifyError`."""

QUICK_STEPS, QUICK_WARM_UP = 60, 10
QUICK_ACCURACY = 0.03
"""A wider tolerance: after so few steps the accuracy of correct settings varies more."""


class Compiler(Struct, frozen=True, kw_only=True):
    """The result of a compile backend's gradient check on this machine."""

    backend: str
    passed: bool
    detail: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """All results: single settings, combined winners, checked compilers.

    `noise` is the median relative difference between consecutive trials of the defaults.
    """

    survey: candidates.Survey
    defaults: Trial
    noise: float
    findings: tuple[Finding, ...]
    combined: tuple[Finding, ...]
    compilers: tuple[Compiler, ...]

    @property
    def busy(self) -> int:
        """Return how many settings were not judged because the machine was busy."""
        every = (*self.findings, *self.combined)
        return sum(finding.verdict == "machine busy" for finding in every)

    @property
    def written(self) -> tuple[Finding, ...]:
        """Return the findings whose settings belong in a profile."""
        settings = rules.to_write(self.findings, self.combined)
        return tuple(f for s in settings for f in self.findings if f.setting == s)


def asking(start: Start, dataset: Dataset, expects: Expected) -> Ask:
    """Return a function that runs one trial in an environment."""

    def ask(arguments: tuple[str, ...]) -> object:
        events: dict[str, Any] = {}

        def line(text: str) -> None:
            try:
                event = json.loads(text)
            except (ValueError, RecursionError):
                return
            if isinstance(event, dict) and event.get("event") in {"report", "error"}:
                events[event["event"]] = event.get("report") or event.get("message")

        def command(paths: Mapping[str, str]) -> tuple[str, ...]:
            extension = ("--extension", expects.extension) if expects.extension else ()
            options = ("--device", expects.device, "--data", paths["data"], *extension)
            return ("trial", *options, *arguments)

        done = start(command, {"data": dataset.folder}, line)
        if "error" in events:
            raise VerifyError(printable(str(events["error"]), 300))
        if done.returncode != 0 or "report" not in events:
            raise VerifyError(f"the trial ended with code {done.returncode}{_last_line(done)}")
        return events["report"]

    return ask


def run(ask: Ask, expects: Expected, progress: Progress, *, quick: bool) -> Outcome:
    """Survey the environment, try every setting alone, then the winners together.

    Raises `VerifyError` if the environment's defaults cannot be timed. A setting that fails is a
    finding.
    """
    try:
        survey = candidates.read(ask(("--survey",)))
    except ValueError as error:
        raise VerifyError(str(error)) from error
    compilers = () if quick else _check_compilers(ask, expects, progress)
    settings = (
        *candidates.candidates(survey, expects.device),
        *(candidates.compiled(c.backend) for c in compilers if c.passed),
    )
    # Otherwise the payload's defaults determine the length.
    length = ("--steps", str(QUICK_STEPS), "--warm-up", str(QUICK_WARM_UP)) if quick else ()

    def trial(arguments: tuple[str, ...]) -> Trial:
        try:
            return rules.read(ask((*length, *arguments)))
        except ValueError as error:
            raise VerifyError(str(error)) from error

    baselines: list[Trial] = []
    thresholds = rules.Rules(accuracy=QUICK_ACCURACY) if quick else rules.Rules()
    findings = measure(trial, settings, baselines, thresholds, progress, "try settings")
    several = rules.combinations(rules.winners(findings))
    combined = measure(trial, several, baselines, thresholds, progress, "try winners together")
    return Outcome(
        survey=survey,
        defaults=_median(baselines),
        noise=rules.noise(baselines),
        findings=findings,
        combined=combined,
        compilers=compilers,
    )


def measure(
    trial: Callable[[tuple[str, ...]], Trial],
    settings: Sequence[Setting],
    baselines: list[Trial],
    thresholds: Rules,
    progress: Progress,
    title: str,
) -> tuple[Finding, ...]:
    """Time each setting, alternating with the defaults, whose trials are added to `baselines`.

    A setting that failed or can no longer reach the required gain is not tried again.
    """
    if not settings:
        return ()
    pairs: dict[str, list[Pair]] = {s.name: [] for s in settings}
    errors: dict[str, str] = {}
    done = 0
    with progress.task(title, total=len(settings) * thresholds.pairs) as task:
        for _ in range(thresholds.pairs):
            for setting in settings:
                finished = pairs[setting.name]
                if setting.name not in errors and not rules.hopeless(finished, thresholds):
                    _pair(trial, setting, baselines, finished, errors)
                done += 1
                task.update(done)
    spread = rules.noise(baselines)
    return tuple(
        rules.judge(s, pairs[s.name], thresholds, spread, errors.get(s.name, "")) for s in settings
    )


def _pair(
    trial: Callable[[tuple[str, ...]], Trial],
    setting: Setting,
    baselines: list[Trial],
    pairs: list[Pair],
    errors: dict[str, str],
) -> None:
    baselines.append(trial(()))
    try:
        candidate = trial(setting.command)
    except VerifyError as error:
        errors[setting.name] = error.message
        return
    problem = rules.without_effect(setting, candidate)
    if problem:
        errors[setting.name] = problem
    else:
        pairs.append(Pair(baseline=baselines[-1], candidate=candidate))


def _check_compilers(ask: Ask, expects: Expected, progress: Progress) -> tuple[Compiler, ...]:
    compilers = []
    for backend in expects.compile or ("inductor",):
        with progress.task(f"check the gradients of torch.compile, {backend}"):
            try:
                report = ask(("--compile", backend, "--check-compile"))
                compilers.append(decoding.convert(report, Compiler))
            except (VerifyError, msgspec.ValidationError) as error:
                compilers.append(Compiler(backend=backend, passed=False, detail=str(error)))
    return tuple(compilers)


def _median(trials: Sequence[Trial]) -> Trial:
    return sorted(trials, key=lambda t: t.samples_per_second)[len(trials) // 2]


def _last_line(done: Completed) -> str:
    words = done.last_words.splitlines()
    return f": {printable(words[-1], 200)}" if words else ""
