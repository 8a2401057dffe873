"""Which settings helped on a host. Pure: numbers in, words out.

Every candidate is timed in turns with the environment's own defaults. It helps where the median of
its pairs is at least 5 % faster, and faster than the machine's own noise, while the accuracy stays.
"""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

Verdict = Literal[
    "helps", "other precision", "other batch", "no gain", "noise", "less accurate", "failed"
]
Kind = Literal["setting", "precision", "batch"]
ALL, HELD = "all winners together", "what a profile can hold"
_KINDS: dict[Kind, tuple[Verdict, str]] = {
    "setting": ("helps", ""),
    "precision": ("other precision", "not float32: told, never written"),
    "batch": ("other batch", "not this workload: told, never written"),
}
Speed = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Rules(Struct, frozen=True, kw_only=True):
    """When a setting helps.

    `accuracy` is how much lower it may be, a fraction. Right settings differ too: other memory
    layouts draw other dropout masks. Five seeds of a whole trial lie within 0.005, and wrong
    gradients cost far more (docs/tuning.md).
    """

    pairs: Annotated[int, Meta(ge=1)] = 3
    gain: float = 1.05
    accuracy: float = 0.01


class Setting(Struct, frozen=True, kw_only=True):
    """Something to try: variables (empty: removed) and arguments for the payload's `trial`.

    Of each group one setting can be chosen. `effect` is what the trial must report, else the
    setting did not take effect. `profile` holds the keys of a profile that express it; a setting
    without them is advice. Precisions and batches are told, but are not this workload.
    """

    name: str
    group: str
    variables: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    effect: dict[str, Any] = {}
    kind: Kind = "setting"
    profile: dict[str, Any] = {}
    advice: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """The setting as arguments of `trial`."""
        pairs = (x for k, v in self.variables.items() for x in ("--set", f"{k}={v}"))
        return (*pairs, *self.arguments)


class Trial(Struct, frozen=True, kw_only=True):
    """What one trial reported; `loss` is None where it was not a finite number."""

    samples_per_second: Speed
    accuracy: Share
    loss: float | None = None
    settings: dict[str, Any] = {}


class Pair(Struct, frozen=True, kw_only=True):
    """The defaults and, right after them, a setting."""

    baseline: Trial
    candidate: Trial

    @property
    def gain(self) -> float:
        """How many times as fast the setting is; an infinite speed gains nothing."""
        ratio = self.candidate.samples_per_second / self.baseline.samples_per_second
        return ratio if math.isfinite(ratio) else 0.0


class Finding(Struct, frozen=True, kw_only=True):
    """A setting's outcome: `gain` and `accuracy` are medians; None where no pair was finished."""

    setting: Setting
    verdict: Verdict
    detail: str = ""
    gain: float | None = None
    accuracy: float | None = None
    pairs: tuple[Pair, ...] = ()


def read(report: object) -> Trial:
    """A trial's report; `ValueError` says what is wrong with it."""
    try:
        return msgspec.convert(report, Trial)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a trial's report: {error}") from error


def without_effect(setting: Setting, trial: Trial) -> str:
    """Why a trial says nothing about its setting; empty where it was in effect."""
    for key, wanted in setting.effect.items():
        found = trial.settings.get(key)
        # bfloat16 takes part beside float32, and an allocator may be a link.
        if isinstance(found, list) and wanted in found:
            continue
        if found != wanted:
            return f"it did not take effect: {key} was {found!r}, not {wanted!r}"
    return ""


def hopeless(pairs: Sequence[Pair], rules: Rules) -> bool:
    """Whether the median of all pairs can no longer reach the gain, however the missing ones go."""
    missing = [math.inf] * (rules.pairs - len(pairs))
    return bool(pairs) and statistics.median([*(p.gain for p in pairs), *missing]) < rules.gain


def noise(baselines: Sequence[Trial]) -> float:
    """By which share the defaults differ from one trial to the next, the median."""
    speeds = [trial.samples_per_second for trial in baselines]
    changes = [max(a, b) / min(a, b) - 1 for a, b in pairwise(speeds)]
    return statistics.median(changes) if changes else 0.0


def judge(
    setting: Setting, pairs: Sequence[Pair], rules: Rules, spread: float, error: str = ""
) -> Finding:
    """What became of a setting. `spread` is the machine's noise, `error` why a trial failed."""
    if not pairs:
        return Finding(setting=setting, verdict="failed", detail=error or "it was not tried")
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
    elif gain < rules.gain:
        result = "no gain", ""
    elif len(pairs) < rules.pairs:
        result = "failed", f"only {len(pairs)} of {rules.pairs} pairs were finished"
    elif gain < 1 + spread:
        result = "noise", f"the defaults alone differ by {spread:.0%} between trials"
    return result


def winners(findings: Sequence[Finding]) -> tuple[Setting, ...]:
    """The best setting of each group that helped, best first."""
    helped = [f for f in findings if f.verdict == "helps"]
    helped.sort(key=lambda f: f.gain or 0.0, reverse=True)
    best: dict[str, Setting] = {}
    for finding in helped:
        best.setdefault(finding.setting.group, finding.setting)
    return tuple(best.values())


def together(settings: Sequence[Setting], name: str) -> Setting:
    """Several settings as one."""
    return Setting(
        name=name,
        group="together",
        variables={k: v for s in settings for k, v in s.variables.items()},
        arguments=tuple(a for s in settings for a in s.arguments),
        effect={k: v for s in settings for k, v in s.effect.items()},
        profile=merged(settings),
    )


def combinations(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """What winners are to be tried together: all, and those that a profile can hold."""
    written = [s for s in settings if s.profile]
    found = []
    if len(settings) > 1:
        found.append(together(settings, ALL))
    if len(written) > 1 and len(written) < len(settings):
        found.append(together(written, HELD))
    return tuple(found)


def to_write(findings: Sequence[Finding], combined: Sequence[Finding]) -> tuple[Setting, ...]:
    """The winners that a profile can hold; only the best one where together they are no better."""
    helped = winners(findings)
    written = tuple(s for s in helped if s.profile)
    if len(written) < 2:
        return written
    name = HELD if len(written) < len(helped) else ALL
    joint = next((f for f in combined if f.setting.name == name), None)
    alone = max(f.gain or 0.0 for f in findings if f.setting == written[0])
    better = joint is not None and joint.verdict == "helps" and (joint.gain or 0.0) > alone
    return written if better else written[:1]


def merged(settings: Sequence[Setting]) -> dict[str, Any]:
    """The profile keys of several settings."""
    keys: dict[str, Any] = {}
    for setting in settings:
        for key, value in setting.profile.items():
            if isinstance(value, dict):
                value = {**keys.get(key, {}), **value}  # noqa: PLW2901 - the merged one
            keys[key] = value
    return keys
