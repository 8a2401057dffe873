"""Print the results of `tune`: a table, advice, a profile to save, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from msgspec import Struct

from envbuilder.core import console, files
from envbuilder.core.errors import BuildError
from envbuilder.core.text import amount, percent, printable
from envbuilder.profiles import profile
from envbuilder.verify.tune import UNSHARED, merged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.verify.tune import Finding, Outcome

SCHEMA = 1
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
    profile = None
    # A setting that helps an external interpreter may not help the environment of a profile.
    if outcome.written and facts["backend"] != "external":
        profile = draft(facts["profile"], outcome.written, machine(facts), settings)
    encoded = console.as_json(
        {"schema": SCHEMA, **facts, **summary(outcome), "draft": profile.text if profile else None}
    )
    if as_json:
        console.document(encoded)
    else:
        print_outcome(outcome, console.rich_console())
        if profile is not None:
            console.result()
            console.document(profile.text.rstrip())
            console.result()
            console.result(
                f"To use it, save this as profiles/{profile.name}.yaml next to your"
                f" envbuilder.yaml or in {settings.config_dir}, then run"
            )
            console.result(f"  envbuilder lock --profile {profile.name}")
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
    table.add_column("gain", justify="right", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
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
    for compiler in outcome.compilers:
        if not compiler.passed:
            text = f"torch.compile, {compiler.backend}: not tried: {compiler.detail}"
            out.print(Text(printable(text)))
    speed = amount(outcome.defaults.samples_per_second)
    out.print(
        Text(f"\nDefaults: {speed} images a second; their trials differ by {outcome.noise:.0%}.")
    )
    if outcome.busy:
        out.print(
            Text(
                f"The machine was busy during {outcome.busy} of the settings:"
                " nothing is decided about these. Measure again on a quiet machine."
            )
        )
    policy = outcome.survey.wait_policy or ""
    if policy.lower() == "active":
        out.print(Text(f"The defaults wait actively (OMP_WAIT_POLICY={policy}): {UNSHARED}."))
    for line in advice(outcome.findings):
        out.print(Text(line), soft_wrap=True)


def _best_first(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: -1.0 if f.gain is None else f.gain, reverse=True)


def advice(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each setting that helped, with how to apply it."""
    helpful = [f for f in _best_first(findings) if f.verdict == "helps"]
    others = [f for f in _best_first(findings) if f.verdict.startswith("other")]
    judged = [f for f in findings if f.verdict != "machine busy"]
    lines = []
    if not helpful:
        which = (
            "these settings" if len(judged) == len(findings) else "the settings that were judged"
        )
        lines = [f"None of {which} helps on this machine: keep the defaults."]
    for finding in helpful:
        setting = finding.setting
        how = "; ".join(filter(None, (setting.advice or "a profile can hold it", setting.caution)))
        lines.append(f"Helps: {setting.name}, {finding.gain:.2f}×: {how}")
    return lines + [
        f"Faster, but {f.verdict}: {f.setting.name}, {f.gain:.2f}×: {f.setting.advice}"
        for f in others
    ]


def machine(facts: dict[str, Any]) -> str:
    """Return the measured machine's description for a comment: its processor and CPUs."""
    cpu = (facts.get("host") or {}).get("cpu") or {}
    name = str(cpu.get("model_name") or "an unnamed processor")
    return f"{name}, {cpu['threads']} CPUs" if cpu.get("threads") else name


SUFFIX = "-tuned"


class Draft(Struct, frozen=True, kw_only=True):
    """The name and YAML of a profile that the user may save."""

    name: str
    text: str


def draft(name: str, findings: Sequence[Finding], machine: str, settings: Settings) -> Draft:
    """Return the tuned variant of profile `name` with the settings of `findings`."""
    folders = profile.search_path(settings.project, settings.config_dir)
    keys, measured = merged([f.setting for f in findings]), profile.load(name, folders)
    extends, variant = name, name + SUFFIX
    if name.endswith(SUFFIX) and measured.extends is not None:
        # Its settings were in effect during the measurement, so they stay.
        extends, variant = measured.extends, name
        environment = {**measured.environment, **keys.get("environment", {})}
        keys = {"preload": list(measured.preload), **keys, "environment": environment}
    return Draft(name=variant, text=_text(extends, machine, findings, keys, measured.warnings))


def _text(
    extends: str,
    machine: str,
    findings: Sequence[Finding],
    keys: dict[str, Any],
    warnings: Sequence[str],
) -> str:
    lines = [
        "# From `envbuilder tune`, measured on one machine:",
        f"# {printable(machine)}. Another machine needs its own: do not share this file.",
        *(
            f"# {printable(f.setting.name)}: {f.gain or 0:.2f} times as fast"
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
        **({"warnings": list(warnings)} if warnings else {}),
    }
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return "\n".join(lines) + "\n" + body
