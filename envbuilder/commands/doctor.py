"""`envbuilder doctor`: report the problems of this machine, and fix what is safe to fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.options import (
    json_option,
    profile_option,
    root_option,
    target_host_option,
)
from envbuilder.core import console, process
from envbuilder.core.errors import NOTHING_FITS, HostError
from envbuilder.core.text import wrapped
from envbuilder.host import assumed, probe
from envbuilder.packages import configuration
from envbuilder.profiles import choice
from envbuilder.project import catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.doctor.problem import Problem, Repair
    from envbuilder.doctor.repair import Done
    from envbuilder.doctor.surroundings import Around
    from envbuilder.host.model import Host
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.profile import Profile

_HEADINGS = {"blocks": "blocking", "limits": "degraded", "slows": "performance"}
_STYLES = {"blocks": "bold red", "limits": "yellow", "slows": "cyan"}


@click.command("doctor", short_help="Report problems of this machine, and fix what is safe.")
@profile_option
@click.option(
    "--fix", is_flag=True, help="Fix what is safe and reversible; shows the commands first."
)
@click.option("--yes", is_flag=True, help="With --fix: do not ask for confirmation.")
@root_option
@target_host_option
@json_option
def command(
    profile: str | None,
    fix: bool,
    yes: bool,
    root: Path,
    target_host: Path | None,
    as_json: bool,
) -> int:
    """Report the problems of this machine, worst first, each with its fix.

    Also reports what costs performance, and which indexes, mirrors and registries do not answer.
    With --profile, reports what keeps that profile from working. Of a recorded tree or another host
    it reports what the recording shows, not networks and disks. Exits with 3 if a problem is
    blocking; after --fix, if one is still blocking.

    \b
    Examples:
      envbuilder doctor
      envbuilder doctor --profile xpu
      envbuilder doctor --fix
      envbuilder doctor --target-host machine.json
    """
    live = root == Path("/") and not assumed.is_assumed(target_host)
    if fix and not live:
        raise click.UsageError(
            "--fix changes this machine; it cannot fix another (--root, --target-host)"
        )
    problems, around = _examine(profile, root, target_host)
    done: tuple[Done, ...] = ()
    if not as_json:
        _print(problems)
    if fix:
        done = _apply_fixes(problems, around, yes=yes)
        if done:
            problems, around = _examine(profile, root, target_host)
            if not as_json:
                console.result()
                console.result("After that:")
                _print(problems)
    if as_json:
        data = {"schema": 1, "problems": problems, "repairs": done}
        console.data(data)
    elif not fix and (count := len(_offered(problems, around))):
        which = "one of these" if count == 1 else f"{count} of these"
        console.result()
        console.result(f"`envbuilder doctor --fix` can fix {which}; it shows the commands first.")
    return NOTHING_FITS if any(p.severity == "blocks" for p in problems) else 0


def _examine(
    name: str | None, root: Path, target_host: Path | None
) -> tuple[tuple[Problem, ...], Around]:
    from envbuilder.doctor import diagnosis, surroundings

    settings = configuration.load()
    library = catalog.library(settings)
    requested = library.profile(name) if name else None
    candidates = library.candidates(requested.framework if requested else None)
    locks = library.locks(candidates)
    around = surroundings.Around()
    if root != Path("/"):
        host = probe.host(root)
    elif assumed.is_assumed(target_host):
        host = assumed.find(target_host)
    else:
        host = probe.host()
        chosen = requested or _chosen(library, settings, host)
        lock = locks.get(chosen.name) if chosen else None
        around = surroundings.look(chosen, lock, host, settings)
    return diagnosis.diagnose(host, candidates, locks, around, requested), around


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
        fix = wrapped(problem.fix, console.WIDTH, "    ", "    ")
        out.print(Text(fix), soft_wrap=True)


def _offered(problems: Sequence[Problem], around: Around) -> tuple[Repair, ...]:
    from envbuilder.doctor import repair

    return repair.offered(problems, may=around.root or "sudo" in around.programs)


def _apply_fixes(problems: Sequence[Problem], around: Around, *, yes: bool) -> tuple[Done, ...]:
    """Show the commands, ask for confirmation, run them. Without it, nothing is changed."""
    from envbuilder.doctor import repair

    offered = _offered(problems, around)
    if not offered:
        if problems:
            console.message()
            console.message("none of these can be fixed automatically")
        return ()
    console.message()
    console.message("These commands fix it:")
    for offer in offered:
        for argv in offer.commands:
            console.message(f"  {_typed(argv, around)}")
        for argv in offer.undo:
            console.message(f"    undo: {_typed(argv, around)}")
    if not yes and not (_is_terminal() and click.confirm("Run them?", err=True)):
        console.message("nothing was changed; --yes runs them without asking")
        return ()
    done = []
    for offer in offered:
        error = repair.apply(offer, root=around.root)
        done.append(repair.Done(repair=offer, error=error))
        success = f"done; {offer.after}" if offer.after else "done"
        outcome = f"failed: {error}" if error else success
        console.message(f"  {_typed(offer.commands[0], around)}: {outcome}")
        if error and not around.root and "password" in error:
            console.message("  run `sudo -v` first, then this again")
    return tuple(done)


def _typed(argv: Sequence[str], around: Around) -> str:
    return process.quoted(argv if around.root else ("sudo", *argv))


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
