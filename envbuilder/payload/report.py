"""Checks and the verdict on them: pure functions over what the other modules observed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

PASSED, FAILED, SKIPPED, WARNING = "passed", "failed", "skipped", "warning"

REQUIRED = (
    "isolation",
    "import",
    "build",
    "device",
    "precision",
    "dataset",
    "accuracy",
    "learning",
    "data copied",
    "dropout",
    "device used",
    "arithmetic",
    "gradients",
    "vae",
    "determinism",
    "origins",
    "clock",
)
"""Checks without which nothing is verified; each must have run and not have failed."""

BLIND_TEST = "blind test"
"""The check whose questions and score come from outside; required where there are questions."""


@dataclass(frozen=True)
class Check:
    """One outcome: what was checked, how it went, how long it took, and a sentence on why."""

    name: str
    status: str
    seconds: float
    detail: str

    def as_dict(self) -> Dict[str, object]:
        """The report's form."""
        return {
            "name": self.name,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "detail": self.detail,
        }


class CheckError(Exception):
    """Raised inside a check; the message is a plain sentence on what is wrong."""


@dataclass
class Checks:
    """The checks run so far, timed. ``run`` never lets an exception of a check escape."""

    clock: Callable[[], float] = time.perf_counter
    done: List[Check] = field(default_factory=list)

    def run(self, name: str, check: Callable[..., Tuple[str, str]], *arguments: Any) -> bool:
        """Run ``check``, which returns a status and a detail, and record it; False if it failed."""
        began = self.clock()
        try:
            status, detail = check(*arguments)
        except CheckError as error:
            status, detail = FAILED, str(error)
        except Exception as error:
            status, detail = FAILED, f"{type(error).__name__}: {error}"
        self.done.append(Check(name, status, self.clock() - began, detail))
        return status != FAILED

    def seconds(self, name: str) -> float:
        """Seconds that the check of this name took; 0 if it has not run."""
        return sum(check.seconds for check in self.done if check.name == name)


@dataclass(frozen=True)
class Verdict:
    """Passed or failed, the sentences on why, and warnings that do not change it."""

    status: str
    reasons: Tuple[str, ...]
    warnings: Tuple[str, ...]


def judge(
    checks: Sequence[Check], required: Sequence[str], requested: str, used: Optional[str]
) -> Verdict:
    """Passed only if no check failed, each required one ran, and the device asked for was used."""
    reasons = [_sentence(check) for check in checks if check.status == FAILED]
    # A check that never ran because an earlier one failed needs no sentence of its own.
    if not reasons:
        ran = {check.name for check in checks if check.status in (PASSED, WARNING)}
        reasons = [f"{name}: this check did not run" for name in required if name not in ran]
        if used != requested:
            reasons.append(f"device: {requested} was asked for, but {used or 'none'} was used")
    warnings = tuple(_sentence(check) for check in checks if check.status == WARNING)
    return Verdict(FAILED if reasons else PASSED, tuple(reasons), warnings)


def not_run(checks: Sequence[Check], required: Sequence[str]) -> List[Check]:
    """A skipped check for each required one that an earlier failure kept from running."""
    ran = {check.name for check in checks}
    blocked = next((check.name for check in checks if check.status == FAILED), "an earlier step")
    return [
        Check(name, SKIPPED, 0.0, f"not run, because {blocked} failed")
        for name in required
        if name not in ran
    ]


def _sentence(check: Check) -> str:
    return f"{check.name}: {check.detail}"
