"""`envbuilder tune`: time settings in an environment, alternating with its defaults.

Every candidate is timed in pairs with the defaults. It helps if the median gain of its pairs is at
least 5 % and above the machine's noise, and the accuracy does not drop. Nothing is decided by
trials during which the machine was busy.
"""

from __future__ import annotations

import json
import math
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding
from envbuilder.core.errors import VerifyError
from envbuilder.core.text import printable
from envbuilder.verify.report import speed
from envbuilder.verify.report.measurements import Contention
from envbuilder.verify.tune_settings import Kind, Setting, Survey, candidates, compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed
    from envbuilder.packages.mnist import Dataset
    from envbuilder.profiles.profile import Expected

    Ask = Callable[[tuple[str, ...]], object]
    """A function that runs `trial` with arguments; it returns a report or raises `VerifyError`."""

_T = TypeVar("_T")
PAIRS, LEAST_GAIN = 3, 1.05
MOST_LOST, MOST_LOST_QUICK = 0.01, 0.03
"""How much lower the accuracy may be, as a fraction. Correct settings differ, too: other memory
layouts draw other dropout masks. Five seeds of a complete trial are within 0.005, and wrong
gradients cost far more (docs/guides/tuning.md). After few steps it varies more."""
QUICK_STEPS, QUICK_WARM_UP = 60, 10

Verdict = Literal[
    "helps",
    "other precision",
    "other batch",
    "no gain",
    "noise",
    "machine busy",
    "less accurate",
    "failed",
]
_KINDS: dict[Kind, tuple[Verdict, str]] = {
    "setting": ("helps", ""),
    "precision": ("other precision", "not float32: reported, but never written to a profile"),
    "batch": ("other batch", "not this workload: reported, but never written to a profile"),
}
ALL, HELD = "all winners together", "what a profile can hold"


class Trial(Struct, frozen=True, kw_only=True):
    """The report of one trial; `loss` is None if it was not finite.

    `contention` is what competed for the CPU; None if it is not known.
    """

    samples_per_second: Annotated[float, Meta(gt=0)]
    accuracy: Annotated[float, Meta(ge=0, le=1)]
    loss: float | None = None
    contention: Contention | None = None
    settings: dict[str, Any] = {}


class Pair(Struct, frozen=True, kw_only=True):
    """A trial of the defaults, and one of a setting immediately after it."""

    baseline: Trial
    candidate: Trial

    @property
    def gain(self) -> float:
        """Return the setting's speed relative to the defaults; 0 if it is not finite."""
        ratio = self.candidate.samples_per_second / self.baseline.samples_per_second
        return ratio if math.isfinite(ratio) else 0.0

    @property
    def disturbance(self) -> str:
        """Return how other work disturbed one of its trials; empty if none is known to have."""
        trials = (self.baseline.contention, self.candidate.contention)
        return next(filter(None, (speed.busy(facts) for facts in trials if facts)), "")


class Finding(Struct, frozen=True, kw_only=True):
    """A setting's outcome: `gain` and `accuracy` are medians; None if no pair was finished."""

    setting: Setting
    verdict: Verdict
    detail: str = ""
    gain: float | None = None
    accuracy: float | None = None
    pairs: tuple[Pair, ...] = ()


class Compiler(Struct, frozen=True, kw_only=True):
    """The result of a compile backend's gradient check on this machine."""

    backend: str
    passed: bool
    detail: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """All results: single settings, combined winners, checked compilers.

    `noise` is the median relative difference between consecutive trials of the defaults.
    """

    survey: Survey
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
        settings = to_write(self.findings, self.combined)
        return tuple(f for s in settings for f in self.findings if f.setting == s)


def run(ask: Ask, expects: Expected, progress: Progress, *, quick: bool) -> Outcome:
    """Survey the environment, try every setting alone, then the winners together.

    Raises `VerifyError` if the environment's defaults cannot be timed. A setting that fails is a
    finding.
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
            *(settings, baselines, progress, title),
            most_lost=MOST_LOST_QUICK if quick else MOST_LOST,
        )

    findings = measured(settings, "try settings")
    combined = measured(combinations(winners(findings)), "try winners together")
    return Outcome(
        survey=survey,
        defaults=sorted(baselines, key=lambda t: t.samples_per_second)[len(baselines) // 2],
        noise=noise(baselines),
        findings=findings,
        combined=combined,
        compilers=compilers,
    )


def asking(start: Callable[..., Completed], dataset: Dataset, expects: Expected) -> Ask:
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
            last = "".join(f": {printable(end, 200)}" for end in done.last_words.splitlines()[-1:])
            raise VerifyError(f"the trial ended with code {done.returncode}{last}")
        return events["report"]

    return ask


def read(report: object, kind: type[_T]) -> _T:
    """Return a payload's report as typed data; raise `VerifyError` if it is not valid."""
    try:
        return decoding.convert(report, kind)
    except msgspec.ValidationError as error:
        raise VerifyError(f"not a {kind.__name__.lower()}'s report: {error}") from error


def _check_compilers(ask: Ask, expects: Expected, progress: Progress) -> tuple[Compiler, ...]:
    compilers = []
    for backend in expects.compile or ("inductor",):
        with progress.task(f"check the gradients of torch.compile, {backend}"):
            try:
                compilers.append(read(ask(("--compile", backend, "--check-compile")), Compiler))
            except VerifyError as error:
                compilers.append(Compiler(backend=backend, passed=False, detail=error.message))
    return tuple(compilers)


# Trials, and what they decide.


class _Series(Struct):
    """The finished pairs of a setting, and why a trial of it failed."""

    setting: Setting
    pairs: list[Pair] = []
    error: str = ""


def measure(
    trial: Callable[[tuple[str, ...]], Trial],
    settings: Sequence[Setting],
    baselines: list[Trial],
    progress: Progress,
    title: str,
    *,
    most_lost: float = MOST_LOST,
) -> tuple[Finding, ...]:
    """Time each setting, alternating with the defaults, whose trials are added to `baselines`.

    A setting that failed or can no longer reach the required gain is not tried again.
    """
    if not settings:
        return ()
    series = [_Series(setting) for setting in settings]
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
    """Return why a trial's setting was not in effect; empty if it was."""
    for key, expected in setting.effect.items():
        reported = trial.settings.get(key)
        # A list holds all values in use: bfloat16 autocast, for example, also uses float32.
        listed = isinstance(reported, list) and expected in reported
        if not listed and reported != expected:
            return f"it did not take effect: {key} was {reported!r}, not {expected!r}"
    return ""


def hopeless(pairs: Sequence[Pair]) -> bool:
    """Return whether the median gain cannot reach the limit, whatever the missing pairs yield."""
    missing = [math.inf] * (PAIRS - len(pairs))
    return bool(pairs) and statistics.median([*(p.gain for p in pairs), *missing]) < LEAST_GAIN


def noise(baselines: Sequence[Trial]) -> float:
    """Return the median relative difference between consecutive trials of the defaults."""
    speeds = [trial.samples_per_second for trial in baselines]
    changes = [max(a, b) / min(a, b) - 1 for a, b in pairwise(speeds)]
    return statistics.median(changes) if changes else 0.0


def judge(
    setting: Setting,
    pairs: Sequence[Pair],
    spread: float,
    error: str = "",
    most_lost: float = MOST_LOST,
) -> Finding:
    """Judge a setting. `spread` is the machine's noise, `error` why a trial failed."""
    if not pairs:
        return Finding(setting=setting, verdict="failed", detail=error or "not tried")
    gain = statistics.median(p.gain for p in pairs)
    accuracy = statistics.median(p.candidate.accuracy for p in pairs)
    usual = statistics.median(p.baseline.accuracy for p in pairs)
    busy = next(filter(None, (p.disturbance for p in pairs)), "")
    verdict, detail = _KINDS[setting.kind]
    # Wrong results are wrong on a busy machine, too.
    if error:
        verdict, detail = "failed", error
    elif any(p.candidate.loss is None for p in pairs):
        verdict, detail = "less accurate", "its loss is not a finite number"
    elif accuracy < usual - most_lost:
        verdict, detail = "less accurate", f"{accuracy:.1%} instead of {usual:.1%}"
    elif busy:
        verdict, detail = "machine busy", f"{busy}; measure again on a quiet machine"
    elif gain < LEAST_GAIN:
        verdict, detail = "no gain", ""
    elif len(pairs) < PAIRS:
        verdict, detail = "failed", f"only {len(pairs)} of {PAIRS} pairs were finished"
    elif gain < 1 + spread:
        verdict, detail = "noise", f"the defaults alone differ by {spread:.0%} between trials"
    return Finding(
        setting=setting,
        verdict=verdict,
        detail=detail,
        gain=gain,
        accuracy=accuracy,
        pairs=tuple(pairs),
    )


# Which settings win.


def winners(findings: Sequence[Finding]) -> tuple[Setting, ...]:
    """Return the best setting of each group that helped, best first."""
    helped = [f for f in findings if f.verdict == "helps"]
    helped.sort(key=lambda f: f.gain or 0.0, reverse=True)
    best: dict[str, Setting] = {}
    for finding in helped:
        best.setdefault(finding.setting.group, finding.setting)
    return tuple(best.values())


def combinations(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the winners to try together: all of them, and those that a profile can hold."""
    written = [s for s in settings if s.profile]
    every = (together(settings, ALL),) if len(settings) > 1 else ()
    held = (together(written, HELD),) if 1 < len(written) < len(settings) else ()
    return (*every, *held)


def together(settings: Sequence[Setting], name: str) -> Setting:
    """Combine several settings into one."""
    return Setting(
        name=name,
        group="together",
        variables={k: v for s in settings for k, v in s.variables.items()},
        arguments=tuple(a for s in settings for a in s.arguments),
        effect={k: v for s in settings for k, v in s.effect.items()},
        profile=merged(settings),
    )


def to_write(findings: Sequence[Finding], combined: Sequence[Finding]) -> tuple[Setting, ...]:
    """Return the winners for a profile: all if faster together, else only the best one."""
    helped = winners(findings)
    written = tuple(s for s in helped if s.profile)
    if len(written) < 2:
        return written
    name = HELD if len(written) < len(helped) else ALL
    joint = next((f for f in combined if f.setting.name == name), None)
    single = max(f.gain or 0.0 for f in findings if f.setting == written[0])
    better = joint is not None and joint.verdict == "helps" and (joint.gain or 0.0) > single
    return written if better else written[:1]


def merged(settings: Sequence[Setting]) -> dict[str, Any]:
    """Merge the profile keys of several settings."""
    keys: dict[str, Any] = {}
    for key, value in (pair for setting in settings for pair in setting.profile.items()):
        keys[key] = {**keys.get(key, {}), **value} if isinstance(value, dict) else value
    return keys
