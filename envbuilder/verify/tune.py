"""`envbuilder tune`: time settings in an environment, alternating with its defaults."""

from __future__ import annotations

import json
import math
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding
from envbuilder.core.errors import VerifyError
from envbuilder.core.text import printable
from envbuilder.payload.machine.accelerators import ACCELERATORS, device_of
from envbuilder.verify.report import speed
from envbuilder.verify.report.measurements import Contention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed
    from envbuilder.packages.mnist import Dataset
    from envbuilder.profiles.profile import Expected

    Start = Callable[..., Completed]
    Ask = Callable[[tuple[str, ...]], object]
    """A function that runs `trial` with arguments; it returns a report or raises `VerifyError`."""
    from collections.abc import Iterator

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
        survey = read_survey(ask(("--survey",)))
    except ValueError as error:
        raise VerifyError(str(error)) from error
    compilers = () if quick else _check_compilers(ask, expects, progress)
    settings = (
        *candidates(survey, expects.device),
        *(compiled(c.backend) for c in compilers if c.passed),
    )
    # Otherwise the payload's defaults determine the length.
    length = ("--steps", str(QUICK_STEPS), "--warm-up", str(QUICK_WARM_UP)) if quick else ()

    def trial(arguments: tuple[str, ...]) -> Trial:
        try:
            return read_trial(ask((*length, *arguments)))
        except ValueError as error:
            raise VerifyError(str(error)) from error

    baselines: list[Trial] = []
    thresholds = Rules(accuracy=QUICK_ACCURACY) if quick else Rules()
    findings = measure(trial, settings, baselines, thresholds, progress, "try settings")
    several = combinations(winners(findings))
    combined = measure(trial, several, baselines, thresholds, progress, "try winners together")
    return Outcome(
        survey=survey,
        defaults=_median(baselines),
        noise=noise(baselines),
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
                if setting.name not in errors and not hopeless(finished, thresholds):
                    _pair(trial, setting, baselines, finished, errors)
                done += 1
                task.update(done)
    spread = noise(baselines)
    return tuple(
        judge(s, pairs[s.name], thresholds, spread, errors.get(s.name, "")) for s in settings
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
    problem = without_effect(setting, candidate)
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


MALLOC_CONF = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
"""Intel's recommendation for jemalloc, without the settings that never return memory."""

KEEP_MEMORY = {
    # By default glibc returns large blocks to the system and faults them in again at every step.
    # 32 MiB is the largest threshold that it accepts. (mallopt(3))
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}


UNSHARED = (
    "only for machines that nobody shares: waiting threads keep their cores busy, and with another"
    " job on them training took several times as long"
)
"""Where threads may wait actively (OMP_WAIT_POLICY=active, a long KMP_BLOCKTIME)."""


class Limits(Struct, frozen=True, kw_only=True):
    """The payload's CPU limits, as it detected them; `used` is the value of OMP_NUM_THREADS."""

    affinity: int
    decided: int
    physical: int | None = None
    quota: float | None = None
    used: int | None = None


class Survey(Struct, frozen=True, kw_only=True):
    """The report of the payload's `trial --survey` on its environment."""

    threads: Limits
    allocator: str
    allocators: dict[str, str] = {}
    preload: tuple[str, ...] = ()
    glibc: bool = False
    wait_policy: str | None = None
    start_methods: tuple[str, ...] = ()


def read_survey(report: object) -> Survey:
    """Return a survey as typed data; raise `ValueError` if it is not valid."""
    try:
        return decoding.convert(report, Survey)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a survey: {error}") from error


def candidates(survey: Survey, device: str) -> tuple[Setting, ...]:
    """Return all settings for a device except torch.compile, which has to pass a check first."""
    return (
        *_threads(survey.threads),
        *(_allocators(survey) if device == "cpu" else ()),
        *(_waiting(survey) if device == "cpu" else ()),
        *_loaders(survey),
        *_batches(device),
        *_forms(device),
        *_arithmetic(device),
    )


def compiled(backend: str) -> Setting:
    """Return torch.compile with a backend whose gradient check passed on this machine."""
    return Setting(
        name=f"torch.compile, {backend}",
        group="compile",
        arguments=("--compile", backend),
        effect={"compile": backend},
        advice=f'model = torch.compile(model, backend="{backend}", dynamic=False)',
    )


def _threads(limits: Limits) -> Iterator[Setting]:
    now = limits.used or limits.decided
    counts = {1, limits.physical or limits.decided, limits.affinity, limits.decided} - {now}
    for count in sorted(counts):
        # The best number of threads depends on the host, so it never goes into a profile.
        yield Setting(
            name=f"{count} thread{'s' if count > 1 else ''}",
            group="threads",
            variables={"OMP_NUM_THREADS": str(count)},
            effect={"threads": count},
            advice=f"export OMP_NUM_THREADS={count}",
        )


def _allocators(survey: Survey) -> Iterator[Setting]:
    def preloading(*first: str) -> dict[str, str]:
        return {"LD_PRELOAD": ":".join([*first, *survey.preload])}

    none: dict[str, Any] = {"preload": []}
    if survey.allocator != "libc":
        yield Setting(
            name="libc's allocator",
            group="allocator",
            variables=preloading(),
            effect={"allocator": "libc"},
            profile=none,
        )
    if survey.glibc:
        yield Setting(
            name="libc's allocator, keeping memory",
            group="allocator",
            variables={**preloading(), **KEEP_MEMORY},
            effect={"allocator": "libc"},
            profile={**none, "environment": dict(KEEP_MEMORY)},
        )
    for name, path in survey.allocators.items():
        if f"lib{name}" in survey.allocator:
            continue
        yield _preloaded(name, path, preloading(path), {})
        if name == "jemalloc":
            yield _preloaded(name, path, preloading(path), {"MALLOC_CONF": MALLOC_CONF})


def _preloaded(name: str, path: str, variables: dict[str, str], more: dict[str, str]) -> Setting:
    exports = " ".join(f"{k}={v}" for k, v in {"LD_PRELOAD": path, **more}.items())
    return Setting(
        name=f"{name}{', as advised' if more else ''}",
        group="allocator",
        variables={**variables, **more},
        # The library belongs to the host and is not a locked file: a profile cannot name it.
        advice=f"export {exports}; or your own profile, which locks and preloads it",
        effect={"allocator": path},
    )


def _waiting(survey: Survey) -> Iterator[Setting]:
    for policy in ("active", "passive"):
        if (survey.wait_policy or "").lower() != policy:
            yield Setting(
                name=f"OMP_WAIT_POLICY={policy}",
                group="waiting",
                variables={"OMP_WAIT_POLICY": policy},
                profile={"environment": {"OMP_WAIT_POLICY": policy}},
                caution=UNSHARED if policy == "active" else "",
            )


def _loaders(survey: Survey) -> Iterator[Setting]:
    for workers in sorted({0, 1, 2, survey.threads.decided}):
        methods = [m for m in ("fork", "forkserver", "spawn") if m in survey.start_methods]
        for method in methods if workers else [""]:
            words = f"{workers} worker{'s' if workers != 1 else ''}"
            yield Setting(
                name=f"DataLoader, {words}{', ' if method else ''}{method}",
                group="loading",
                arguments=(
                    *("--workers", str(workers)),
                    *(["--start-method", method] if method else []),
                ),
                effect={"workers": workers, "start_method": method or None},
                advice=f"DataLoader(num_workers={workers}"
                + (f', multiprocessing_context="{method}")' if method else ")"),
            )


def _batches(device: str) -> Iterator[Setting]:
    for size in (128, 256) if device == "cpu" else (256, 1024):
        yield Setting(
            name=f"batch {size}",
            group="batch",
            arguments=("--batch", str(size)),
            effect={"batch": size},
            kind="batch",
            advice=f"batch_size={size}; it needs another learning rate",
        )


def _forms(device: str) -> Iterator[Setting]:
    layout = "contiguous" if device == "cpu" else "channels_last"
    named = "contiguous_format" if device == "cpu" else layout
    if ACCELERATORS[device].channels_last:
        yield Setting(
            name=f"{layout} layout",
            group="layout",
            arguments=("--layout", layout),
            effect={"memory_format": layout},
            advice=f"memory_format=torch.{named}",
        )
    yield Setting(
        name="relu before max-pool",
        group="order",
        arguments=("--order", "published"),
        effect={"reordered": None},
        advice="relu before max-pool, as the example is published",
    )
    if device == "cpu":
        yield Setting(
            name="torch's own dropout",
            group="dropout",
            arguments=("--dropout", "torch"),
            effect={"dropout": None},
            advice="torch.nn.Dropout, as the example is published",
        )


def _arithmetic(device: str) -> Iterator[Setting]:
    yield Setting(
        name="bfloat16 autocast",
        group="precision",
        arguments=("--bfloat16",),
        effect={"dtypes": "bfloat16"},
        kind="precision",
        advice=f'torch.autocast("{device_of(device)}", dtype=torch.bfloat16)',
    )
    if device == "cpu":
        yield Setting(
            name="denormals flushed to zero",
            group="denormal",
            arguments=("--flush-denormal",),
            effect={"flush_denormal": True},
            advice="torch.set_flush_denormal(True)",
        )


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
Kind = Literal["setting", "precision", "batch"]
ALL, HELD = "all winners together", "what a profile can hold"
_KINDS: dict[Kind, tuple[Verdict, str]] = {
    "setting": ("helps", ""),
    "precision": ("other precision", "not float32: reported, but never written to a profile"),
    "batch": ("other batch", "not this workload: reported, but never written to a profile"),
}
Speed = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Rules(Struct, frozen=True, kw_only=True):
    """The thresholds for a setting that helps.

    `accuracy` is how much lower the accuracy may be, as a fraction. Correct settings differ, too:
    other memory layouts draw other dropout masks. Five seeds of a complete trial are within 0.005,
    and wrong gradients cost far more (docs/guides/tuning.md).
    """

    pairs: Annotated[int, Meta(ge=1)] = 3
    gain: float = 1.05
    accuracy: float = 0.01


class Setting(Struct, frozen=True, kw_only=True):
    """A candidate: variables (empty: removed) and arguments for the payload's `trial`.

    One setting per group can be selected. `effect` is what the trial must report, otherwise the
    setting did not take effect. `profile` holds the profile keys that express it; a setting without
    them is only advice. `caution` is where it must not be used. Other precisions and batches are
    reported, but change the workload.
    """

    name: str
    group: str
    variables: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    effect: dict[str, Any] = {}
    kind: Kind = "setting"
    profile: dict[str, Any] = {}
    advice: str = ""
    caution: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """Return the setting as arguments of `trial`."""
        pairs = (x for k, v in self.variables.items() for x in ("--set", f"{k}={v}"))
        return (*pairs, *self.arguments)


class Trial(Struct, frozen=True, kw_only=True):
    """The report of one trial; `loss` is None if it was not finite.

    `contention` is what competed for the CPU; None if it is not known.
    """

    samples_per_second: Speed
    accuracy: Share
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


def read_trial(report: object) -> Trial:
    """Return a trial's report as typed data; raise `ValueError` if it is not valid."""
    try:
        return decoding.convert(report, Trial)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a trial's report: {error}") from error


def without_effect(setting: Setting, trial: Trial) -> str:
    """Return why a trial's setting was not in effect; empty if it was."""
    for key, expected in setting.effect.items():
        reported = trial.settings.get(key)
        # A list holds all values in use: bfloat16 autocast, for example, also uses float32.
        if isinstance(reported, list) and expected in reported:
            continue
        if reported != expected:
            return f"it did not take effect: {key} was {reported!r}, not {expected!r}"
    return ""


def hopeless(pairs: Sequence[Pair], rules: Rules) -> bool:
    """Return whether the median gain cannot reach the limit, whatever the missing pairs yield."""
    missing = [math.inf] * (rules.pairs - len(pairs))
    return bool(pairs) and statistics.median([*(p.gain for p in pairs), *missing]) < rules.gain


def noise(baselines: Sequence[Trial]) -> float:
    """Return the median relative difference between consecutive trials of the defaults."""
    speeds = [trial.samples_per_second for trial in baselines]
    changes = [max(a, b) / min(a, b) - 1 for a, b in pairwise(speeds)]
    return statistics.median(changes) if changes else 0.0


def judge(
    setting: Setting, pairs: Sequence[Pair], rules: Rules, spread: float, error: str = ""
) -> Finding:
    """Judge a setting. `spread` is the machine's noise, `error` why a trial failed."""
    if not pairs:
        return Finding(setting=setting, verdict="failed", detail=error or "not tried")
    gain = statistics.median(p.gain for p in pairs)
    accuracy = statistics.median(p.candidate.accuracy for p in pairs)
    verdict, detail = _verdict(setting, pairs, rules, spread)
    return Finding(
        setting=setting,
        verdict="failed" if error else verdict,
        detail=error or detail,
        gain=gain,
        accuracy=accuracy,
        pairs=tuple(pairs),
    )


def _verdict(
    setting: Setting, pairs: Sequence[Pair], rules: Rules, spread: float
) -> tuple[Verdict, str]:
    gain = statistics.median(p.gain for p in pairs)
    accuracy = statistics.median(p.candidate.accuracy for p in pairs)
    usual = statistics.median(p.baseline.accuracy for p in pairs)
    result: tuple[Verdict, str] = _KINDS[setting.kind]
    if any(p.candidate.loss is None for p in pairs):
        result = "less accurate", "its loss is not a finite number"
    elif accuracy < usual - rules.accuracy:
        result = "less accurate", f"{accuracy:.1%} instead of {usual:.1%}"
    elif disturbed := next(filter(None, (p.disturbance for p in pairs)), ""):
        result = "machine busy", f"{disturbed}; measure again on a quiet machine"
    elif gain < rules.gain:
        result = "no gain", ""
    elif len(pairs) < rules.pairs:
        result = "failed", f"only {len(pairs)} of {rules.pairs} pairs were finished"
    elif gain < 1 + spread:
        result = "noise", f"the defaults alone differ by {spread:.0%} between trials"
    return result


def winners(findings: Sequence[Finding]) -> tuple[Setting, ...]:
    """Return the best setting of each group that helped, best first."""
    helped = [f for f in findings if f.verdict == "helps"]
    helped.sort(key=lambda f: f.gain or 0.0, reverse=True)
    best: dict[str, Setting] = {}
    for finding in helped:
        best.setdefault(finding.setting.group, finding.setting)
    return tuple(best.values())


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


def combinations(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the winners to try together: all of them, and those that a profile can hold."""
    written = [s for s in settings if s.profile]
    combined = []
    if len(settings) > 1:
        combined.append(together(settings, ALL))
    if len(written) > 1 and len(written) < len(settings):
        combined.append(together(written, HELD))
    return tuple(combined)


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
    for setting in settings:
        for key, value in setting.profile.items():
            if isinstance(value, dict):
                value = {**keys.get(key, {}), **value}  # noqa: PLW2901 - merged with earlier values
            keys[key] = value
    return keys
