"""Choose what `envbuilder clean` removes, measure it, and remove it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.commands import clean_sizes, image_inventory, volume_inventory
from envbuilder.commands.image_inventory import Listed, Recorded, Records, Removal
from envbuilder.commands.inventory import Item, Kept
from envbuilder.containers.engine import connection
from envbuilder.core import files
from envbuilder.core.errors import EnvbuilderError, ToolError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from envbuilder.commands.clean_sizes import Entry
    from envbuilder.commands.inventory import Inventory
    from envbuilder.containers.engine.interface import Engine, Image
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings


class Scope(Struct, frozen=True, kw_only=True):
    """What the user asks to remove."""

    profile: str | None
    store: bool
    reports: bool
    all_images: bool
    volumes: bool


class Chosen(Struct, frozen=True):
    """What to remove, in this order: files, images, and the records of images gone by then."""

    files: tuple[Item, ...]
    images: tuple[Removal, ...]
    records: tuple[Records, ...]
    gone: frozenset[str]
    """The ids of images that lose all their names."""
    volumes: tuple[str, ...] = ()
    """Volumes of the engine, by name; they are removed last."""

    @property
    def names(self) -> list[str]:
        """Return the names shown to the user."""
        records = (item for group in self.records for item in group.items)
        return [
            *(str(item.path) for item in self.files),
            *(image.ref for image in self.images),
            *(str(item.path) for item in records),
            *self.volumes,
        ]

    def limited(self, names: Collection[str]) -> Chosen:
        """Return the part of it that has one of these names."""
        records = ((tuple(i for i in r.items if str(i.path) in names), r.ids) for r in self.records)
        return Chosen(
            tuple(item for item in self.files if str(item.path) in names),
            tuple(image for image in self.images if image.ref in names),
            tuple(Records(items, ids) for items, ids in records),
            self.gone,
            tuple(name for name in self.volumes if name in names),
        )


def choose(scope: Scope, inventory: Inventory, engine: Engine | None, progress: Progress) -> Chosen:
    """Return what is removed, and let the inventory record what stays."""
    leftovers = list(inventory.leftovers())
    if scope.profile is not None:
        inventory.staying.clear()
    inventory.environments(scope.profile)
    inventory.items += leftovers if scope.profile is None else []
    if scope.store:
        inventory.downloads()
    if scope.reports:
        inventory.reports(scope.profile)
    inventory.spare_mounts()
    recorded = image_inventory.recorded_images(
        inventory.settings, [item.path for item in leftovers]
    )
    listed = _images(scope, engine, recorded, progress, inventory.busy)
    inventory.staying += listed.staying
    records = image_inventory.removable_records(recorded, listed, inventory)
    volumes = volume_inventory.names(engine, os.getuid()) if scope.profile is None else ()
    if not scope.volumes:
        inventory.staying += [Kept(name, volume_inventory.STAYS) for name in volumes]
        volumes = ()
    files = tuple(inventory.items)
    return Chosen(files, listed.removals, tuple(records), listed.gone, volumes)


def _images(
    scope: Scope,
    engine: Engine | None,
    recorded: Sequence[Recorded],
    progress: Progress,
    busy: set[str],
) -> Listed:
    if engine is None:
        return image_inventory.Listed()
    try:
        images = engine.labelled()
    except ToolError as error:
        note_unseen(error, progress)
        return image_inventory.Listed()

    def is_built(image: Image) -> bool:
        return image_inventory.is_result(image, engine.last_step)

    examine = is_built if scope.all_images else None
    return image_inventory.choose(images, recorded, scope.profile, busy, examine)


def note_unseen(error: ToolError, progress: Progress) -> None:
    """Say that images stay because the engine does not answer, if one is configured."""
    if connection.configured():
        progress.note(f"images were not examined: {error.message}")


def measured(
    chosen: Chosen, engine: Engine | None, settings: Settings, progress: Progress
) -> tuple[Entry, ...]:
    """Return what the removal frees, in its order."""
    if not chosen.names:
        return ()
    records = [item for group in chosen.records for item in group.items]
    with progress.task("measure what can be removed"):
        shares = dict[str, int]()
        if engine is not None and chosen.images:
            with contextlib.suppress(ToolError):  # the sizes of images are unknown then
                shares = engine.shares()
        paths = [item.path for item in (*chosen.files, *records)]
        files = clean_sizes.of_files(paths, settings)
    images = clean_sizes.of_images(chosen.images, chosen.gone, shares)
    volumes = (
        clean_sizes.Entry(name=name, kind=clean_sizes.VOLUMES, row=name, bytes=None)
        for name in chosen.volumes
    )
    return (*files[: len(chosen.files)], *images, *files[len(chosen.files) :], *volumes)


def remove(
    chosen: Chosen, engine: Engine | None, entries: Sequence[Entry], progress: Progress
) -> tuple[list[str], list[Kept]]:
    """Remove what was chosen; return the names of what is gone, and what could not be removed."""
    removed, failed, staying = list[str](), list[Kept](), set[str]()
    sizes = {entry.name: entry.bytes or 0 for entry in entries}
    if not chosen.names:
        return removed, failed
    with progress.task("remove", total=clean_sizes.total(entries)) as task:

        def remove_files(items: Iterable[Item]) -> None:
            for item in items:
                if reason := _failure(item):
                    failed.append(Kept(str(item.path), reason))
                else:
                    removed.append(str(item.path))
                task.advance(sizes[str(item.path)])

        remove_files(chosen.files)
        for image in chosen.images:
            assert engine is not None, "images are chosen in an engine"
            try:
                engine.remove(image.ref, only=image.id)
                removed.append(image.ref)
            except EnvbuilderError as error:
                reason = error.message.removeprefix(f"{image.ref}: cannot be removed: ")
                failed.append(Kept(image.ref, reason))
                staying.add(image.id)
            task.advance(sizes[image.ref])
        for records in chosen.records:
            if not records.ids & staying:
                remove_files(records.items)
        gone, stuck = volume_inventory.remove(engine, chosen.volumes)
    return removed + gone, failed + stuck


def _failure(item: Item) -> str:
    """Remove a file or folder; return why that failed, or an empty string."""
    try:
        files.remove(item.path, item.root, item.aside)
    except OSError as error:
        return error.strerror or str(error)
    except RecursionError:
        return "its folders are nested too deeply"
    return ""
