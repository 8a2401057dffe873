"""`envbuilder tune`: time settings in an environment, alternating with its defaults."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder.core.errors import VerifyError
from envbuilder.core.text import printable
from envbuilder.verify.tuning import candidates
from envbuilder.verify.tuning import rules as tuning
from envbuilder.verify.tuning.rules import Finding, Pair, Rules, Setting, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed
    from envbuilder.packages.mnist import Dataset
    from envbuilder.profiles.profile import Expects

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
    def written(self) -> tuple[Finding, ...]:
        """Return the findings whose settings belong in a profile."""
        chosen = tuning.to_write(self.findings, self.combined)
        return tuple(f for s in chosen for f in self.findings if f.setting == s)


def asking(start: Start, dataset: Dataset, expects: Expects) -> Ask:
    """Return a function that runs one trial in an environment."""

    def ask(arguments: tuple[str, ...]) -> object:
        heard: dict[str, Any] = {}

        def line(text: str) -> None:
            try:
                event = json.loads(text)
            except (ValueError, RecursionError):
                return
            if isinstance(event, dict) and event.get("event") in {"report", "error"}:
                heard[event["event"]] = event.get("report") or event.get("message")

        def whole(seen: Mapping[str, str]) -> tuple[str, ...]:
            extension = ("--extension", expects.extension) if expects.extension else ()
            own = ("--device", expects.device, "--data", seen["data"], *extension)
            return ("trial", *own, *arguments)

        done = start(whole, {"data": dataset.folder}, line)
        if "error" in heard:
            raise VerifyError(printable(str(heard["error"]), 300))
        if done.returncode != 0 or "report" not in heard:
            raise VerifyError(f"the trial ended with code {done.returncode}{_last_line(done)}")
        return heard["report"]

    return ask


def run(ask: Ask, expects: Expects, progress: Progress, *, quick: bool) -> Outcome:
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
            return tuning.read(ask((*length, *arguments)))
        except ValueError as error:
            raise VerifyError(str(error)) from error

    baselines: list[Trial] = []
    rules = tuning.Rules(accuracy=QUICK_ACCURACY) if quick else tuning.Rules()
    findings = measure(trial, settings, baselines, rules, progress, "try settings")
    several = tuning.combinations(tuning.winners(findings))
    combined = measure(trial, several, baselines, rules, progress, "try winners together")
    return Outcome(
        survey=survey,
        defaults=_median(baselines),
        noise=tuning.noise(baselines),
        findings=findings,
        combined=combined,
        compilers=compilers,
    )


def measure(
    trial: Callable[[tuple[str, ...]], Trial],
    settings: Sequence[Setting],
    baselines: list[Trial],
    rules: Rules,
    progress: Progress,
    what: str,
) -> tuple[Finding, ...]:
    """Time each setting, alternating with the defaults, whose trials are added to `baselines`.

    A setting that failed or can no longer reach the required gain is not tried again.
    """
    if not settings:
        return ()
    pairs: dict[str, list[Pair]] = {s.name: [] for s in settings}
    errors: dict[str, str] = {}
    done = 0
    with progress.task(what, total=len(settings) * rules.pairs) as task:
        for _ in range(rules.pairs):
            for setting in settings:
                known = pairs[setting.name]
                if setting.name not in errors and not tuning.hopeless(known, rules):
                    _pair(trial, setting, baselines, known, errors)
                done += 1
                task.update(done)
    spread = tuning.noise(baselines)
    return tuple(
        tuning.judge(s, pairs[s.name], rules, spread, errors.get(s.name, "")) for s in settings
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
    problem = tuning.without_effect(setting, candidate)
    if problem:
        errors[setting.name] = problem
    else:
        pairs.append(Pair(baseline=baselines[-1], candidate=candidate))


def _check_compilers(ask: Ask, expects: Expects, progress: Progress) -> tuple[Compiler, ...]:
    found = []
    for backend in expects.compile or ("inductor",):
        with progress.task(f"check the gradients of torch.compile, {backend}"):
            try:
                report = ask(("--compile", backend, "--check-compile"))
                found.append(msgspec.convert(report, Compiler))
            except (VerifyError, msgspec.ValidationError) as error:
                found.append(Compiler(backend=backend, passed=False, detail=str(error)))
    return tuple(found)


def _median(trials: Sequence[Trial]) -> Trial:
    return sorted(trials, key=lambda t: t.samples_per_second)[len(trials) // 2]


def _last_line(done: Completed) -> str:
    words = done.last_words.splitlines()
    return f": {printable(words[-1], 200)}" if words else ""
