"""Whether the disks have room for a build, asked before anything is fetched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.errors import BuildError
from envbuilder.plan import Room
from envbuilder.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.plan import Plan
    from envbuilder.settings import Settings


def require(plan: Plan, settings: Settings) -> None:
    """`BuildError` where a disk has less room than the plan takes, as far as sizes are known."""
    store = Store(settings.store_dir)
    missing = [f for f in plan.files if not store.has(f.sha256)]
    downloads = Room(folder=str(settings.store_dir), bytes=sum(f.size or 0 for f in missing))
    unknown = sum(1 for f in missing if f.size is None)
    for disk in disks((downloads, *plan.room)):
        if disk.needed > disk.free:
            more = f" (and {unknown} files of unknown size)" if unknown else ""
            raise BuildError(
                f"not enough space in {disk.folder}: {disk.needed / 1e9:.1f} GB are needed{more},"
                f" {disk.free / 1e9:.1f} GB are free",
                "Make room (`envbuilder clean` removes what envbuilder made), or set"
                " ENVBUILDER_CACHE_DIR and ENVBUILDER_DATA_DIR to a larger disk.",
            )


class Disk:
    """A file system, what is needed on it, and what is free there, in bytes."""

    def __init__(self, folder: str, free: int) -> None:
        self.folder, self.free, self.needed = folder, free, 0


def disks(rooms: Iterable[Room]) -> tuple[Disk, ...]:
    """The file systems that some rooms are on. A folder that cannot be asked is left out."""
    found: dict[int, Disk] = {}
    for room in rooms:
        folder = _existing(Path(room.folder))
        try:
            device, free = folder.stat().st_dev, shutil.disk_usage(folder).free
        except OSError:
            continue
        found.setdefault(device, Disk(room.folder, free)).needed += room.bytes
    return tuple(found.values())


def _existing(folder: Path) -> Path:
    return next((f for f in (folder, *folder.parents) if f.exists()), Path("/"))
