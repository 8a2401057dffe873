"""Derive the next steps from a report's failed checks and warnings.

Advice covers only what the report supports: each item names the check it comes from, and a command
only if one helps. Commands contain no text from a report except names and paths that match a safe
pattern, since users copy commands without reading them.
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
"""How the integrity check of an environment words its failure."""
_CAUSES = {"arithmetic", "gradients", "step", "vae"}
"""Checks whose failure explains why a network did not learn."""
_MEMORY = re.compile(r"out of memory|memoryerror|cannot allocate memory", re.IGNORECASE)


class Advice(Struct, frozen=True, kw_only=True):
    """One next step: a sentence, its command, and the checks that call for it."""

    sentence: str
    command: str = ""
    checks: tuple[str, ...] = ()


class _Step(Struct, frozen=True):
    """What one check calls for: a sentence, and the words of its command.

    With `external` set, it is for external interpreters only (true) or for environments that
    envbuilder built only (false).
    """

    sentence: str
    command: tuple[str, ...] = ()
    external: bool | None = None


_REBUILD = ("build", "--rebuild")
_OTHER_PACKAGES = (
    _Step(
        "This interpreter does not have the packages that the profile needs. Install what the"
        " check names, or let envbuilder build an environment.",
        ("build",),
        external=True,
    ),
    _Step("The environment does not hold what its lock names. Rebuild it.", _REBUILD, False),
)
_WRONG_NUMBERS = (
    _Step(
        "The numbers are wrong: do not train with this combination of device, driver and"
        " {framework}. See whether its driver is known to be too old.",
        ("doctor",),
    ),
    _Step(
        "Rule out a damaged environment by rebuilding it. If the fault remains, it is"
        " {framework}'s or the driver's; this report is the evidence.",
        _REBUILD,
        external=False,
    ),
)
_NOT_LEARNED = (
    _Step(
        "The network did not learn well enough. The seed is fixed: the same figure a second time"
        " means that chance is not the reason.",
        ("verify",),
    ),
)
_FOREIGN_CODE = (
    _Step(
        "Code from outside the interpreter's environment took part. Unset what the check names, or"
        " declare it intended.",
        ("verify", "--inherit-environment"),
        external=True,
    ),
    _Step(
        "Code from outside the environment took part. Remove what the check names, or rebuild the"
        " environment.",
        _REBUILD,
        external=False,
    ),
)
_CHANGED = _Step(
    "Files of the environment were changed, added or removed after the build. Rebuild it: that"
    " removes what was added by hand.",
    _REBUILD,
)
_OUT_OF_MEMORY = _Step(
    "Memory ran out: end other programs that use the device, or raise the limit of the container,"
    " and try again."
)
_STEPS: dict[str, tuple[_Step, ...]] = {
    "accuracy": _NOT_LEARNED,
    "against": (
        _Step(
            "See what is new: other programs on this machine, its driver, the packages. Then"
            " compare again, on a quiet machine.",
            ("verify", "--against", "last"),
        ),
    ),
    "arithmetic": _WRONG_NUMBERS,
    "blind test": _NOT_LEARNED,
    "build": _OTHER_PACKAGES,
    "clock": (
        _Step(
            "The clock was changed during the run, or it is wrong: no time in this report counts.",
            ("verify",),
        ),
    ),
    "data copied": _WRONG_NUMBERS,
    "dataset": (
        _Step(
            "The images are not MNIST's. Leave out `--data`: MNIST is then downloaded and checked"
            " against its published hashes.",
            ("verify",),
        ),
    ),
    "determinism": (
        _Step(
            "The same steps gave different numbers twice. Find out whether the driver or the memory"
            " is at fault before relying on any result.",
            ("doctor",),
        ),
    ),
    "device": (
        _Step(
            "Find out why {framework} cannot use {device}: a driver, a permission, or the hardware"
            " itself.",
            ("doctor",),
        ),
        _Step(
            "See which profile fits this machine. Without `--force`, verify checks this before it"
            " starts.",
            ("detect",),
        ),
    ),
    "device used": (
        _Step(
            "The work was not done on {device}: do not take these times for its speed.", ("doctor",)
        ),
    ),
    "dropout": _WRONG_NUMBERS,
    "extension": _OTHER_PACKAGES,
    "gradients": _WRONG_NUMBERS,
    "import": _OTHER_PACKAGES,
    "isolation": _FOREIGN_CODE,
    "kernels": (
        _Step(
            "The extension was installed, but its kernels did not run: this environment is no"
            " faster than plain {framework}. `doctor` shows whether this CPU has what they need.",
            ("doctor",),
        ),
    ),
    "learning": _NOT_LEARNED,
    MATMUL_RATE: (
        _Step("Times of this report cannot be trusted: verify on a quiet machine.", ("verify",)),
    ),
    "origins": _FOREIGN_CODE,
    "precision": (
        _Step(
            "Something lowers the precision. Unset the variable or the setting that the check"
            " names, or use a profile that states that precision."
        ),
    ),
    "run": (
        _Step(
            "The verification did not finish. Try it again; if it fails twice, report it{end}.",
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
            "Workers of a DataLoader need shared memory: give containers more of it, such as"
            " `--shm-size=2g` of `docker run`, or load without workers."
        ),
    ),
    "step": _WRONG_NUMBERS,
    "vae": _WRONG_NUMBERS,
}
_EXISTING = {"external": ("--python", "PYTHON"), "apptainer": ("--sif", "FILE")}
"""Backend of reports on what envbuilder did not build here → the option that names it, and what
stands for a path that is no plain one."""
_ALSO_OF_WARNINGS = {"dataset", "shared memory", MATMUL_RATE}


class _About(Struct, frozen=True, kw_only=True):
    """The context that advice depends on, in addition to the check."""

    profile: str
    framework: str
    """Its name in sentences."""
    device: str
    backend: str
    """The backend if envbuilder built the environment; "" otherwise or if unknown."""
    external: bool
    existing: tuple[str, ...]
    """The option that names what was verified, if envbuilder did not build it here."""
    failed: frozenset[str]
    traceback: bool

    def command(self, name: str, *arguments: str) -> str:
        """Return an envbuilder command for the environment of this report."""
        options = ["--profile", self.profile] if self.profile and name != "detect" else []
        if self.existing and name == "verify":
            options += self.existing
        elif self.backend and name in {"build", "run", "verify"}:
            options += ["--backend", self.backend]
        return " ".join(("envbuilder", name, *options, *arguments))

    def advice(self, step: _Step) -> Advice:
        """Return the advice of a step for this report."""
        end = " with the traceback at the end of this page" if self.traceback else ""
        return Advice(
            sentence=step.sentence.format(
                framework=self.framework, device=self.device or "the device", end=end
            ),
            command=self.command(*step.command) if step.command else "",
        )


def advise(report: Report) -> tuple[Advice, ...]:
    """Return the next steps, most urgent first."""
    passed, ref = report.status == "passed", report.artifact.ref or ""
    option, stand_in = _EXISTING.get(report.backend or "", ("", ""))
    about = _About(
        profile=_name(report.profile),
        framework=title(_name(report.framework.name)) or "the framework",
        device=_name(report.device.requested),
        backend=report.backend if report.backend in BACKENDS else "",
        external=report.backend == "external",
        existing=(option, ref if _PATH.match(ref) else stand_in) if option else (),
        traceback=bool(report.traceback),
        failed=frozenset(check.name for check in report.checks if check.status == "failed"),
    )
    steps = [
        Advice(sentence=advice.sentence, command=advice.command, checks=(check.name,))
        for status in ("failed", "warning")
        for check in report.checks
        if check.status == status
        for advice in _about_check(about, check)
    ]
    if passed:
        steps += _after_success(report, about)
    elif not steps:
        sentence = "Run the verification again; this report does not say which check failed."
        steps.append(Advice(sentence=sentence, command=about.command("verify")))
    if not passed and not any(a.command.startswith("envbuilder verify") for a in steps):
        sentence = "Then verify again: only a new report counts."
        steps.append(Advice(sentence=sentence, command=about.command("verify")))
    return _merged(steps)


def _name(value: str | None) -> str:
    return value if value and _NAME.match(value) else ""


def _merged(steps: list[Advice]) -> tuple[Advice, ...]:
    """Merge equal advice into one item with all the checks that call for it."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for advice in steps:
        by_text.setdefault((advice.sentence, advice.command), []).extend(advice.checks)
    return tuple(
        Advice(sentence=sentence, command=command, checks=tuple(dict.fromkeys(checks)))
        for (sentence, command), checks in by_text.items()
    )


def _about_check(about: _About, check: Check) -> Iterator[Advice]:
    failed, (kind, _, backend) = check.status == "failed", check.name.partition(" ")
    if failed and _MEMORY.search(check.detail):
        yield about.advice(_OUT_OF_MEMORY)
    elif failed and check.name == "run" and _CHANGED_WORDS in check.detail:
        yield about.advice(_CHANGED)
    elif kind == "compile":
        yield _compiled(about, backend, failed=failed)
    elif failed or check.name in _ALSO_OF_WARNINGS:
        steps = _STEPS.get("extension" if kind == "extension" else check.name, ())
        if steps is _NOT_LEARNED and about.failed & _CAUSES:
            return
        yield from (about.advice(s) for s in steps if s.external in (None, about.external))


def _compiled(about: _About, backend: str, *, failed: bool) -> Advice:
    named = f"`{backend}`" if _NAME.match(backend) else "this backend"
    sound = not about.failed & {*_CAUSES, "accuracy", "learning"}
    eager = " Without `torch.compile` the results were right." if sound else ""
    how = "must not" if failed else "should not"
    sentence = f"You {how} use `torch.compile` with {named} in this environment.{eager}"
    return Advice(sentence=sentence)


def _after_success(report: Report, about: _About) -> Iterator[Advice]:
    if report.quick:
        yield Advice(
            sentence="This was a quick look. The full verification uses all of MNIST and"
            " compares with the CPU.",
            command=about.command("verify"),
        )
    elif len(report.epochs) == 1:
        yield Advice(
            sentence="One epoch was trained. With more, warm epochs are timed separately from the"
            " first, which includes start-up.",
            command=about.command("verify", "--epochs", "3"),
        )
    if about.external:
        yield Advice(sentence="The interpreter works as it is: use it.")
    elif about.existing:
        yield Advice(sentence="The image works as it is: use it.")
    elif about.profile:
        yield Advice(
            sentence="Work in this environment.",
            command=about.command("run", "--", "python", "train.py"),
        )
