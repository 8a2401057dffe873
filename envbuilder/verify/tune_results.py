"""Print the results of `tune`: a table, advice, a profile to save, or JSON.

Settings that help are specific to a host, so they are never written into an existing profile: a
draft is printed for the user to save. It extends the measured profile and is used only on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from msgspec import Struct

from envbuilder.core import console, files
from envbuilder.core.errors import BuildError
from envbuilder.core.text import amount, percent, printable
from envbuilder.profiles import profile
from envbuilder.verify.tune import merged
from envbuilder.verify.tune_settings import UNSHARED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.verify.tune import Finding, Outcome

SCHEMA, SUFFIX = 1, "-tuned"
_STYLES = {
    "helps": "green",
    "failed": "yellow",
    "machine busy": "yellow",
    "less accurate": "red",
}


def finish(
    outcome: Outcome,
    facts: dict[str, Any],
    settings: Settings,
    *,
    as_json: bool,
    output: Path | None,
) -> None:
    """Print the measurements and the advice, and write them to `output`.

    Raises `BuildError` if the file cannot be written; the results are printed in any case.
    """
    tuned = None
    # A setting that helps an external interpreter may not help the environment of a profile.
    if outcome.written and facts["backend"] != "external":
        tuned = draft(facts["profile"], outcome.written, machine(facts), settings)
    encoded = console.as_json(
        {"schema": SCHEMA, **facts, **summary(outcome), "draft": tuned.text if tuned else None}
    )
    if as_json:
        console.document(encoded)
    else:
        print_outcome(outcome, console.rich_console())
        if tuned is not None:
            where = f"next to your envbuilder.yaml or in {settings.config_dir}"
            console.document(f"\n{tuned.text}\n")
            console.result(f"To use it, save this as profiles/{tuned.name}.yaml {where}, then run")
            console.result(f"  envbuilder lock --profile {tuned.name}")
    if output is not None:
        files.save_output(output, f"{encoded}\n".encode(), BuildError, "Choose another path.")


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as data for JSON: `survey`, `defaults`, `settings` and so on."""
    return {
        "survey": outcome.survey,
        "defaults": outcome.defaults,
        "noise": outcome.noise,
        "speed": "not_judged" if outcome.busy else "judged",
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
        "caution": setting.caution,
        "profile": setting.profile,
    }


def print_outcome(outcome: Outcome, out: Any) -> None:
    """Print the table of settings, and the advice."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", overflow="fold")
    for name in ("gain", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_row("defaults", "1.00×", percent(outcome.defaults.accuracy), "")
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
    for line in _sentences(outcome):
        out.print(Text(line))
    for line in advice(outcome.findings):
        out.print(Text(line), soft_wrap=True)


def _sentences(outcome: Outcome) -> Iterator[str]:
    for compiler in outcome.compilers:
        if not compiler.passed:
            yield printable(f"torch.compile, {compiler.backend}: not tried: {compiler.detail}")
    speed = amount(outcome.defaults.samples_per_second)
    yield f"\nDefaults: {speed} images a second; their trials differ by {outcome.noise:.0%}."
    if outcome.busy:
        yield (
            f"The machine was busy during {outcome.busy} of the settings:"
            " nothing is decided about these. Measure again on a quiet machine."
        )
    policy = outcome.survey.wait_policy or ""
    if policy.lower() == "active":
        yield f"The defaults wait actively (OMP_WAIT_POLICY={policy}): {UNSHARED}."


def _best_first(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: -1.0 if f.gain is None else f.gain, reverse=True)


def advice(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each setting that helped, with how to apply it."""
    helpful = [f for f in _best_first(findings) if f.verdict == "helps"]
    if not helpful:
        judged = all(f.verdict != "machine busy" for f in findings)
        which = "these settings" if judged else "the settings that were judged"
        yield f"None of {which} helps on this machine: keep the defaults."
    for finding in helpful:
        setting = finding.setting
        how = "; ".join(filter(None, (setting.advice or "a profile can hold it", setting.caution)))
        yield f"Helps: {setting.name}, {finding.gain:.2f}×: {how}"
    for f in _best_first(findings):
        if f.verdict.startswith("other"):
            yield f"Faster, but {f.verdict}: {f.setting.name}, {f.gain:.2f}×: {f.setting.advice}"


def machine(facts: dict[str, Any]) -> str:
    """Return the measured machine's description for a comment: its processor and CPUs."""
    cpu = (facts.get("host") or {}).get("cpu") or {}
    name = str(cpu.get("model_name") or "an unnamed processor")
    return f"{name}, {cpu['threads']} CPUs" if cpu.get("threads") else name


class Draft(Struct, frozen=True, kw_only=True):
    """The name and YAML of a profile that the user may save."""

    name: str
    text: str


def draft(name: str, findings: Sequence[Finding], machine: str, settings: Settings) -> Draft:
    """Return the tuned variant of profile `name` with the settings of `findings`."""
    measured = profile.load(name, profile.search_path(settings.project, settings.config_dir))
    extends, variant, keys = name, name + SUFFIX, merged([f.setting for f in findings])
    if name.endswith(SUFFIX) and measured.extends is not None:
        # Its settings were in effect during the measurement, so they stay.
        extends, variant = measured.extends, name
        environment = {**measured.environment, **keys.get("environment", {})}
        keys = {"preload": list(measured.preload), **keys, "environment": environment}
    lines = [
        "From `envbuilder tune`, measured on one machine:",
        f"{printable(machine)}. Another machine needs its own: do not share this file.",
        *(
            f"{printable(f.setting.name)}: {f.gain or 0:.2f} times as fast"
            + (f" ({f.setting.caution})" if f.setting.caution else "")
            for f in findings
        ),
    ]
    data = {
        "extends": extends,
        "description": f"{extends}, tuned for this machine",
        # Machine-specific settings are never selected automatically.
        "opt_in": True,
        **keys,
        **({"warnings": list(measured.warnings)} if measured.warnings else {}),
    }
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return Draft(name=variant, text="".join(f"# {line}\n" for line in lines) + body)
