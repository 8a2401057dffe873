"""What `verify --tune` shows and writes: a table, JSON, advice, the user's own profile."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuilder.core import console
from envbuilder.core import files as atomic
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.text import amount, percent, printable
from envbuilder.verify.tuning import measure as tune
from envbuilder.verify.tuning import profile as tuned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings
    from envbuilder.packages.mnist import Dataset
    from envbuilder.profiles.profile import Expects
    from envbuilder.verify.tuning.measure import Outcome, Start
    from envbuilder.verify.tuning.rules import Finding

SCHEMA = 1
_STYLES = {"helps": "green", "failed": "yellow", "less accurate": "red"}


def require_options(
    given: Mapping[str, object], *, tune: bool, write: bool, external: bool
) -> None:
    """`InvalidError` where options contradict one another; `given` are those of a verification."""
    others = [name for name, value in given.items() if value is not None]
    if write and not tune:
        raise InvalidError("--write writes what --tune found", "Add --tune.")
    if tune and others:
        raise InvalidError(
            f"--tune times settings and makes no verification: leave out {', '.join(others)}"
        )
    if write and external:
        raise InvalidError(
            "--write is for environments of a profile: what helps another interpreter may not help"
            " them",
            "Leave out --python, or --write.",
        )


def measure(
    start: Start, dataset: Dataset, expects: Expects, progress: Progress, *, quick: bool
) -> Outcome:
    """Try every setting in the environment that `start` runs the payload in; as `tune.run`."""
    return tune.run(tune.asking(start, dataset, expects), expects, progress, quick=quick)


def finish(
    outcome: Outcome,
    known: dict[str, Any],
    found: Settings,
    *,
    as_json: bool,
    output: Path | None,
    write: bool,
) -> int:
    """Print what was found, keep it in `output`, and with `write` ask and write the profile.

    Returns the exit code 0. `InvalidError` where a file would be overwritten and nobody can be
    asked; `BuildError` where something cannot be written. The results are printed all the same.
    """
    if not as_json:
        print_outcome(outcome, console.rich_console())
    errors = []
    path = None
    try:
        path = _write(outcome, known, found) if write else None
    except (BuildError, InvalidError) as error:
        errors.append(error)
    data = {"schema": SCHEMA, **known, **summary(outcome), "written": path}
    encoded = msgspec.json.encode(data)
    if as_json:
        click.echo(encoded.decode())
    if output is not None:
        try:
            atomic.save(output, encoded + b"\n", BuildError, "Name another place.")
        except BuildError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return 0


def summary(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain data: the JSON's `survey`, `defaults`, `settings` and so on."""
    return {
        "survey": outcome.survey,
        "defaults": outcome.defaults,
        "noise": outcome.noise,
        "settings": [_entry(f) for f in outcome.findings],
        "together": [_entry(f) for f in outcome.combined],
        "compilers": outcome.compilers,
    }


def _entry(finding: Finding) -> dict[str, Any]:
    setting = finding.setting
    return {
        "name": setting.name,
        "group": setting.group,
        "variables": setting.variables,
        "arguments": setting.arguments,
        "verdict": finding.verdict,
        "detail": finding.detail,
        "gain": finding.gain,
        "gains": [pair.gain for pair in finding.pairs],
        "samples_per_second": [pair.candidate.samples_per_second for pair in finding.pairs],
        "accuracy": finding.accuracy,
        "advice": setting.advice,
        "profile": setting.profile,
    }


def print_outcome(outcome: Outcome, out: Any) -> None:
    """The table, and what to do with it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", overflow="fold")
    table.add_column("gain", justify="right", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_row("as it is", "1.00×", percent(outcome.defaults.accuracy), "")
    for finding in (*_best_first(outcome.findings), *outcome.combined):
        why = f": {printable(finding.detail, 200)}" if finding.detail else ""
        verdict = Text(finding.verdict, style=_STYLES.get(finding.verdict, ""))
        table.add_row(
            finding.setting.name,
            "-" if finding.gain is None else f"{finding.gain:.2f}×",
            percent(finding.accuracy),
            verdict.append(why, style="default"),
        )
    out.print(table)
    for compiler in outcome.compilers:
        if not compiler.passed:
            text = f"torch.compile, {compiler.backend}: not tried: {compiler.detail}"
            out.print(Text(printable(text)))
    speed = amount(outcome.defaults.samples_per_second)
    out.print(
        Text(f"\nAs it is: {speed} images a second; trials of it differ by {outcome.noise:.0%}.")
    )
    for line in advice(outcome.findings):
        out.print(Text(line), soft_wrap=True)


def _best_first(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: -1.0 if f.gain is None else f.gain, reverse=True)


def advice(findings: Sequence[Finding]) -> list[str]:
    """A line for each setting that helped and how to have it."""
    told = [f for f in _best_first(findings) if f.verdict == "helps"]
    others = [f for f in _best_first(findings) if f.verdict.startswith("other")]
    lines = [] if told else ["Nothing that was tried helps here: keep the defaults."]
    for finding in told:
        how = finding.setting.advice or "--write puts it into a profile of yours"
        lines.append(f"Helps: {finding.setting.name}, {finding.gain:.2f}×: {how}")
    return lines + [
        f"Faster, but {f.verdict}: {f.setting.name}, {f.gain:.2f}×: {f.setting.advice}"
        for f in others
    ]


def _write(outcome: Outcome, known: dict[str, Any], found: Settings) -> str | None:
    """The path of the profile that was written; None where there was nothing to write."""
    if not outcome.written:
        click.echo("nothing that a profile can hold helps here; nothing was written", err=True)
        return None
    made = tuned.draft(known["profile"], outcome.written, machine(known), found)
    if not made.diff:
        click.echo(f"{made.path}: is as it would be written", err=True)
        return str(made.path)
    click.echo(printable_lines(made.diff), err=True)
    if made.old is not None and not _may_overwrite(made.path):
        click.echo("nothing was written", err=True)
        return None
    tuned.write(made)
    again = "" if made.lock else f"; lock it first: envbuilder lock --profile {made.name}"
    click.echo(
        f"written: {made.path}\nUse it: envbuilder verify --profile {made.name}{again}", err=True
    )
    return str(made.path)


def printable_lines(text: str) -> str:
    """Several lines that cannot move a terminal's cursor."""
    return "\n".join(printable(f"|{line}", 2000)[1:] for line in text.splitlines())


def machine(known: dict[str, Any]) -> str:
    """What the measured machine is called in a comment: its processor and CPUs."""
    cpu = (known.get("host") or {}).get("cpu") or {}
    name = str(cpu.get("model_name") or "a processor without a name")
    return f"{name}, {cpu['threads']} CPUs" if cpu.get("threads") else name


def _may_overwrite(path: Path) -> bool:
    """What the user says; `InvalidError` where there is nobody to ask."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidError(
            f"{path}: is there already, and there is no terminal to ask whether to overwrite it",
            "Remove it, or run this in a terminal.",
        )
    return click.confirm("Overwrite it?", err=True)
