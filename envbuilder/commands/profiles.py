"""`envbuilder profiles`: list all profiles, or show one of them."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click
import msgspec

from envbuilder.commands.options import json_option, load_settings, target_host_option
from envbuilder.core import console
from envbuilder.core.errors import Hint, InvalidError, wrapped
from envbuilder.host import probe
from envbuilder.profiles import fit, library, lock as profile_lock
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.profile import canonical, load as load_profile, names, search_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.host.gpus.accelerator import Level
    from envbuilder.host.model import Host
    from envbuilder.profiles.releases import Build


_FITS = {"fits": "yes", "warnings": "yes, with warnings", "no": "no"}
_MARKS: dict[fit.Verdict, str] = {"fits": "✓", "warnings": "!", "no": " "}


@click.command("profiles")
@click.argument("name", required=False)
@target_host_option
@json_option
def command(name: str | None, target_host: Path | None, as_json: bool) -> None:
    """List the shipped profiles and your own, and whether they fit this machine.

    With NAME, show the resolved profile, its lock, whether it fits here, and its framework's
    releases for its hardware.

    \b
    Examples:
      envbuilder profiles
      envbuilder profiles zendnn --json
      envbuilder profiles cuda --target-host machine.json
    """
    settings = load_settings()
    folders = search_path(settings.project, settings.config_dir)
    host = probe.target(target_host)
    if name:
        _show(name, folders, host, as_json=as_json)
        return
    rows = [_row(name, folders, host) for name in names(folders)]
    if as_json:
        console.data({"schema": 1, "profiles": rows})
        return
    whole = ("profile", "framework", "device", "backends", "lock")
    columns = {**{name: {"no_wrap": True} for name in whole}, "fits here": {}}
    cells = (
        (
            row["name"],
            row["framework"],
            row["accelerator"],
            " ".join(row["backends"]),
            row["lock"],
            _FITS[row["fits"]],
        )
        for row in rows
    )
    console.rich_console().print(console.table(columns, cells))
    console.result()
    console.hints([Hint("Why a profile does not fit", ("profiles", "NAME"))])


def _show(name: str, folders: Sequence[Path], host: Host, *, as_json: bool) -> None:
    profile = load_profile(name, folders)
    row = _row(name, folders, host)
    builds = fit.serving(profile, host)
    if as_json:
        keys = ("lock", "lock_reason", "lock_note", "fits", "reasons", "way_out")
        shown = {key: row[key] for key in keys}
        entries = [
            {**msgspec.to_builtins(build), "fits": fit.VERDICTS[level]} for build, level in builds
        ]
        console.data({"schema": 1, "profile": canonical(profile), **shown, "releases": entries})
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
        ("fits here", _FITS[row["fits"]]),
    ):
        _print(f"  {label:<12} ", value)
    for reason in row["reasons"]:
        _print("    - ", reason)
    if row["way_out"]:
        _print("    ", row["way_out"])
    for warning in profile.notes():
        _print("  note: ", warning)
    if builds:
        _print_releases(FRAMEWORKS[profile.framework].title, builds)


def _print_releases(title: str, builds: Sequence[tuple[Build, Level]]) -> None:
    """Print a table of releases, with each release's builds and supported Python versions.

    Marks show which of the builds fit this machine.
    """
    columns: dict[str, dict[str, Any]] = {
        title: {},
        "builds (✓ fits here, ! may fit)": {},
        "Python": {},
    }
    rows = []
    for release, group in groupby(builds, key=lambda pair: pair[0].release):
        rated = [*group]
        marked = (f"{_MARKS[fit.VERDICTS[level]]} {b.build}" for b, level in reversed(rated))
        pythons = rated[0][0].pythons
        rows.append((release, "  ".join(marked), f"{pythons[0]} to {pythons[-1]}"))
    console.result()
    console.rich_console().print(console.table(columns, rows))
    drivers: dict[str, list[str]] = {}
    for build, _ in reversed(builds):
        if build.driver and build.build not in drivers.setdefault(build.driver, []):
            drivers[build.driver].append(build.build)
    for driver, names_of in drivers.items():
        _print(f"  driver {driver} and later: ", ", ".join(names_of))


def _print(label: str, text: str) -> None:
    """Print a text after a label. On a terminal, wrap the text and indent continuation lines."""
    line = f"{label}{text}"
    if sys.stdout.isatty():
        line = wrapped(text, console.width(), label, " " * len(label))
    console.result(line)


def _row(name: str, folders: Any, host: Any) -> dict[str, Any]:
    profile = load_profile(name, folders)
    path = profile_lock.path_for(name, folders)
    state = "missing"
    reason = ""
    lock = None
    if path is not None:
        try:
            lock = profile_lock.load(path)
            stale = lock.inputs != profile_lock.inputs_digest(profile)
            state = "stale" if stale else lock.state
            reason = lock.why
        except InvalidError as error:
            state = "damaged"
            reason = error.message
    hidden = library.hidden_lock(profile, folders)
    judged = fit.judge(profile, host, lock=lock)
    return {
        "name": name,
        "description": profile.description,
        "framework": profile.framework,
        "accelerator": profile.accelerator,
        "platforms": profile.platforms,
        "backends": profile.backends,
        "lock": state,
        "lock_reason": reason,
        "lock_note": hidden.sentence if hidden else "",
        "fits": judged.verdict,
        "reasons": judged.reasons,
        "way_out": judged.workaround,
    }
