"""Choose the settings to try, and judge their trials.

All functions are pure. The candidates are derived from the payload's survey. A setting helps if the
median gain of its pairs of trials is at least 5 % and above the machine's noise, and if the
accuracy does not drop. Trials are inconclusive if the machine was busy during them.

Some settings are never candidates:

- settings that silently lower the precision of float32 (oneDNN's fpmath modes)
- settings that bind threads to cores, which makes forked workers share one core (pytorch#99625)
- settings that only the measured training run could use, such as its data loader or the order of
  its layers
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from envbuilder.payload.machine.accelerators import ACCELERATORS, device_of
from envbuilder.verify.report import speed
from envbuilder.verify.report.measurements import Contention

MALLOC_CONF = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
"""Intel's recommended configuration for jemalloc, without the settings that keep freed memory
forever."""
KEEP_MEMORY = {
    # By default glibc returns large blocks to the system and faults them in again at every step.
    # 32 MiB is the largest threshold that it accepts. (mallopt(3))
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
UNSHARED = (
    "only for machines without other jobs: waiting threads keep their cores busy, and next to"
    " another job training took several times as long"
)
"""A warning about settings that make threads wait actively, such as OMP_WAIT_POLICY=active or a
long KMP_BLOCKTIME."""

Kind = Literal["setting", "precision", "batch"]


class Limits(Struct, frozen=True, kw_only=True):
    """The CPU limits that the payload found; `used` is the value of OMP_NUM_THREADS."""

    affinity: int
    decided: int
    physical: int | None = None
    quota: float | None = None
    used: int | None = None


class Survey(Struct, frozen=True, kw_only=True):
    """A description of an environment, as reported by the payload's `trial --survey`."""

    threads: Limits
    allocator: str
    allocators: dict[str, str] = {}
    preload: tuple[str, ...] = ()
    glibc: bool = False
    wait_policy: str | None = None


class Setting(Struct, frozen=True, kw_only=True):
    """A candidate setting: variables and arguments for the payload's `trial`.

    A variable with an empty value is removed. At most one setting per group is selected. `effect`
    contains the values that the trial must report; if the trial reports other values, the setting
    did not take effect. `advice` says how to apply the setting, `keys` are the profile keys that
    apply it, and `caution` says where it must not be used. Settings that use another precision or
    batch size are reported as well, although they change the workload.
    """

    name: str
    group: str
    variables: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    effect: dict[str, Any] = {}
    kind: Kind = "setting"
    advice: str = ""
    keys: dict[str, Any] = {}
    caution: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """The setting as command-line arguments for the payload's `trial`."""
        arguments = []
        for name, value in self.variables.items():
            arguments += ["--set", f"{name}={value}"]
        return (*arguments, *self.arguments)


def candidates(survey: Survey, device: str) -> tuple[Setting, ...]:
    """Return all candidate settings for a device, except torch.compile.

    A torch.compile backend becomes a candidate only after it has passed a check.
    """
    own = (*_allocators(survey), *_waiting(survey)) if device == "cpu" else ()
    return (*_threads(survey.threads), *own, *_workloads(device))


def _threads(limits: Limits) -> Iterator[Setting]:
    current = limits.used or limits.decided
    counts = {1, limits.physical or limits.decided, limits.affinity, limits.decided} - {current}
    for count in sorted(counts):
        yield Setting(
            name=f"{count} thread{'s' if count > 1 else ''}",
            group="threads",
            variables={"OMP_NUM_THREADS": str(count)},
            effect={"threads": count},
            advice=f"export OMP_NUM_THREADS={count}",
        )


IN_A_PROFILE = "in your own profile"


def _allocators(survey: Survey) -> Iterator[Setting]:
    def allocator(
        name: str, advice: str, path: str = "", more: Mapping[str, str] | None = None, **keys: Any
    ) -> Setting:
        preload = ":".join(filter(None, (path, *survey.preload)))
        return Setting(
            name=name,
            group="allocator",
            variables={"LD_PRELOAD": preload, **(more or {})},
            effect={"allocator": path or "libc"},
            advice=advice,
            keys=keys,
        )

    if survey.allocator != "libc":
        yield allocator("libc's allocator", IN_A_PROFILE, preload=[])
    if survey.glibc:
        name = "libc's allocator, keeping memory"
        kept = dict(KEEP_MEMORY)
        yield allocator(name, IN_A_PROFILE, more=kept, preload=[], environment=kept)
    for name, path in survey.allocators.items():
        if f"lib{name}" in survey.allocator:
            continue
        advised = {"MALLOC_CONF": MALLOC_CONF} if name == "jemalloc" else {}
        for more, suffix in (({}, ""), (advised, ", as advised"))[: 2 if advised else 1]:
            exports = " ".join(f"{k}={v}" for k, v in {"LD_PRELOAD": path, **more}.items())
            # The library belongs to the host and is not a locked file: a profile cannot name it.
            advice = f"export {exports}, or write your own profile, which locks and preloads it"
            yield allocator(name + suffix, advice, path, more)


def _waiting(survey: Survey) -> Iterator[Setting]:
    for policy, caution in (("active", UNSHARED), ("passive", "")):
        if (survey.wait_policy or "").lower() != policy:
            yield Setting(
                name=f"OMP_WAIT_POLICY={policy}",
                group="waiting",
                variables={"OMP_WAIT_POLICY": policy},
                advice=f"export OMP_WAIT_POLICY={policy}",
                keys={"environment": {"OMP_WAIT_POLICY": policy}},
                caution=caution,
            )


def _workloads(device: str) -> tuple[Setting, ...]:
    """Return the candidate settings that depend only on the device."""
    cpu = device == "cpu"
    sizes, layout = ((128, 256), "contiguous") if cpu else ((256, 1024), "channels_last")
    layouts = Setting(
        name=f"{layout} layout",
        group="layout",
        arguments=("--layout", layout),
        effect={"memory_format": layout},
        advice=f"memory_format=torch.{'contiguous_format' if cpu else layout}",
    )
    bfloat16 = Setting(
        name="bfloat16 autocast",
        group="precision",
        arguments=("--bfloat16",),
        effect={"dtypes": "bfloat16"},
        kind="precision",
        advice=f'torch.autocast("{device_of(device)}", dtype=torch.bfloat16)',
    )
    batches = (
        Setting(
            name=f"batch {size}",
            group="batch",
            arguments=("--batch", str(size)),
            effect={"batch": size},
            kind="batch",
            advice=f"batch_size={size}, with an adapted learning rate",
        )
        for size in sizes
    )
    formed = (layouts,) if ACCELERATORS[device].channels_last else ()
    return (*batches, *formed, bfloat16)


def compiled(backend: str) -> Setting:
    """Return the torch.compile setting for a backend that passed the gradient check."""
    return Setting(
        name=f"torch.compile, {backend}",
        group="compile",
        arguments=("--compile", backend),
        effect={"compile": backend},
        advice=f'model = torch.compile(model, backend="{backend}", dynamic=False)',
    )


# What decides, and which settings win

PAIRS = 3
LEAST_GAIN = 1.05
MOST_LOST = 0.01
MOST_LOST_QUICK = 0.03
"""Largest accepted loss of accuracy in complete (`MOST_LOST`) and quick trials, as a fraction.

The accuracy varies even between correct settings. For example, a different memory layout draws
different dropout masks. In complete trials with five seeds, the accuracies differ by at most 0.005,
and wrong gradients cost far more (docs/guides/tuning.md). In quick trials, the accuracy varies
more, because there are only a few steps.
"""

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
    "precision": ("other precision", "not float32"),
    "batch": ("other batch", "not this workload"),
}
ALL = "all winners together"


class Trial(Struct, frozen=True, kw_only=True):
    """The report of one trial; `loss` is None if the loss was not finite.

    `contention` describes the competition for the CPU during the trial; it is None if it is
    unknown.
    """

    samples_per_second: Annotated[float, Meta(gt=0)]
    accuracy: Annotated[float, Meta(ge=0, le=1)]
    loss: float | None = None
    contention: Contention | None = None
    settings: dict[str, Any] = {}


class Pair(Struct, frozen=True, kw_only=True):
    """A trial of the defaults, and a trial of a setting immediately after it."""

    baseline: Trial
    candidate: Trial

    @property
    def gain(self) -> float:
        """The setting's speed relative to that of the defaults; 0 if the ratio is not finite."""
        ratio = self.candidate.samples_per_second / self.baseline.samples_per_second
        if math.isfinite(ratio):
            return ratio
        return 0.0

    @property
    def disturbance(self) -> str:
        """The way other work disturbed one of the two trials; empty if neither was disturbed."""
        trials = (self.baseline.contention, self.candidate.contention)
        return next(filter(None, (speed.busy(facts) for facts in trials if facts)), "")


class Finding(Struct, frozen=True, kw_only=True):
    """The verdict on a setting.

    `gain` and `accuracy` are medians over the pairs of trials, or None if there are no pairs.
    """

    setting: Setting
    verdict: Verdict
    detail: str = ""
    gain: float | None = None
    accuracy: float | None = None
    pairs: tuple[Pair, ...] = ()


def hopeless(pairs: Sequence[Pair]) -> bool:
    """Return whether the median gain can no longer reach `LEAST_GAIN`.

    The trials that are still missing are assumed to have an infinite gain.
    """
    missing = [math.inf] * (PAIRS - len(pairs))
    return bool(pairs) and statistics.median([*(p.gain for p in pairs), *missing]) < LEAST_GAIN


def noise(baselines: Sequence[Trial]) -> float:
    """Return the median relative difference in speed between consecutive trials of the defaults."""
    speeds = [trial.samples_per_second for trial in baselines]
    changes = [max(a, b) / min(a, b) - 1 for a, b in pairwise(speeds)]
    if changes:
        return statistics.median(changes)
    return 0.0


def judge(
    setting: Setting,
    pairs: Sequence[Pair],
    spread: float,
    error: str = "",
    most_lost: float = MOST_LOST,
) -> Finding:
    """Judge a setting by its pairs of trials.

    `spread` is the machine's noise. `error` says why a trial failed, and is empty if none failed.
    `most_lost` is the largest accepted loss of accuracy, as a fraction.
    """
    if not pairs:
        return Finding(setting=setting, verdict="failed", detail=error or "not tried")
    gain = statistics.median(p.gain for p in pairs)
    accuracy = statistics.median(p.candidate.accuracy for p in pairs)
    usual = statistics.median(p.baseline.accuracy for p in pairs)
    busy = next(filter(None, (p.disturbance for p in pairs)), "")
    verdict, detail = _KINDS[setting.kind]
    # Wrong results are wrong on a busy machine, too.
    if error:
        verdict = "failed"
        detail = error
    elif any(p.candidate.loss is None for p in pairs):
        verdict = "less accurate"
        detail = "its loss is not a finite number"
    elif accuracy < usual - most_lost:
        verdict = "less accurate"
        detail = f"{accuracy:.1%} instead of {usual:.1%}"
    elif busy:
        verdict = "machine busy"
        detail = f"{busy}: measure again on a quiet machine"
    elif gain < LEAST_GAIN:
        verdict = "no gain"
        detail = ""
    elif len(pairs) < PAIRS:
        verdict = "failed"
        detail = f"only {len(pairs)} of {PAIRS} pairs were finished"
    elif gain < 1 + spread:
        verdict = "noise"
        detail = f"the defaults alone differ by {spread:.0%} between trials"
    return Finding(
        setting=setting,
        verdict=verdict,
        detail=detail,
        gain=gain,
        accuracy=accuracy,
        pairs=tuple(pairs),
    )


def winners(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the best helpful setting of each group, with the most effective one first."""
    best: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda f: f.gain or 0.0, reverse=True):
        if finding.verdict == "helps":
            best.setdefault(finding.setting.group, finding)
    return tuple(best.values())


def together(settings: Sequence[Setting]) -> Setting:
    """Return one setting that combines several settings."""
    variables: dict[str, str] = {}
    arguments: list[str] = []
    effect: dict[str, Any] = {}
    for setting in settings:
        variables |= setting.variables
        arguments += setting.arguments
        effect |= setting.effect
    return Setting(
        name=ALL,
        group="together",
        variables=variables,
        arguments=tuple(arguments),
        effect=effect,
    )
