"""Time settings in an environment, and print those that help (`envbuilder tune`).

Which settings help depends on the host, so no file is written. Each setting that helps is printed
with instructions, and the settings that a profile can contain are also printed as a profile.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import yaml
from msgspec import Struct

from envbuilder.core import console, decoding
from envbuilder.core.errors import Hint, VerifyError, printable
from envbuilder.core.text import amount, percent
from envbuilder.profiles import profile
from envbuilder.verify import view
from envbuilder.verify.tune_settings import (
    MOST_LOST,
    MOST_LOST_QUICK,
    PAIRS,
    UNSHARED,
    Finding,
    Pair,
    Setting,
    Survey,
    Trial,
    candidates,
    compiled,
    hopeless,
    judge,
    noise,
    together,
    winners,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings

    Ask = Callable[[tuple[str, ...]], object]
    """A function that runs the payload's `trial` with the given arguments. It returns the payload's
    report, or raises `VerifyError`."""

_T = TypeVar("_T")
QUICK_STEPS = 60
QUICK_WARM_UP = 10
SCHEMA = 1


class Compiler(Struct, frozen=True, kw_only=True):
    """The result of checking a compile backend's gradients on this machine."""

    backend: str
    passed: bool
    detail: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """The results of tuning: single settings, combined winners, and checked compile backends.

    `noise` is the median relative difference in speed between consecutive trials of the defaults.
    """

    survey: Survey
    defaults: Trial
    noise: float
    findings: tuple[Finding, ...]
    combined: tuple[Finding, ...]
    compilers: tuple[Compiler, ...]

    @property
    def busy(self) -> int:
        """The number of settings that were not judged because the machine was busy."""
        every = (*self.findings, *self.combined)
        return sum(finding.verdict == "machine busy" for finding in every)


def run(ask: Ask, expects: profile.Expected, progress: console.Progress, *, quick: bool) -> Outcome:
    """Survey the environment, try each setting alone, then try the winners together.

    Raise `VerifyError` if the environment's default settings cannot be timed. If any other setting
    fails, its finding says so, and no error is raised.
    """
    survey = read(ask(("--survey",)), Survey)
    compilers = () if quick else _check_compilers(ask, expects, progress)
    settings = (
        *candidates(survey, expects.device),
        *(compiled(c.backend) for c in compilers if c.passed),
    )
    # Otherwise the payload's defaults determine the length.
    length = ("--steps", str(QUICK_STEPS), "--warm-up", str(QUICK_WARM_UP)) if quick else ()
    baselines: list[Trial] = []

    def measured(settings: Sequence[Setting], title: str) -> tuple[Finding, ...]:
        return measure(
            lambda arguments: read(ask((*length, *arguments)), Trial),
            settings,
            baselines,
            progress,
            title,
            most_lost=MOST_LOST_QUICK if quick else MOST_LOST,
        )

    findings = measured(settings, "try settings")
    best = [finding.setting for finding in winners(findings)]
    joint = [together(best)] if len(best) > 1 else []
    return Outcome(
        survey=survey,
        defaults=sorted(baselines, key=lambda t: t.samples_per_second)[len(baselines) // 2],
        noise=noise(baselines),
        findings=findings,
        combined=measured(joint, "try winners together"),
        compilers=compilers,
    )


def asking(start: Callable[..., Completed], data: Path, expects: profile.Expected) -> Ask:
    """Return a function that runs one trial in an environment and returns the trial's report.

    `data` is the folder of the data set. The function raises `VerifyError` if the trial fails.
    """

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

        done = start(command, {"data": data}, line)
        if "error" in events:
            raise VerifyError(printable(str(events["error"]), 300))
        if done.returncode != 0 or "report" not in events:
            last = "".join(f": {printable(end, 200)}" for end in done.last_words.splitlines()[-1:])
            raise VerifyError(f"the trial ended with exit code {done.returncode}{last}")
        return events["report"]

    return ask


def read(report: object, kind: type[_T]) -> _T:
    """Return the payload's report as typed data; raise `VerifyError` if it is not valid."""
    try:
        return decoding.convert(report, kind)
    except msgspec.ValidationError as error:
        raise VerifyError(
            f"this is not the report of a {kind.__name__.lower()}: {error}"
        ) from error


def _check_compilers(
    ask: Ask, expects: profile.Expected, progress: console.Progress
) -> tuple[Compiler, ...]:
    compilers = []
    for backend in expects.compile or ("inductor",):
        with progress.task(f"check the gradients of torch.compile, {backend}"):
            try:
                compilers.append(read(ask(("--compile", backend, "--check-compile")), Compiler))
            except VerifyError as error:
                compilers.append(Compiler(backend=backend, passed=False, detail=error.message))
    return tuple(compilers)


# Trials


class _Series(Struct):
    """A setting's finished pairs of trials, and the error if one of its trials failed."""

    setting: Setting
    pairs: list[Pair] = []
    error: str = ""


def measure(
    trial: Callable[[tuple[str, ...]], Trial],
    settings: Sequence[Setting],
    baselines: list[Trial],
    progress: console.Progress,
    title: str,
    *,
    most_lost: float = MOST_LOST,
) -> tuple[Finding, ...]:
    """Time each setting in trials that alternate with trials of the defaults.

    Return a finding for each setting. The trials of the defaults are appended to `baselines`. A
    setting is not tried again if it has failed or can no longer reach the required gain.
    `most_lost` is the largest accepted loss of accuracy, as a fraction.
    """
    if not settings:
        return ()
    series = list(map(_Series, settings))
    with progress.task(title, total=len(series) * PAIRS) as task:
        for done, each in enumerate(series * PAIRS, 1):
            if not each.error and not hopeless(each.pairs):
                baselines.append(trial(()))
                _try(trial, each, baselines[-1])
            task.update(done)
    spread = noise(baselines)
    return tuple(judge(s.setting, s.pairs, spread, s.error, most_lost) for s in series)


def _try(trial: Callable[[tuple[str, ...]], Trial], series: _Series, baseline: Trial) -> None:
    try:
        candidate = trial(series.setting.command)
    except VerifyError as error:
        series.error = error.message
        return
    series.error = _without_effect(series.setting, candidate)
    if not series.error:
        series.pairs.append(Pair(baseline=baseline, candidate=candidate))


def _without_effect(setting: Setting, trial: Trial) -> str:
    """Return why a setting had no effect in a trial, or an empty string if it took effect."""
    for key, expected in setting.effect.items():
        reported = trial.settings.get(key)
        # A list holds all values in use: bfloat16 autocast, for example, also uses float32.
        listed = isinstance(reported, list) and expected in reported
        if not listed and reported != expected:
            return f"the setting did not take effect: {key} was {reported!r}, not {expected!r}"
    return ""


# Results


def finish(outcome: Outcome, facts: dict[str, Any], settings: Settings, *, as_json: bool) -> None:
    """Print the measurements, the advice, and a draft profile with the settings that help."""
    # A setting that helps an external interpreter may not help the environment of a profile.
    keys = {} if facts["backend"] == "external" else profile_keys(outcome)
    text = draft(facts["profile"], keys, settings) if keys else None
    if as_json:
        console.data({"schema": SCHEMA, **facts, **summary(outcome), "draft": text})
        return
    print_outcome(outcome, console.rich_console())
    if text:
        name = f"{facts['profile']}-tuned"
        console.document(f"\n{text}\n")
        use = (
            f"To use these settings, save this as profiles/{name}.yaml next to envbuilder.yaml,"
            " then run"
        )
        console.hints([Hint(use, ("lock", "--profile", name))])


def profile_keys(outcome: Outcome) -> dict[str, Any]:
    """Return the profile keys that apply all winning settings.

    If the winners do not help when combined, return only the keys of the best winner.
    """
    held = [f.setting.keys for f in winners(outcome.findings) if f.setting.keys]
    if not any(joint.verdict == "helps" for joint in outcome.combined):
        held = held[:1]
    merged: dict[str, Any] = {}
    for keys in held:
        for key, value in keys.items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


def draft(name: str, keys: dict[str, Any], settings: Settings) -> str:
    """Return the YAML of a variant of the profile `name`, with the given keys.

    The variant is an opt-in profile: it is used only if it is requested.
    """
    measured = profile.load(name, profile.search_path(settings.project, settings.config_dir))
    description = f"{name}, tuned for this machine"
    data = {"extends": name, "description": description, "opt_in": True, **keys}
    if measured.warnings:  # it has the same packages, but inherits no warnings
        data["warnings"] = msgspec.to_builtins(measured.warnings)
    return yaml.safe_dump(data, sort_keys=False)


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as a dictionary for JSON output."""
    return {
        "survey": outcome.survey,
        "defaults": outcome.defaults,
        "noise": outcome.noise,
        "speed": "not_judged" if outcome.busy else "judged",
        "settings": list(map(_entry, outcome.findings)),
        "together": list(map(_entry, outcome.combined)),
        "compilers": outcome.compilers,
    }


def _entry(finding: Finding) -> dict[str, Any]:
    setting = finding.setting
    return {
        "name": setting.name,
        "group": setting.group,
        "variables": setting.variables,
        "arguments": setting.arguments,
        "verdict": finding.verdict,
        "detail": finding.detail,
        "gain": finding.gain,
        "gains": [pair.gain for pair in finding.pairs],
        "samples_per_second": [pair.candidate.samples_per_second for pair in finding.pairs],
        "accuracy": finding.accuracy,
        "advice": setting.advice,
        "caution": setting.caution,
    }


def print_outcome(outcome: Outcome, out: Any) -> None:
    """Print the table of settings and the advice."""
    from rich.text import Text

    rows = [("defaults", "1.00×", percent(outcome.defaults.accuracy), "")]
    for finding in (*_best_first(outcome.findings), *outcome.combined):
        verdict: str = finding.verdict
        if finding.detail:
            verdict += f": {finding.detail}"
        gain = "-" if finding.gain is None else f"{finding.gain:.2f}×"
        rows.append((finding.setting.name, gain, percent(finding.accuracy), verdict))
    header = ("setting", "gain", "accuracy", "verdict")
    out.print(view.table(view.Section(title="Settings", header=header, rows=rows, words=(0, 3))))
    for line in _sentences(outcome):
        out.print(Text(line))
    for line in advice(outcome.findings):
        out.print(Text(line), soft_wrap=True)


def _sentences(outcome: Outcome) -> Iterator[str]:
    for compiler in outcome.compilers:
        if not compiler.passed:
            yield printable(f"torch.compile, {compiler.backend}: not tried: {compiler.detail}")
    speed = amount(outcome.defaults.samples_per_second)
    yield f"\nDefaults: {speed} images a second; their trials differ by {outcome.noise:.0%}."
    if outcome.busy:
        yield (
            f"The machine was busy during {outcome.busy} of the settings, so these were not"
            " judged. Measure again on a quiet machine."
        )
    policy = outcome.survey.wait_policy or ""
    if policy.lower() == "active":
        yield f"The defaults wait actively (OMP_WAIT_POLICY={policy}): {UNSHARED}."


def _best_first(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: -1.0 if f.gain is None else f.gain, reverse=True)


def advice(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each setting that helped, with instructions for applying it."""
    helpful = [f for f in _best_first(findings) if f.verdict == "helps"]
    if not helpful:
        judged = all(f.verdict != "machine busy" for f in findings)
        which = "the settings that were judged"
        if judged:
            which = "these settings"
        yield f"None of {which} helps on this machine, so keep the defaults."
    for finding in helpful:
        how = "; ".join(filter(None, (finding.setting.advice, finding.setting.caution)))
        yield f"Helps: {finding.setting.name}, {finding.gain:.2f}×: {how}"
    for f in _best_first(findings):
        if f.verdict.startswith("other"):
            yield f"Faster, but {f.verdict}: {f.setting.name}, {f.gain:.2f}×: {f.setting.advice}"
