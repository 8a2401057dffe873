"""Decide which settings helped on a host. Pure.

Every candidate is timed alternately with the environment's defaults. It helps if the median gain of
its pairs is at least 5 % and above the machine's noise, and the accuracy does not drop. Nothing is
decided by trials during which the machine was busy.
"""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding
from envbuilder.verify.report import speed
from envbuilder.verify.report.measurements import Contention

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def read(report: object) -> Trial:
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
