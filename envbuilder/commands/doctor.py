"""`envbuilder doctor`: report the problems of this machine, each with its fix."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from envbuilder.builds import isolation
from envbuilder.builds.backends import integrity
from envbuilder.commands.options import (
    json_option,
    load_settings,
    profile_option,
    require_one_host,
    root_option,
    target_host_option,
)
from envbuilder.core import console
from envbuilder.core.errors import NOTHING_FITS, HostError, wrapped
from envbuilder.host import probe
from envbuilder.profiles import choice
from envbuilder.project import variants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.doctor.problem import Problem
    from envbuilder.host.model import Host
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.profile import Profile

_HEADINGS = {"blocks": "blocking", "limits": "degraded", "slows": "performance"}
_STYLES = {"blocks": "bold red", "limits": "yellow", "slows": "cyan"}


@click.command("doctor")
@profile_option
@root_option
@target_host_option
@json_option
def command(profile: str | None, root: Path, target_host: Path | None, as_json: bool) -> int:
    """Report the problems of this machine, worst first, each with its fix.

    Nothing is changed: a fix holds its commands, ready to copy. Also reports what costs
    performance. With --profile, reports what keeps that profile from working. Of a recorded tree or
    another host it reports what the recording shows, not disks and programs. Exits with 3 if a
    problem is blocking.

    \b
    Examples:
      envbuilder doctor
      envbuilder doctor --profile xpu
      envbuilder doctor --target-host machine.json
    """
    require_one_host(root, target_host)
    problems = _problems(profile, root, target_host)
    if as_json:
        console.data({"schema": 2, "problems": problems})
    else:
        _print(problems)
    if any(p.severity == "blocks" for p in problems):
        return NOTHING_FITS
    return 0


def _problems(name: str | None, root: Path, target_host: Path | None) -> tuple[Problem, ...]:
    from envbuilder.doctor import diagnosis, surroundings
    from envbuilder.doctor.surroundings import Around, Case

    settings = load_settings()
    library = variants.library(settings)
    requested = library.named(name) if name else None
    candidates = library.candidates(requested.framework if requested else None)
    locks = library.locks(candidates)
    around = Around()
    if root != Path("/"):
        host = probe.host(root)
    elif probe.is_target(target_host):
        host = probe.target(target_host)
    else:
        host = probe.host()
        chosen = requested or _chosen(library, settings, host)
        lock = locks.get(chosen.name) if chosen else None
        around = surroundings.look(chosen, lock, host, settings)
        altered = map(integrity.altered, sorted(settings.envs_dir.glob("[!.]*")))
        around = replace(
            around,
            shadowing=tuple(isolation.shadowing(os.environ)),
            altered=tuple(filter(None, altered)),
        )
    return diagnosis.diagnose(
        Case(
            host=host,
            around=around,
            candidates=candidates,
            locks=locks,
            requested=requested,
            advice=library.advice,
        )
    )


def _chosen(library: Library, settings: Settings, host: Host) -> Profile | None:
    try:
        return choice.choose(library, settings, host).profile
    except HostError:
        return None  # the diagnosis gives the reason


def _print(problems: Sequence[Problem]) -> None:
    from rich.text import Text

    out = console.rich_console()
    if not problems:
        out.print(Text("no problems found", style="green"))
    for problem in problems:
        heading = f"{_HEADINGS[problem.severity]}: "
        text = Text(wrapped(heading + problem.text, console.WIDTH))
        text.stylize(_STYLES[problem.severity], 0, len(heading))
        out.print(text, soft_wrap=True)
        out.print(Text(wrapped(problem.fix, console.WIDTH, "    ", "    ")), soft_wrap=True)
