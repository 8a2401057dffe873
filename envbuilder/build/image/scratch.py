"""A folder for files that are only needed for moments, in memory where there is room for them.

uv itself and what it installs are read once and removed again: a disk need not see them.
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
"""Memory that must be free, in multiples of what is needed: others work here, too."""


@contextlib.contextmanager
def folder(needed: int, otherwise: Path, shared: Path = SHARED) -> Iterator[Path]:
    """A new folder for so many bytes, removed in the end; below `otherwise` on a small machine.

    What killed processes left in memory is removed first.
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
    """A new folder and its lock, which the kernel lets go when the process ends, however it does.

    Another process may have swept the folder away before it was locked: then there is a new one.
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
    # uv starts a program that lies there.
    runs = not about.f_flag & os.ST_NOEXEC and os.access(shared, os.W_OK)
    memory = available_bytes() or 0
    return runs and min(free, memory) >= _SPARE * needed


def left(shared: Path = SHARED) -> Iterator[Path]:
    """Folders of this user in memory whose process is gone."""
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
