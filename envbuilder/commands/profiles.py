"""`envbuilder profiles`: list profiles, or show one."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from envbuilder.commands.options import json_option, load_settings
from envbuilder.core import console
from envbuilder.core.errors import InvalidError
from envbuilder.host import probe
from envbuilder.profiles import library, lock as profile_lock
from envbuilder.profiles.fit import judge
from envbuilder.profiles.profile import canonical, load as load_profile, names, search_path


@click.group("profiles", invoke_without_command=True, short_help="List profiles, or show one.")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the shipped profiles and your own, and whether they fit this machine.

    \b
    Examples:
      envbuilder profiles
      envbuilder profiles show cuda
    """
    if ctx.invoked_subcommand is not None:
        return

    settings = load_settings()
    folders = search_path(settings.project, settings.config_dir)
    host = probe.host()
    rows = [_row(name, folders, host) for name in names(folders)]
    if as_json:
        console.data({"schema": 1, "profiles": rows})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("profile", "framework", "device", "backends", "lock", "fits here"):
        table.add_column(heading, no_wrap=heading != "fits here")
    for row in rows:
        table.add_row(
            row["name"],
            row["framework"],
            row["accelerator"],
            " ".join(row["backends"]),
            row["lock"],
            Text({"fits": "yes", "warnings": "yes, with warnings", "no": "no"}[row["fits"]]),
        )
    console.rich_console().print(table)
    console.result()
    console.result("Why a profile does not fit: envbuilder profiles show NAME")


@command.command("show", short_help="Show one profile, its lock, and whether it fits here.")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show one profile as envbuilder reads it.

    \b
    Example:
      envbuilder profiles show zendnn --json
    """
    settings = load_settings()
    folders = search_path(settings.project, settings.config_dir)
    profile = load_profile(name, folders)
    row = _row(name, folders, probe.host())
    if as_json:
        keys = ("lock", "lock_reason", "lock_note", "fits", "reasons", "way_out")
        shown = {key: row[key] for key in keys}
        console.data({"schema": 1, "profile": canonical(profile), **shown})
        return
    console.result(f"{name}: {profile.description}")
    for label, value in (
        ("framework", profile.framework),
        ("accelerator", profile.accelerator),
        ("platforms", ", ".join(profile.platforms)),
        ("python", f"{', '.join(profile.python.supported)} (default {profile.python.default})"),
        ("backends", ", ".join(profile.backends)),
        ("requirements", ", ".join(profile.requirements)),
        ("lock", f"{row['lock']}{': ' + row['lock_reason'] if row['lock_reason'] else ''}"),
        *([("", row["lock_note"])] if row["lock_note"] else []),
        ("fits here", {"fits": "yes", "warnings": "yes, with warnings", "no": "no"}[row["fits"]]),
    ):
        _print(f"  {label:<12} ", value)
    for reason in row["reasons"]:
        _print("    - ", reason)
    if row["way_out"]:
        _print("    ", row["way_out"])
    for warning in profile.warnings:
        _print("  note: ", warning)


def _print(label: str, text: str) -> None:
    """Print a line; on a terminal, wrap it between words and indent it below its label."""
    out = console.rich_console()
    lines = [text]
    if out.is_terminal:
        width = max(40, out.width - len(label))
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines):
        console.result(f"{' ' * len(label) if number else label}{line}")


def _row(name: str, folders: Any, host: Any) -> dict[str, Any]:
    profile = load_profile(name, folders)
    path = profile_lock.path_for(name, folders)
    state, reason, lock = "missing", "", None
    if path is not None:
        try:
            lock = profile_lock.load(path)
            stale = lock.inputs != profile_lock.inputs_digest(profile)
            state, reason = ("stale" if stale else lock.state), lock.reason
        except InvalidError as error:
            state, reason = "damaged", error.message
    hidden = library.hidden_lock(profile, folders)
    fit = judge(profile, host, lock=lock)
    return {
        "name": name,
        "description": profile.description,
        "framework": profile.framework,
        "accelerator": profile.accelerator,
        "platforms": profile.platforms,
        "backends": profile.backends,
        "lock": state,
        "lock_reason": reason,
        "lock_note": hidden.sentence(lock) if hidden else "",
        "fits": fit.verdict,
        "reasons": fit.reasons,
        "way_out": fit.workaround,
    }
