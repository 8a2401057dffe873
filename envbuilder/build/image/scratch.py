"""Provide a folder for short-lived files, in memory if there is room for them.

uv itself and the files it installs are read once and removed: they need not be written to a disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.core import folders
from envbuilder.payload.machine.memory import SHARED, available_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "envbuilder-"
_SPARE = 2
"""Memory that must be free, as a multiple of the need: other processes use it, too."""


@contextlib.contextmanager
def folder(needed: int, otherwise: Path, shared: Path = SHARED) -> Iterator[Path]:
    """Yield a new folder for `needed` bytes, removed at the end.

    It is below `otherwise` if memory is short. Folders that killed processes left in memory are
    removed first.
    """
    for place in left(shared):
        shutil.rmtree(place, ignore_errors=True)
    above = shared if _has_room(shared, needed) else otherwise
    place, held = _locked(above)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(held)


def _locked(above: Path) -> tuple[Path, int]:
    """Create a folder and its lock, which the kernel releases however the process ends.

    Another process may have removed the folder before it was locked; then a new one is created.
    """
    while True:
        place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=above))
        held = os.open(place, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        if place.is_dir():
            folders.mark(place)
            return place, held
        os.close(held)


def _has_room(shared: Path, needed: int) -> bool:
    try:
        about = os.statvfs(shared)
    except OSError:
        return False
    free = about.f_bavail * about.f_frsize
    # Programs in this folder are executed.
    runs = not about.f_flag & os.ST_NOEXEC and os.access(shared, os.W_OK)
    memory = available_bytes() or 0
    return runs and min(free, memory) >= _SPARE * needed


def left(shared: Path = SHARED) -> Iterator[Path]:
    """Yield this user's folders in memory whose process has ended."""
    for place in shared.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if place.lstat().st_uid != os.getuid() or not folders.is_marked(place):
                continue
            held = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield place
            finally:
                os.close(held)
