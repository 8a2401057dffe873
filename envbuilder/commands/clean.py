"""`envbuilder clean`: remove what envbuilder made."""

from __future__ import annotations

import contextlib
import os
import textwrap
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from envbuilder.commands import image_inventory, volume_inventory
from envbuilder.commands.image_inventory import Listed, Recorded, Records, Removal
from envbuilder.commands.inventory import Inventory, Item, Kept
from envbuilder.commands.options import json_option
from envbuilder.containers.engine import connection
from envbuilder.core import console, folders
from envbuilder.core.errors import BuildError, EnvbuilderError, ToolError
from envbuilder.packages import configuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envbuilder.containers.engine.interface import Engine, Image

_SHOWN = 20
"""Maximum number of names shown per reason for staying; --json lists them all."""


class _Chosen(Struct, frozen=True):
    """What to remove, in this order: files, images, and the records of images gone by then."""

    files: tuple[Item, ...]
    images: tuple[Removal, ...]
    records: tuple[Records, ...]

    @property
    def names(self) -> list[str]:
        """Return the names shown to the user."""
        records = (item for group in self.records for item in group.items)
        return [
            *(str(item.path) for item in self.files),
            *(image.ref for image in self.images),
            *(str(item.path) for item in records),
        ]


@click.command("clean", short_help="Remove what envbuilder made.")
@click.option("--profile", metavar="NAME", help="Only environments and images of this profile.")
@click.option("--store", is_flag=True, help="Also remove downloads, caches and logs.")
@click.option("--reports", is_flag=True, help="Also remove kept verification reports.")
@click.option(
    "--all-images", is_flag=True, help="Also remove images of other envbuilder installations."
)
@click.option("--volumes", is_flag=True, help="Also remove volumes of commands in containers.")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@json_option
def command(
    profile: str | None,
    store: bool,
    reports: bool,
    all_images: bool,
    volumes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove what envbuilder made here: environments, images, working folders of killed builds.

    A file is removed only if it lies in a folder that envbuilder marked, an image only if this
    installation built it. What was examined and stays is listed with the reason. Reports are yours:
    they stay unless --reports is given (with --profile, it removes only those of that profile). So
    do volumes, which hold what your commands in containers keep, unless --volumes is given.

    \b
    Examples:
      envbuilder clean --dry-run
      envbuilder clean --profile cpu
      envbuilder clean --store
      envbuilder clean --reports --profile cuda
    """
    for subject, is_given in (("--store: downloads", store), ("--volumes: they", volumes)):
        if is_given and profile is not None:
            raise click.UsageError(f"{subject} belong to no profile; leave out --profile")
    progress = console.progress()
    with Inventory(configuration.load()) as inventory, _connected(progress) as engine:
        chosen = _choose(inventory, engine, profile, progress, store, reports, all_images)
        removed, failed = (chosen.names, []) if dry_run else _remove(chosen, engine)
        stored = volume_inventory.names(engine, os.getuid()) if profile is None else ()
        if not volumes:
            inventory.staying += [Kept(name, volume_inventory.STAYS) for name in stored]
        elif dry_run:
            removed += stored
        else:
            gone, stuck = volume_inventory.remove(engine, stored)
            removed, failed = removed + gone, failed + stuck
    if as_json:
        result = {"schema": 1, "removed": removed, "dry_run": dry_run}
        stays = [{"name": k.name, "reason": k.reason} for k in inventory.staying]
        broken = [{"name": k.name, "reason": k.reason} for k in failed]
        console.data({**result, "kept": stays, "failed": broken})
    else:
        for name in removed:
            console.result(f"{'would remove' if dry_run else 'removed'} {name}")
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


@contextlib.contextmanager
def _connected(progress: console.Progress) -> Iterator[Engine | None]:
    """Yield the engine; None, and a note if one is configured, if none answers."""
    try:
        engine = connection.connect()
    except ToolError as error:
        _note_unseen(error, progress)
        yield None
    else:
        with engine:
            yield engine


def _note_unseen(error: ToolError, progress: console.Progress) -> None:
    if connection.configured():
        progress.note(f"images were not examined: {error.message}")


def _choose(
    inventory: Inventory,
    engine: Engine | None,
    profile: str | None,
    progress: console.Progress,
    store: bool,
    reports: bool,
    all_images: bool,
) -> _Chosen:
    leftovers = list(inventory.leftovers())
    if profile is not None:
        inventory.staying.clear()
    inventory.environments(profile)
    inventory.items += leftovers if profile is None else []
    if store:
        inventory.downloads()
    if reports:
        inventory.reports(profile)
    inventory.spare_mounts()
    recorded = image_inventory.recorded_images(
        inventory.settings, [item.path for item in leftovers]
    )
    listed = _images(engine, recorded, profile, progress, inventory.busy, all_images)
    inventory.staying += listed.staying
    records = image_inventory.removable_records(recorded, listed, inventory)
    return _Chosen(tuple(inventory.items), listed.removals, tuple(records))


def _images(
    engine: Engine | None,
    recorded: Sequence[Recorded],
    profile: str | None,
    progress: console.Progress,
    busy: set[str],
    all_images: bool,
) -> Listed:
    if engine is None:
        return image_inventory.Listed()
    try:
        images = engine.labelled()
    except ToolError as error:
        _note_unseen(error, progress)
        return image_inventory.Listed()

    def is_built(image: Image) -> bool:
        return image_inventory.is_result(image, engine.last_step)

    return image_inventory.choose(images, recorded, profile, busy, is_built if all_images else None)


def _remove(chosen: _Chosen, engine: Engine | None) -> tuple[list[str], list[Kept]]:
    """Remove what was chosen; return the names of what is gone, and what could not be removed."""
    removed, failed = _remove_files(chosen.files)
    staying: set[str] = set()
    for image in chosen.images:
        assert engine is not None, "images are chosen in an engine"
        try:
            engine.remove(image.ref, only=image.id)
            removed.append(image.ref)
        except EnvbuilderError as error:
            reason = error.message.removeprefix(f"{image.ref}: cannot be removed: ")
            failed.append(Kept(image.ref, reason))
            staying.add(image.id)
    for records in chosen.records:
        if not records.ids & staying:
            gone, stuck = _remove_files(records.items)
            removed, failed = removed + gone, failed + stuck
    return removed, failed


def _remove_files(items: Iterable[Item]) -> tuple[list[str], list[Kept]]:
    removed, failed = list[str](), list[Kept]()
    for item in items:
        try:
            folders.remove(item.path, item.root, item.aside)
            removed.append(str(item.path))
        except OSError as error:
            failed.append(Kept(str(item.path), error.strerror or str(error)))
        except RecursionError:
            failed.append(Kept(str(item.path), "its folders are nested too deeply"))
    return removed, failed


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
