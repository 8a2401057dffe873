"""Checks, and the verdict based on them: pure functions of what the other modules observed."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"
WARNING = "warning"

REQUIRED = (
    "isolation",
    "import",
    "build",
    "device",
    "precision",
    "dataset",
    "device used",
    "origins",
    "clock",
)
"""Checks that every verification needs; each must have run and not have failed."""

UNPROVEN = "unproven"
"""Status of a report without failure whose training steps nothing repeated outside."""

STEP = "step"
"""The check whose steps envbuilder repeats outside of the environment; without it, nothing is
proven."""

UNREPEATED = "step not proven: nothing outside of this environment repeated it"

BLIND_TEST = "blind test"
"""The check whose questions and score come from outside; required if there are questions."""


@dataclass(frozen=True)
class Check:
    """Outcome of one check: its name, status, duration, and a sentence of explanation."""

    name: str
    status: str
    seconds: float
    detail: str

    def as_dict(self) -> Dict[str, object]:
        """Return the check as it appears in the report."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


class CheckError(Exception):
    """A failure found by a check. The message is a plain sentence that says what is wrong."""


def require_none(problems: Sequence[str]) -> None:
    """Raise CheckError if there are any problems. The message contains all of them."""
    if problems:
        raise CheckError("; ".join(problems))


@dataclass
class Checks:
    """The timed results of the checks run so far. ``run`` catches every exception of a check."""

    clock: Callable[[], float] = time.perf_counter
    done: List[Check] = field(default_factory=list)

    def run(self, name: str, check: Callable[..., Tuple[str, str]], *arguments: Any) -> bool:
        """Run ``check`` and record the status and detail that it returns, or its exception.

        Return False if the check failed.
        """
        began = self.clock()
        try:
            status, detail = check(*arguments)
        except CheckError as error:
            status = FAILED
            detail = str(error)
        except Exception as error:
            status = FAILED
            detail = f"{type(error).__name__}: {error}"
        self.done.append(Check(name, status, self.clock() - began, detail))
        return status != FAILED


@dataclass(frozen=True)
class Verdict:
    """A result (passed, failed or unproven), its reasons, and warnings that do not affect it."""

    status: str
    reasons: Tuple[str, ...]
    warnings: Tuple[str, ...]


def judge(
    checks: Sequence[Check],
    required: Sequence[str],
    requested: str,
    used: Optional[str],
    *,
    proven: bool,
) -> Verdict:
    """Return a verdict, which passes only if nothing failed and everything required was done.

    Each required check must have run, and the requested device must have been used. If no step was
    recorded (``proven`` is false), the verdict is unproven instead of passed, because nothing can
    be repeated outside the environment.
    """
    reasons = [_sentence(check) for check in checks if check.status == FAILED]
    # A check that did not run because an earlier one failed needs no reason of its own.
    if not reasons:
        ran = {check.name for check in checks if check.status in (PASSED, WARNING)}
        reasons = [f"{name}: this check did not run" for name in required if name not in ran]
        if used != requested:
            reasons.append(f"device: {requested} was requested, but {used or 'none'} was used")
    warnings = tuple(_sentence(check) for check in checks if check.status == WARNING)
    if not reasons and not proven:
        return Verdict(UNPROVEN, (UNREPEATED,), warnings)
    return Verdict(FAILED if reasons else PASSED, tuple(reasons), warnings)


def not_run(checks: Sequence[Check], required: Sequence[str]) -> List[Check]:
    """Return a skipped check for each required check that did not run because of a failure."""
    ran = {check.name for check in checks}
    blocked = next((check.name for check in checks if check.status == FAILED), "an earlier step")
    return [
        Check(name, SKIPPED, 0.0, f"not run, because {blocked} failed")
        for name in required
        if name not in ran
    ]


def _sentence(check: Check) -> str:
    return f"{check.name}: {check.detail}"
