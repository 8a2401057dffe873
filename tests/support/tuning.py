"""A pretended machine for tuning, and settings to try on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from envbuilder.core.errors import VerifyError
from envbuilder.profiles.profile import Expected
from envbuilder.verify import tune
from envbuilder.verify.tune_settings import Finding, Pair, Setting, Survey, Trial, candidates
from tests.support.progress import SILENT

TCMALLOC = "/prefix/lib/envbuilder/libtcmalloc_minimal.so.4"
SURVEY: dict[str, Any] = {
    "schema": 1,
    "threads": {"affinity": 4, "quota": 2.5, "physical": 4, "decided": 2, "used": 2},
    "allocator": TCMALLOC,
    "allocators": {"tcmalloc": TCMALLOC},
    "preload": [],
    "glibc": True,
    "wait_policy": None,
}
PLAIN = Setting(name="plain", group="plain")
ACTIVE = Setting(
    name="OMP_WAIT_POLICY=active",
    group="waiting",
    keys={"environment": {"OMP_WAIT_POLICY": "active"}},
    variables={"OMP_WAIT_POLICY": "active"},
    advice="export OMP_WAIT_POLICY=active",
)
LIBC = Setting(name="libc", group="allocator", variables={"LD_PRELOAD": ""})
ONE = Setting(name="1 thread", group="threads", variables={"OMP_NUM_THREADS": "1"})


def trial(speed: float, accuracy: float = 0.95, **more: Any) -> Trial:
    return Trial(samples_per_second=speed, accuracy=accuracy, **{"loss": 0.3, **more})


def pairs(*gains: float, accuracy: float = 0.95, **more: Any) -> list[Pair]:
    return [Pair(baseline=trial(100), candidate=trial(100 * g, accuracy, **more)) for g in gains]


def finding(setting: Setting, gain: float, verdict: Any = "helps") -> Finding:
    return Finding(setting=setting, verdict=verdict, gain=gain, accuracy=0.95)


class Machine:
    """A payload's `trial` whose speed depends on its arguments; it counts what it was asked."""

    def __init__(self, **gains: float) -> None:
        self.gains = gains
        self.asked: list[tuple[str, ...]] = []
        self.fails: dict[str, str] = {}
        self.accuracies: dict[str, float] = {}
        self.noise: Iterator[float] = iter(lambda: 1.0, 0.0)
        self.survey: Any = dict(SURVEY)
        self.compiler: Any = {"backend": "inductor", "passed": False, "detail": "wrong gradients"}

    def __call__(self, arguments: tuple[str, ...]) -> object:
        if "--survey" in arguments:
            return self.survey
        if "--check-compile" in arguments:
            return self.compiler
        text = " ".join(arguments)
        self.asked.append(arguments)
        for part, why in self.fails.items():
            if part in text:
                raise VerifyError(why)
        speed = 100.0 * next(self.noise)
        accuracy = 0.95
        for part, gain in self.gains.items():
            if part in text:
                speed *= gain
        for part, value in self.accuracies.items():
            if part in text:
                accuracy = value
        return {
            "samples_per_second": speed,
            "accuracy": accuracy,
            "loss": 0.3,
            "settings": effects(arguments),
        }

    def times(self, part: str) -> int:
        return sum(part in " ".join(arguments) for arguments in self.asked)


def effects(arguments: tuple[str, ...]) -> dict[str, Any]:
    """What a machine reports on which everything asked for takes effect."""
    found: dict[str, Any] = {"dtypes": ["float32"], "allocator": TCMALLOC}
    given = dict(pairwise((*arguments, "")))
    found["dtypes"] += ["bfloat16"] if "--bfloat16" in arguments else []
    found["compile"] = given.get("--compile")
    found["memory_format"] = given.get("--layout", "channels_last")
    found["batch"] = int(given.get("--batch", "64"))
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "OMP_NUM_THREADS":
            found["threads"] = int(value)
        if name == "LD_PRELOAD":
            found["allocator"] = value or "libc"
    return found


EXPECTS = Expected(device="cpu", version="2.13.0+cpu")


def run(machine: Machine, *, quick: bool = True) -> tune.Outcome:
    return tune.run(machine, EXPECTS, SILENT, quick=quick)


def verdicts(outcome: tune.Outcome) -> dict[str, str]:
    return {f.setting.name: f.verdict for f in outcome.findings}


def settings(device: str = "cpu", **changes: Any) -> dict[str, Setting]:
    survey = tune.read({**SURVEY, **changes}, Survey)
    return {s.name: s for s in candidates(survey, device)}


def outcome_with(*found: Finding, combined: tuple[Finding, ...] = ()) -> tune.Outcome:
    return tune.Outcome(
        survey=tune.read(SURVEY, Survey),
        defaults=trial(100),
        noise=0.01,
        findings=found,
        combined=combined,
        compilers=(tune.Compiler(backend="inductor", passed=False, detail="wrong"),),
    )
