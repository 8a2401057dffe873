"""Derive the next steps from a report's failed checks and warnings.

Each step follows from facts in the report, names the checks that it comes from, and has a command
only if a command helps. The only parts of a report that a command may contain are names and paths
that match a safe pattern, because users copy commands without reading them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.payload.frameworks import title
from envbuilder.profiles.backends import BACKENDS
from envbuilder.verify.report.consistency import MATMUL_RATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.verify.report.model import Check, Report

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_PATH = re.compile(r"/[A-Za-z0-9._/+-]{1,200}\Z")
_CHANGED_WORDS = "changed after the build"
"""Phrase that the message of a failed integrity check of an environment contains."""
_CAUSES = {"arithmetic", "step"}
"""Names of checks whose failure explains why a network did not learn."""
_MEMORY = re.compile(r"out of memory|memoryerror|cannot allocate memory", re.IGNORECASE)


class Advice(Struct, frozen=True, kw_only=True):
    """A recommended next step: a sentence, an optional command, and the checks that call for it."""

    sentence: str
    command: str
    checks: tuple[str, ...]


class _Step(Struct, frozen=True):
    """A next step for a check: a sentence, and a command as a list of words if a command helps.

    If `external` is True, the step applies only to external interpreters. If it is False, the step
    applies only to environments that envbuilder built. If it is None, the step applies to both.
    """

    sentence: str
    command: tuple[str, ...] = ()
    external: bool | None = None


_REBUILD = ("build", "--rebuild")
_OTHER_PACKAGES = (
    _Step(
        "This interpreter lacks packages that the profile needs. Install the packages that the"
        " check names, or let envbuilder build an environment.",
        ("build",),
        external=True,
    ),
    _Step("The environment does not match its lock. Rebuild it.", _REBUILD, False),
)
_WRONG_NUMBERS = (
    _Step(
        "The numbers are wrong: do not train with this combination of device, driver and"
        " {framework}. Check whether the driver is too old.",
        ("doctor",),
    ),
    _Step(
        "Rule out a damaged environment by rebuilding it. If the fault remains, it is in"
        " {framework} or the driver, and this report is the evidence.",
        _REBUILD,
        external=False,
    ),
)
_NOT_LEARNED = (
    _Step(
        "The network did not learn well enough. The seed is fixed, so the same result a second"
        " time rules out chance.",
        ("verify",),
    ),
)
_FOREIGN_CODE = (
    _Step(
        "Code from outside the interpreter's environment took part. Unset the variables that the"
        " check names, or declare them intended.",
        ("verify", "--inherit-environment"),
        external=True,
    ),
    _Step(
        "Code from outside the environment took part. Remove the files that the check names, or"
        " rebuild the environment.",
        _REBUILD,
        external=False,
    ),
)
_CHANGED = _Step(
    "Files of the environment were changed, added or removed after the build. Rebuild it, which"
    " removes files added by hand.",
    _REBUILD,
)
_OUT_OF_MEMORY = _Step(
    "Memory ran out. End other programs that use the device, or raise the container's limit, and"
    " try again."
)
_STEPS: dict[str, tuple[_Step, ...]] = {
    "against": (
        _Step(
            "Check what changed: other programs on this machine, its driver, the packages. Then"
            " compare again on a quiet machine.",
        ),
    ),
    "arithmetic": _WRONG_NUMBERS,
    "blind test": _NOT_LEARNED,
    "build": _OTHER_PACKAGES,
    "clock": (
        _Step(
            "The clock was wrong or changed during the run, so no time in this report counts.",
            ("verify",),
        ),
    ),
    "dataset": (
        _Step(
            "The images are not MNIST's. Remove `--data` to download MNIST and check it against"
            " its published hashes.",
            ("verify",),
        ),
    ),
    "device": (
        _Step(
            "Find out whether the driver, a permission or the hardware keeps {framework} from"
            " using {device}.",
            ("doctor",),
        ),
        _Step(
            "Check which profile fits this machine. Without `--force`, verify checks this before"
            " it starts.",
            ("detect",),
        ),
    ),
    "device used": (
        _Step(
            "The work was not done on {device}, so these times do not show its speed.", ("doctor",)
        ),
    ),
    "extension": _OTHER_PACKAGES,
    "import": _OTHER_PACKAGES,
    "isolation": _FOREIGN_CODE,
    "kernels": (
        _Step(
            "The extension was installed, but its kernels did not run: this environment is no"
            " faster than plain {framework}. `doctor` shows whether this CPU has the instructions"
            " that they need.",
            ("doctor",),
        ),
    ),
    MATMUL_RATE: (
        _Step(
            "The times in this report cannot be trusted. Verify again on a quiet machine.",
            ("verify",),
        ),
    ),
    "origins": _FOREIGN_CODE,
    "precision": (
        _Step(
            "A setting lowers the precision. Unset the variable or setting that the check names,"
            " or use a profile with that precision."
        ),
    ),
    "run": (
        _Step(
            "The verification did not finish. Try again, and if it fails twice, report it{end}.",
            ("verify",),
        ),
    ),
    "several devices": (
        _Step(
            "The devices did not train together correctly. Verify them one at a time to find the"
            " one at fault.",
            ("verify", "--devices", "0"),
        ),
    ),
    "shared memory": (
        _Step(
            "DataLoader workers need more shared memory. Give the container more, such as `docker"
            " run --shm-size=2g`, or load without workers."
        ),
    ),
    "step": _WRONG_NUMBERS,
}
_EXISTING = {"external": ("--python", "PYTHON"), "apptainer": ("--sif", "FILE")}
"""Options that name an artifact that envbuilder did not build here, by the report's backend.

Each option comes with a placeholder that replaces the artifact's path if the path does not match
the safe pattern.
"""
_ALSO_OF_WARNINGS = {"dataset", "shared memory", MATMUL_RATE}
_NO_CHECK = _Step(
    "Run the verification again, since this report does not say which check failed.", ("verify",)
)
_AGAIN = _Step("Then verify again, since only a new report counts.", ("verify",))


def advise(report: Report) -> tuple[Advice, ...]:
    """Return the next steps, with the most urgent ones first.

    If several checks lead to the same step, it is returned once and names all of these checks.
    """
    checks: dict[tuple[str, str], list[str]] = {}
    ordered = []
    for status in ("failed", "warning"):
        ordered += [check for check in report.checks if check.status == status]
    failed = frozenset(c.name for c in ordered if c.status == "failed")
    for check in ordered:
        for step in _steps(check, failed):
            if step.external in (None, report.backend == "external"):
                checks.setdefault(_words(step, report), []).append(check.name)
    if report.status == "passed":
        more = list(_after_success(report))
    elif not checks:
        more = [_NO_CHECK]
    else:
        verified = any(command.startswith("envbuilder verify") for _, command in checks)
        more = [] if verified else [_AGAIN]
    for step in more:
        checks.setdefault(_words(step, report), [])
    return tuple(
        Advice(sentence=sentence, command=command, checks=tuple(dict.fromkeys(names)))
        for (sentence, command), names in checks.items()
    )


def _steps(check: Check, failed: frozenset[str]) -> tuple[_Step, ...]:
    """Return the next steps for a failed check or a warning."""
    fails = check.status == "failed"
    (kind, _, backend) = check.name.partition(" ")
    steps = _STEPS.get("extension" if kind == "extension" else check.name, ())
    if fails and _MEMORY.search(check.detail):
        steps = (_OUT_OF_MEMORY,)
    elif fails and check.name == "run" and _CHANGED_WORDS in check.detail:
        steps = (_CHANGED,)
    elif kind == "compile":
        named = "this backend"
        if _NAME.match(backend):
            named = f"`{backend}`"
        sound = not failed & {*_CAUSES, "blind test"}
        eager = ""
        if sound:
            eager = " Without `torch.compile`, the results were right."
        verb = f"{'must' if fails else 'should'} not use `torch.compile` with {named}"
        steps = (_Step(f"You {verb} in this environment.{eager}"),)
    elif not (fails or check.name in _ALSO_OF_WARNINGS) or (
        steps is _NOT_LEARNED and failed & _CAUSES
    ):
        steps = ()
    return steps


def _after_success(report: Report) -> Iterator[_Step]:
    if report.quick:
        yield _Step("This was a quick verification. The full one uses all of MNIST.", ("verify",))
    elif len(report.epochs) == 1:
        yield _Step(
            "Only one epoch was trained. With more epochs, warm ones are timed separately from"
            " the first, which includes start-up.",
            ("verify", "--epochs", "3"),
        )
    if report.backend in _EXISTING:
        thing = "image"
        if report.backend == "external":
            thing = "interpreter"
        yield _Step(f"The {thing} works. Use it as it is.")
    elif _name(report.profile):
        yield _Step("Work in this environment.", ("run", "--", "python", "train.py"))


def _words(step: _Step, report: Report) -> tuple[str, str]:
    """Return the sentence and the command of a step, filled in for the report's environment."""
    sentence = step.sentence.format(
        framework=title(_name(report.framework.name)) or "the framework",
        device=_name(report.device.requested) or "the device",
        end=" with the traceback at the end of this page" if report.traceback else "",
    )
    if not step.command:
        return sentence, ""
    name, *arguments = step.command
    profile = _name(report.profile)
    ref = report.artifact.ref
    options = ["--profile", profile] if profile and name != "detect" else []
    if report.backend in _EXISTING and name == "verify":
        option, stand_in = _EXISTING[report.backend]
        options += [option, ref if ref and _PATH.match(ref) else stand_in]
    elif report.backend in BACKENDS and name in {"build", "run", "verify"}:
        options += ["--backend", report.backend]
    return sentence, " ".join(("envbuilder", name, *options, *arguments))


def _name(value: str | None) -> str:
    if value and _NAME.match(value):
        return value
    return ""
