"""`envbuilder clean`: list what envbuilder created and how much space it takes, then remove it."""

from __future__ import annotations

import stat
import sys
import textwrap
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.inventory import (
    IMAGES,
    VOLUMES,
    Inventory,
    Item,
    Skipped,
    recorded_images,
    statuses,
)
from envbuilder.commands.options import json_option, load_settings
from envbuilder.containers.engine import connection, interface
from envbuilder.core import console, files, text
from envbuilder.core.errors import BuildError, EnvbuilderError, InvalidError, ToolError, clipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from envbuilder.containers.engine.interface import Engine

    Sizes = Mapping[str, int | None]

_SHOWN = 20
"""Maximum number of names to show for each reason why items stay, and of rows for each kind of
item. The output of `--json` contains all of them."""
_BLOCK = 512
"""Number of bytes in one unit of `st_blocks`, whatever the block size of the file system."""
_SIZE = 12
"""Width of the table's size column, in characters."""


@click.command("clean")
@click.option(
    "--profile", metavar="NAME", help="Only remove environments and images of this profile."
)
@click.option("--store", is_flag=True, help="Also remove downloads, caches and logs.")
@click.option("--volumes", is_flag=True, help="Also remove volumes of commands in containers.")
@click.option(
    "--all",
    "of_all",
    is_flag=True,
    help="Also remove environments and images that other projects use.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@json_option
def command(
    profile: str | None,
    store: bool,
    volumes: bool,
    of_all: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove what envbuilder made here: environments, images, working folders of killed builds.

    In a project, removes environments and images that only this project uses; elsewhere, those that
    no project uses any more. --all removes them even if projects use them. An environment is kept
    while a command runs in it.

    First lists everything to be removed, with the projects that use it and the space that this
    frees. On a terminal, asks once. If the output is not a terminal, and with --json, nothing is
    removed without --yes, and the exit code is 2.

    A file is removed only if it is in a folder that envbuilder marked, an image only if this
    installation built it. Anything else that was examined is listed with the reason why it stays.
    Volumes, with the data of your commands in containers, stay unless --volumes is given.

    \b
    Examples:
      envbuilder clean --dry-run
      envbuilder clean --profile cpu --yes
      envbuilder clean --all --store
    """
    if profile is not None and store:
        raise click.UsageError(
            "--store cannot be combined with --profile: downloads belong to no profile"
        )
    if profile is not None and volumes:
        raise click.UsageError(
            "--volumes cannot be combined with --profile: volumes belong to no profile"
        )
    progress = console.progress()
    settings = load_settings()
    examined = partial(_examined, progress=progress, profile=profile, store=store, volumes=volumes)
    with _connected(progress) as engine:
        with Inventory(settings, of_all=of_all) as inventory:
            items = examined(inventory, engine)
            sizes = measured(items, engine, progress)
            if not as_json and items:
                _show(items, sizes, progress)
            needs_consent = bool(items) and not (yes or dry_run)
            asks = needs_consent and not as_json and _is_terminal()
            refused = needs_consent and not asks
            dry_run = dry_run or refused
            removed: list[str] = []
            failed: list[Skipped] = []
            if dry_run:
                removed = [item.name for item in items]
            elif not asks:
                removed, failed = _remove(items, engine, sizes, progress)
        if asks:
            if not click.confirm("Remove all of this?", err=True):
                console.message("nothing was removed: add --yes to remove without asking")
                return
            # The locks were released: what is in use by now stays.
            with Inventory(settings, of_all=of_all) as inventory:
                items = [i for i in examined(inventory, engine) if i.name in sizes]
                removed, failed = _remove(items, engine, sizes, progress)
    freed = sum(sizes[name] or 0 for name in removed)
    if as_json:
        result = {"schema": 1, "removed": removed, "dry_run": dry_run}
        result |= {"bytes": freed, "sizes": {name: sizes[name] for name in removed}}
        result["users"] = {item.name: item.users for item in items if item.users}
        console.data({**result, "kept": inventory.staying, "failed": failed})
    else:
        _report(removed, freed, dry_run=dry_run)
        if not items:
            console.result("nothing to remove")
        for line in _lines(inventory.staying):
            progress.note(line)
    _require_removed(failed, refused=refused)


def _require_removed(failed: Sequence[Skipped], *, refused: bool) -> None:
    """Raise an error if an item could not be removed or the user did not agree to the removal.

    Raise `InvalidError` if the user did not agree (`refused`), or `BuildError` if a removal failed.
    """
    if refused:
        raise InvalidError("nothing was removed", "To remove the items listed above, add --yes.")
    if failed:
        raise BuildError(
            "\n".join(f.reason for f in failed),
            "Check who owns these items, make sure that no program in them runs, and try again."
            " Everything else was removed.",
        )


def _is_terminal() -> bool:
    """Return whether stdin and stdout are terminals, so that a person can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _show(items: Sequence[Item], sizes: Sizes, progress: console.Progress) -> None:
    """Print the table of items to stdout if that is a terminal, otherwise to stderr."""
    write = console.result if sys.stdout.isatty() else progress.note
    for line in table(items, sizes):
        write(line)


def _report(removed: Sequence[str], freed: int, *, dry_run: bool) -> None:
    """Print the freed space if stdout is a terminal, otherwise the name of each removed item.

    With `dry_run`, print nothing if stdout is a terminal, otherwise the names of the items that
    would be removed.
    """
    if not sys.stdout.isatty():
        for name in removed:
            console.result(f"{'would remove' if dry_run else 'removed'} {name}")
    elif removed and not dry_run:
        console.result(f"removed: {text.stored(freed)} freed")


@contextmanager
def _connected(progress: console.Progress) -> Iterator[Engine | None]:
    """Yield a connection to the container engine, or None if no engine responds.

    If an engine is configured but does not respond, print a note.
    """
    try:
        engine = connection.connect()
    except ToolError as error:
        _note_unseen(error, progress)
        yield None
    else:
        with engine:
            yield engine


def _note_unseen(error: ToolError, progress: console.Progress) -> None:
    """Print a note that images were not examined because the configured engine does not respond.

    Print nothing if no engine is configured.
    """
    if interface.configured_docker():
        progress.note(f"images were not examined: {error.message}")


def _lines(staying: Iterable[Skipped]) -> Iterable[str]:
    """Yield lines that list the items that were not removed, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for item in staying:
        by_reason.setdefault(item.reason, []).append(item.name)
    for reason, names in by_reason.items():
        yield from textwrap.wrap(f"left alone: {reason}", console.WIDTH)
        for name in names[:_SHOWN]:
            yield f"  {name}"
        if len(names) > _SHOWN:
            yield f"  and {len(names) - _SHOWN} more (--json lists them all)"


# --- examine, measure, remove


def _examined(
    inventory: Inventory,
    engine: Engine | None,
    *,
    progress: console.Progress,
    profile: str | None,
    store: bool,
    volumes: bool,
) -> list[Item]:
    """Return the items to remove, in the order in which to remove them.

    The items that must stay are recorded in `inventory`.
    """
    leftovers = inventory.leftovers()
    if profile is not None:
        inventory.staying.clear()
    inventory.environments(profile)
    inventory.items += leftovers if profile is None else []
    if store:
        inventory.downloads()
    if engine is None:
        return inventory.items
    try:
        images = engine.labelled()
        used = engine.used()
    except ToolError as error:
        _note_unseen(error, progress)
        return inventory.items
    inventory.images(images, recorded_images(inventory.settings, leftovers), profile, used)
    if profile is None:
        with suppress(ToolError):
            inventory.volumes(engine.volumes(), remove=volumes)
    return inventory.items


def measured(items: Sequence[Item], engine: Engine | None, progress: console.Progress) -> Sizes:
    """Return how many bytes are freed by removing each item, keyed by the item's name.

    The items are removed in the given order. A file with several hard links counts toward the item
    that has its last link, and is not counted at all if another link stays. An image counts when
    its last name is removed, without the data that it shares with other images. The value is None
    if no engine reports the size.
    """
    if not items:
        return {}
    sizes: dict[str, int | None] = {}
    seen = Counter[tuple[int, int]]()
    with progress.task("measure what can be removed"):
        shares: dict[str, int] = {}
        if engine is not None and any(item.kind == IMAGES for item in items):
            with suppress(ToolError):  # the sizes of images are unknown then
                shares = engine.shares()
        for item in items:
            if item.root is not None:
                sizes[item.name] = _freed(Path(item.name), seen)
            elif item.kind == IMAGES:
                sizes[item.name] = shares.get(item.id) if item.last else 0
            else:
                sizes[item.name] = None
    return sizes


def _freed(path: Path, seen: Counter[tuple[int, int]]) -> int:
    freed = 0
    for status in statuses(path):
        names = 1 if stat.S_ISDIR(status.st_mode) else status.st_nlink
        file = (status.st_dev, status.st_ino)
        seen[file] += names > 1
        if names == 1 or seen[file] == names:
            freed += status.st_blocks * _BLOCK
    return freed


def _remove(
    items: Sequence[Item], engine: Engine | None, sizes: Sizes, progress: console.Progress
) -> tuple[list[str], list[Skipped]]:
    """Remove items, and return the result.

    The result consists of the names of the removed items, and of the items that could not be
    removed.
    """
    removed: list[str] = []
    failed: list[Skipped] = []
    present: set[str] = set()
    if not items:
        return removed, failed
    with progress.task("remove", total=sum(sizes[item.name] or 0 for item in items)) as task:
        for item in items:
            if item.images & present:
                continue  # or the image would never be known as envbuilder's again
            if reason := _failure(item, engine):
                failed.append(Skipped(item.name, reason))
                present.add(item.id)
            else:
                removed.append(item.name)
            task.advance(sizes[item.name] or 0)
    return removed, failed


def _failure(item: Item, engine: Engine | None) -> str:
    """Remove an item. Return an error message if this fails, or "" if the item was removed."""
    try:
        if item.root is not None:
            files.remove(Path(item.name), item.root, item.aside)
            return ""
        assert engine is not None, "images and volumes are found in an engine"
        if item.kind == VOLUMES:
            engine.remove_volume(item.name)
        else:
            engine.remove(item.name, only=item.id)
    except EnvbuilderError as error:
        return error.message
    except OSError as error:
        return f"{item.name}: cannot be removed: {error.strerror or error}"
    return ""


# --- the table


def table(items: Sequence[Item], sizes: Sizes) -> Iterator[str]:
    """Yield the lines of the table: items by kind, with their users and sizes, then the total."""
    for kind in dict.fromkeys(item.kind for item in items):
        parts: dict[str, list[int | None]] = {}
        users: dict[str, dict[str, None]] = {}
        for item in items:
            if item.kind == kind:
                parts.setdefault(item.row, []).append(sizes[item.name])
                lines = (f"    used by {user}" for user in item.users)
                users.setdefault(item.row, {}).update(dict.fromkeys(lines))
        rows = {
            row: None if None in sizes_of_row else sum(filter(None, sizes_of_row))
            for row, sizes_of_row in parts.items()
        }
        if list(rows) == [kind]:
            yield _row(kind, rows[kind])
            continue
        yield kind
        order = sorted(rows, key=lambda row: -(rows[row] or 0))
        for row in order[:_SHOWN]:
            yield _row(f"  {clipped(row, console.WIDTH - _SIZE - 4)}", rows[row])
            yield from users[row]
        if rest := order[_SHOWN:]:
            yield _row(f"  and {len(rest)} more", sum(rows[row] or 0 for row in rest))
    # More may be freed: by layers that only removed images share, or where sizes are unknown.
    images = [item for item in items if item.kind == IMAGES and sizes[item.name] != 0]
    more = len(images) > 1 or any(sizes[item.name] is None for item in items)
    yield _row("at least" if more else "total", sum(sizes[item.name] or 0 for item in items))


def _row(label: str, size: int | None) -> str:
    shown = "?" if size is None else text.stored(size)
    return f"{label:<{console.WIDTH - _SIZE}}{shown:>{_SIZE}}"
