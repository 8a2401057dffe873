"""`envbuilder clean`: remove what envbuilder made."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from typing import TYPE_CHECKING

import click

from envbuilder.commands import clean_sizes, removal
from envbuilder.commands.inventory import Inventory, Kept
from envbuilder.commands.options import json_option, load_settings
from envbuilder.containers.engine import connection
from envbuilder.core import console, text
from envbuilder.core.errors import BuildError, ToolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envbuilder.commands.clean_sizes import Entry
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core.console import Progress

_SHOWN = 20
"""Maximum number of names shown per reason for staying; --json lists them all."""


@click.command("clean", short_help="Remove what envbuilder made.")
@click.option("--profile", metavar="NAME", help="Only environments and images of this profile.")
@click.option("--store", is_flag=True, help="Also remove downloads, caches and logs.")
@click.option("--reports", is_flag=True, help="Also remove kept verification reports.")
@click.option(
    "--all-images", is_flag=True, help="Also remove images of other envbuilder installations."
)
@click.option("--volumes", is_flag=True, help="Also remove volumes of commands in containers.")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation on a terminal.")
@json_option
def command(
    profile: str | None,
    store: bool,
    reports: bool,
    all_images: bool,
    volumes: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove what envbuilder made here: environments, images, working folders of killed builds.

    What is removed is listed first, with what that frees. On a terminal, you are asked once; where
    the output goes elsewhere, or with --json, never.

    A file is removed only if it lies in a folder that envbuilder marked, an image only if this
    installation built it. What was examined and stays is listed with the reason. Reports are yours:
    they stay unless --reports is given (with --profile, it removes only those of that profile). So
    do volumes, which hold what your commands in containers keep, unless --volumes is given.

    \b
    Examples:
      envbuilder clean --dry-run
      envbuilder clean --profile cpu --yes
      envbuilder clean --store
      envbuilder clean --reports --profile cuda
    """
    for subject, is_given in (("--store: downloads", store), ("--volumes: they", volumes)):
        if is_given and profile is not None:
            raise click.UsageError(f"{subject} belong to no profile; leave out --profile")
    progress, settings = console.progress(), load_settings()
    scope = removal.Scope(
        profile=profile, store=store, reports=reports, all_images=all_images, volumes=volumes
    )
    with _connected(progress) as engine:
        with Inventory(settings) as inventory:
            chosen = removal.choose(scope, inventory, engine, progress)
            entries = removal.measured(chosen, engine, settings, progress)
            if not as_json and entries:
                _show(entries, progress)
            asks = entries and not (yes or as_json or dry_run) and _is_terminal()
            removed, failed = list[str](), list[Kept]()
            if dry_run:
                removed = chosen.names
            elif not asks:
                removed, failed = removal.remove(chosen, engine, entries, progress)
        if asks:
            if not click.confirm("Remove all of it?", err=True):
                console.message("nothing was removed; --yes removes it without asking")
                return
            # The locks were released: what is in use by now stays.
            with Inventory(settings) as inventory:
                present = removal.choose(scope, inventory, engine, progress)
                chosen = present.limited(chosen.names)
                removed, failed = removal.remove(chosen, engine, entries, progress)
    sizes = {entry.name: entry.bytes for entry in entries}
    freed = sum(sizes[name] or 0 for name in removed)
    if as_json:
        result = {"schema": 1, "removed": removed, "dry_run": dry_run}
        result |= {"bytes": freed, "sizes": {name: sizes[name] for name in removed}}
        stays = [{"name": k.name, "reason": k.reason} for k in inventory.staying]
        broken = [{"name": k.name, "reason": k.reason} for k in failed]
        console.data({**result, "kept": stays, "failed": broken})
    else:
        _report(removed, freed, dry_run=dry_run)
        if not removed and not failed:
            console.result("nothing to remove")
        for line in _lines(inventory.staying):
            progress.note(line)
    if failed:
        raise BuildError(
            "\n".join(f"{f.name}: cannot be removed: {f.reason}" for f in failed),
            "Check who owns it and whether something in it is running, then try again."
            " Everything else was removed.",
        )


def _is_terminal() -> bool:
    """Return whether somebody reads the output and can answer; a program that does is not asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _show(entries: Sequence[Entry], progress: Progress) -> None:
    """Print the table where the output is read: its own lines are for programs."""
    write = console.result if sys.stdout.isatty() else progress.note
    for line in clean_sizes.table(entries):
        write(line)


def _report(removed: Sequence[str], freed: int, *, dry_run: bool) -> None:
    """Print what is gone: for programs by name, on a terminal, where the table was, in one line."""
    if not sys.stdout.isatty():
        for name in removed:
            console.result(f"{'would remove' if dry_run else 'removed'} {name}")
    elif removed and not dry_run:
        console.result(f"removed: {text.stored(freed)} freed")


@contextlib.contextmanager
def _connected(progress: Progress) -> Iterator[Engine | None]:
    """Yield the engine; None, and a note if one is configured, if none answers."""
    try:
        engine = connection.connect()
    except ToolError as error:
        removal.note_unseen(error, progress)
        yield None
    else:
        with engine:
            yield engine


def _lines(staying: Iterable[Kept]) -> Iterable[str]:
    """Yield lines about what stays, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for item in staying:
        by_reason.setdefault(item.reason, []).append(item.name)
    for reason, names in by_reason.items():
        yield from textwrap.wrap(f"left alone: {reason}", console.WIDTH)
        yield from (f"  {name}" for name in names[:_SHOWN])
        if len(names) > _SHOWN:
            yield f"  and {len(names) - _SHOWN} more (--json lists them all)"
