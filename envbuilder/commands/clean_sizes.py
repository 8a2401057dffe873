"""What `envbuilder clean` frees: the bytes of files and images, and the table that shows them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.build.attestation import documents
from envbuilder.core import console, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from envbuilder.commands.image_inventory import Removal
    from envbuilder.core.settings import Settings

ENVIRONMENTS = "environments"
WORKING = "working folders of killed builds"
DOWNLOADS = "downloads, caches and logs"
REPORTS = "verification reports"
IMAGES = "images"
RECORDS = "records of images"
VOLUMES = "volumes of commands in containers"
_BLOCK = 512
"""Unit of `st_blocks`, whatever the file system's own is."""
_SIZE = 12
"""Columns of a size."""
_SHOWN = 20
"""Maximum rows of one kind in the table; those that free most."""


class Entry(Struct, frozen=True, kw_only=True):
    """A file, folder or image that is removed by itself."""

    name: str
    kind: str
    row: str
    """The row of the table that it is a part of, within its kind."""
    bytes: int | None
    """What its removal frees after that of those before it; None if the engine does not say."""


def of_files(paths: Iterable[Path], settings: Settings) -> tuple[Entry, ...]:
    """Return what the removal of files and folders frees, in this order.

    A file with several names is freed with its last one, and not at all if one of them stays.
    """
    seen = Counter[tuple[int, int]]()
    entries = []
    for path in paths:
        freed = 0
        for status in _all(path):
            names = 1 if stat.S_ISDIR(status.st_mode) else status.st_nlink
            file = (status.st_dev, status.st_ino)
            seen[file] += names > 1
            if names == 1 or seen[file] == names:
                freed += status.st_blocks * _BLOCK
        kind, row = _place(path, settings)
        entries.append(Entry(name=str(path), kind=kind, row=row, bytes=freed))
    return tuple(entries)


def of_images(
    removals: Sequence[Removal], gone: frozenset[str], shares: Mapping[str, int]
) -> tuple[Entry, ...]:
    """Return what the removal of images frees: what no other image shares, with the last name.

    Those in `gone` lose all their names.
    """
    names: dict[str, list[str]] = {}
    for removal in removals:
        names.setdefault(removal.id, []).append(removal.ref)
    return tuple(
        Entry(
            name=removal.ref,
            kind=IMAGES,
            row=", ".join(names[removal.id]),
            bytes=shares.get(removal.id)
            if removal.id in gone and removal.ref == names[removal.id][-1]
            else 0,
        )
        for removal in removals
    )


def total(entries: Iterable[Entry]) -> int:
    """Return the bytes that are known to be freed."""
    return sum(entry.bytes or 0 for entry in entries)


def table(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the lines of a table of what is removed, by kind, with sizes and their sum."""
    width = console.WIDTH - _SIZE
    for kind in dict.fromkeys(entry.kind for entry in entries):
        rows: dict[str, list[int | None]] = {}
        for entry in (e for e in entries if e.kind == kind):
            rows.setdefault(entry.row, []).append(entry.bytes)
        sizes = {row: _sum(parts) for row, parts in rows.items()}
        if list(sizes) == [kind]:
            yield f"{kind:<{width}}{_size(sizes[kind]):>{_SIZE}}"
            continue
        yield kind
        order = sorted(sizes, key=lambda row: -(sizes[row] or 0))
        for row in order[:_SHOWN]:
            yield f"  {text.clipped(row, width - 4):<{width - 2}}{_size(sizes[row]):>{_SIZE}}"
        if rest := order[_SHOWN:]:
            size = sum(sizes[row] or 0 for row in rest)
            yield f"  {f'and {len(rest)} more':<{width - 2}}{_size(size):>{_SIZE}}"
    label = "at least" if _more(entries) else "total"
    yield f"{label:<{width}}{_size(total(entries)):>{_SIZE}}"


def _sum(parts: Sequence[int | None]) -> int | None:
    return None if None in parts else sum(filter(None, parts))


def _more(entries: Sequence[Entry]) -> bool:
    """Return whether more may be freed: by layers that only removed images share, or unknown."""
    images = [entry for entry in entries if entry.kind == IMAGES and entry.bytes != 0]
    return len(images) > 1 or any(entry.bytes is None for entry in entries)


def _size(size: int | None) -> str:
    return "?" if size is None else text.stored(size)


def _place(path: Path, settings: Settings) -> tuple[str, str]:
    """Return the kind of a file or folder, and its row: what belongs together has one."""
    if path.parent == settings.envs_dir:
        name = path.name
        for suffix in documents.SUFFIXES.values():
            name = name.removesuffix(suffix)
        return (WORKING if name.startswith(".") else ENVIRONMENTS), name
    if path.is_relative_to(settings.records_dir):
        return RECORDS, RECORDS
    if path.is_relative_to(settings.reports_dir):
        return REPORTS, REPORTS
    if path.is_relative_to(settings.cache_dir):
        top, *below = path.relative_to(settings.cache_dir).parts
        return (WORKING, below[0]) if top in {"build", "reproduce"} and below else (DOWNLOADS, top)
    return WORKING, str(path)


def _all(path: Path) -> Iterator[os.stat_result]:
    """Yield the status of everything at and below a path, as far as it can be read."""
    folders = [os.fspath(path)]
    with contextlib.suppress(OSError):
        status = path.lstat()
        yield status
        if not stat.S_ISDIR(status.st_mode):
            return
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
