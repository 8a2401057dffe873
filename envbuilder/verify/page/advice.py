"""Derive the next steps from a report's failed checks and warnings.

Advice covers only what the report supports: each item names the check it comes from, and a command
only if one helps. Commands contain no text from a report except names and paths that match a safe
pattern, since users copy commands without reading them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core.types import BACKENDS
from envbuilder.verify.page.values import items, mapping, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_PATH = re.compile(r"/[A-Za-z0-9._/+-]{1,200}\Z")
_CHANGED = "changed after the build"
"""How the integrity check of an environment words its failure."""
_MEMORY = re.compile(r"out of memory|memoryerror|cannot allocate memory", re.IGNORECASE)


class Advice(Struct, frozen=True, kw_only=True):
    """One next step: a sentence, its command, and the checks that call for it."""

    sentence: str
    command: str = ""
    checks: tuple[str, ...] = ()


class _About(Struct, frozen=True, kw_only=True):
    """The context that advice depends on, in addition to the check."""

    profile: str
    device: str
    backend: str
    """The backend if envbuilder built the environment; "" otherwise or if unknown."""
    external: bool
    python: str
    """The verified interpreter, if it is external."""
    failed: frozenset[str]
    traceback: bool

    def command(self, name: str, *arguments: str) -> str:
        """Return an envbuilder command for the environment of this report."""
        options = ["--profile", self.profile] if self.profile else []
        if self.external and name == "verify":
            options += ["--python", self.python]
        elif self.backend and name in {"build", "run", "verify"}:
            options += ["--backend", self.backend]
        return " ".join(("envbuilder", name, *options, *arguments))


def advise(report: Mapping[str, Any], *, passed: bool) -> tuple[Advice, ...]:
    """Return the next steps, most urgent first; `passed` is the page's own verdict."""
    checks = [
        (text(check.get("name"), 80), check.get("status"), text(check.get("detail")))
        for check in map(mapping, items(report.get("checks")))
    ]
    backend, python = report.get("backend"), mapping(report.get("artifact")).get("ref")
    about = _About(
        profile=_name(report.get("profile")),
        device=_name(mapping(report.get("device")).get("requested")),
        backend=backend if isinstance(backend, str) and backend in BACKENDS else "",
        external=backend == "external",
        python=python if isinstance(python, str) and _PATH.match(python) else "PYTHON",
        traceback=bool(text(report.get("traceback"))),
        failed=frozenset(name for name, status, _ in checks if status == "failed"),
    )
    found = [
        Advice(sentence=advice.sentence, command=advice.command, checks=(name,))
        for wanted in ("failed", "warning")
        for name, status, detail in checks
        if status == wanted
        for advice in _about_check(about, name, detail, failed=status == "failed")
    ]
    if passed:
        found += _after_success(report, about)
    elif not found:
        sentence = "Run the verification again; this report does not say which check failed."
        found.append(Advice(sentence=sentence, command=about.command("verify")))
    if not passed:
        sentence = "Then verify again: only a new report counts."
        if not any(a.command.startswith("envbuilder verify") for a in found):
            found.append(Advice(sentence=sentence, command=about.command("verify")))
    return _merged(found)


def _name(value: Any) -> str:
    return value if isinstance(value, str) and _NAME.match(value) else ""


def _merged(found: list[Advice]) -> tuple[Advice, ...]:
    """Merge equal advice into one item with all the checks that call for it."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for advice in found:
        by_text.setdefault((advice.sentence, advice.command), []).extend(advice.checks)
    return tuple(
        Advice(sentence=sentence, command=command, checks=tuple(dict.fromkeys(checks)))
        for (sentence, command), checks in by_text.items()
    )


def _about_check(about: _About, name: str, detail: str, *, failed: bool) -> Iterator[Advice]:
    if failed and _MEMORY.search(detail):
        yield Advice(
            sentence="Memory ran out: end other programs that use the device, or raise the limit of"
            " the container, and try again."
        )
        return
    if failed and name == "run" and _CHANGED in detail:
        yield from _changed(about)
        return
    kind, _, backend = name.partition(" ")
    if kind == "compile":
        yield from _compiled(about, backend.strip(), failed=failed)
        return
    found = _ADVICE.get("extension" if kind == "extension" else name)
    if found is not None and (failed or name in _ALSO_OF_WARNINGS):
        yield from found(about)


def _other_packages(about: _About) -> Iterator[Advice]:
    if about.external:
        yield Advice(
            sentence="This interpreter does not have the packages that the profile needs. Install"
            " what the check names, or let envbuilder build an environment.",
            command=about.command("build"),
        )
        return
    yield Advice(
        sentence="The environment does not hold what its lock names. Build it anew.",
        command=about.command("build", "--rebuild"),
    )


def _no_device(about: _About) -> Iterator[Advice]:
    device = about.device or "the device"
    yield Advice(
        sentence=f"Find out what stands between PyTorch and {device}: a driver, a right, or the"
        " hardware itself.",
        command=about.command("doctor"),
    )
    yield Advice(
        sentence="See which profile fits this machine. Without `--force`, verify asks this before"
        " it starts.",
        command="envbuilder detect",
    )


def _elsewhere(about: _About) -> Iterator[Advice]:
    device = about.device or "the device asked for"
    yield Advice(
        sentence=f"The work was not done on {device}: do not take these times for its speed.",
        command=about.command("doctor"),
    )


def _wrong_numbers(about: _About) -> Iterator[Advice]:
    yield Advice(
        sentence="The numbers are wrong: do not train with this combination of device, driver and"
        " PyTorch. See whether its driver is known to be too old.",
        command=about.command("doctor"),
    )
    if not about.external:
        yield Advice(
            sentence="Rule out a damaged environment by building it anew. If the fault stays, it is"
            " PyTorch's or the driver's; this report is the evidence.",
            command=about.command("build", "--rebuild"),
        )


def _not_learned(about: _About) -> Iterator[Advice]:
    if about.failed & {"arithmetic", "gradients", "vae"}:
        return  # The advice for those checks covers the cause.
    yield Advice(
        sentence="The network did not learn as it must. The seed is fixed: the same figure a second"
        " time means that chance is not the reason.",
        command=about.command("verify"),
    )


def _other_data(about: _About) -> Iterator[Advice]:
    yield Advice(
        sentence="The digits are not MNIST's. Leave out `--data`: then MNIST is fetched, and"
        " checked against its published hashes.",
        command=about.command("verify"),
    )


def _compiled(about: _About, backend: str, *, failed: bool) -> Iterator[Advice]:
    named = f"`{backend}`" if _NAME.match(backend) else "this backend"
    sound = not about.failed & {"arithmetic", "gradients", "vae", "accuracy", "learning"}
    eager = " Without `torch.compile` the results were right." if sound else ""
    how = "must not" if failed else "should not"
    yield Advice(sentence=f"With {named} you {how} use `torch.compile` in this environment.{eager}")


def _precision(about: _About) -> Iterator[Advice]:
    del about
    yield Advice(
        sentence="Something lowers the precision. Unset the variable or the setting that the check"
        " names, or use a profile that states that precision."
    )


def _no_kernels(about: _About) -> Iterator[Advice]:
    yield Advice(
        sentence="The extension was there, but its kernels did not run: this environment is no"
        " faster than plain PyTorch. `doctor` says whether this CPU has what they need.",
        command=about.command("doctor"),
    )


def _changed(about: _About) -> Iterator[Advice]:
    yield Advice(
        sentence="Files of the environment were changed, added or removed after the build. Rebuild"
        " it: that removes what was added by hand.",
        command=about.command("build", "--rebuild"),
    )


def _foreign_code(about: _About) -> Iterator[Advice]:
    if about.external:
        yield Advice(
            sentence="Code from outside the interpreter's environment took part. Unset what the"
            " check names, or say that they are meant.",
            command=about.command("verify", "--inherit-environment"),
        )
        return
    yield Advice(
        sentence="Code from outside the environment took part. Remove what the check names, or"
        " rebuild the environment.",
        command=about.command("build", "--rebuild"),
    )


def _not_deterministic(about: _About) -> Iterator[Advice]:
    yield Advice(
        sentence="The same steps gave different numbers twice. Find out whether the driver or the"
        " memory is at fault before relying on any result.",
        command=about.command("doctor"),
    )


def _not_together(about: _About) -> Iterator[Advice]:
    yield Advice(
        sentence="The devices did not train together as they must. Verify them one at a time to"
        " find the one at fault.",
        command=about.command("verify", "--devices", "0"),
    )


def _broke_off(about: _About) -> Iterator[Advice]:
    end = " with the traceback at the end of this page" if about.traceback else ""
    yield Advice(
        sentence=f"The verification broke off. Try it again; if it does so twice, report it{end}.",
        command=about.command("verify"),
    )


def _shared_memory(about: _About) -> Iterator[Advice]:
    del about
    yield Advice(
        sentence="Workers of a DataLoader need shared memory: give containers more of it, such as"
        " `--shm-size=2g` of `docker run`, or load without workers."
    )


def _clock(about: _About) -> Iterator[Advice]:
    yield Advice(
        sentence="The clock was set while this ran, or does not go right: no time in this report"
        " counts.",
        command=about.command("verify"),
    )


def _slower(about: _About) -> Iterator[Advice]:
    yield Advice(
        sentence="See what is new: other programs on this machine, its driver, the packages. Then"
        " compare again, on a quiet machine.",
        command=about.command("verify", "--against", "last"),
    )


_ADVICE: dict[str, Callable[[_About], Iterator[Advice]]] = {
    "accuracy": _not_learned,
    "against": _slower,
    "arithmetic": _wrong_numbers,
    "blind test": _not_learned,
    "build": _other_packages,
    "clock": _clock,
    "data copied": _wrong_numbers,
    "dataset": _other_data,
    "device": _no_device,
    "determinism": _not_deterministic,
    "device used": _elsewhere,
    "dropout": _wrong_numbers,
    "extension": _other_packages,
    "gradients": _wrong_numbers,
    "import": _other_packages,
    "isolation": _foreign_code,
    "kernels": _no_kernels,
    "learning": _not_learned,
    "origins": _foreign_code,
    "precision": _precision,
    "run": _broke_off,
    "several devices": _not_together,
    "shared memory": _shared_memory,
    "vae": _wrong_numbers,
}
_ALSO_OF_WARNINGS = {"dataset", "shared memory"}


def _after_success(report: Mapping[str, Any], about: _About) -> Iterator[Advice]:
    training = mapping(report.get("training"))
    if report.get("quick") is True:
        yield Advice(
            sentence="This was the quick look. The whole verification takes all of MNIST and"
            " compares with the CPU.",
            command=about.command("verify"),
        )
    elif len(items(training.get("epochs"))) == 1:
        yield Advice(
            sentence="One epoch was trained. With more, warm epochs are timed apart from the"
            " first, which pays for start-up.",
            command=about.command("verify", "--epochs", "3"),
        )
    if about.external:
        yield Advice(sentence="The interpreter is good as it is: use it.")
    elif about.profile:
        yield Advice(
            sentence="Work in this environment.",
            command=about.command("run", "--", "python", "train.py"),
        )
