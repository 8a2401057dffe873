"""Check that the disks have room for a build, before anything is fetched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core.errors import BuildError
from envbuilder.core.text import gigabytes
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File


class Room(Struct, frozen=True, kw_only=True):
    """Disk space that a build needs in one folder."""

    folder: str
    bytes: int
    """A lower bound: files whose size no source states are not included."""


UNPACKED = 1.8
"""Bytes of an installed wheel per byte of the wheel, as a lower bound: measured 1.8 for the files
of `cuda`, 3.6 for torch's CPU wheel."""


def unpacked(files: Iterable[File]) -> int:
    """Return a lower bound of the bytes that files take when they are installed."""
    return int(UNPACKED * sum(f.room for f in files))


class Disk(Struct, frozen=True, kw_only=True):
    """A file system that a build writes to; sizes in bytes."""

    folder: str
    free: int
    needed: int
    """A lower bound; 0 if unknown."""


def require(files: Iterable[File], rooms: Iterable[Room], settings: Settings) -> None:
    """Raise `BuildError` if a disk has less free space than needed, as far as sizes are known.

    `files` are downloads: those already in the store need no space. `rooms` are needed in addition.
    """
    missing = _missing(files, settings)
    unknown = sum(1 for f in missing if not f.room)
    require_rooms((downloads(missing, settings), *rooms), unknown)


def require_rooms(rooms: Iterable[Room], unknown: int = 0) -> None:
    """Raise `BuildError` if a disk has too little space; `unknown` files are not counted."""
    for disk in disks(rooms):
        if disk.needed > disk.free:
            more = f" (and {unknown} files of unknown size)" if unknown else ""
            raise BuildError(
                f"not enough space in {disk.folder}: {gigabytes(disk.needed)} are needed{more},"
                f" {gigabytes(disk.free)} are free",
                "Make room (`envbuilder clean` removes what envbuilder made), or set"
                " ENVBUILDER_CACHE_DIR and ENVBUILDER_DATA_DIR to a larger disk.",
            )


def downloads(files: Iterable[File], settings: Settings) -> Room:
    """Return a lower bound of the space for the files, and parts of files, that the store lacks."""
    store = Store.of(settings)
    needed = sum(max(f.room - store.arrived(f.sha256), 0) for f in _missing(files, settings))
    return Room(folder=str(settings.store_dir), bytes=needed)


def _missing(files: Iterable[File], settings: Settings) -> list[File]:
    store = Store.of(settings)
    return [f for f in files if not store.has(f.sha256)]


def disks(rooms: Iterable[Room]) -> tuple[Disk, ...]:
    """Return the file systems that some rooms are on; a folder that fails to stat is left out."""
    by_device: dict[int, Disk] = {}
    for room in rooms:
        folder = existing(Path(room.folder))
        try:
            device, free = folder.stat().st_dev, shutil.disk_usage(folder).free
        except OSError:
            continue
        disk = by_device.get(device) or Disk(folder=room.folder, free=free, needed=0)
        by_device[device] = replace(disk, needed=disk.needed + room.bytes)
    return tuple(by_device.values())


def existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing ancestor."""
    return next((f for f in (folder, *folder.parents) if f.exists()), Path("/"))
