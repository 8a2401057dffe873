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

from envbuilder.core import files
from envbuilder.payload.machine.hardware import SHARED, available_bytes

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
    for path in left(shared):
        shutil.rmtree(path, ignore_errors=True)
    parent = shared if _has_room(shared, needed) else otherwise
    path, descriptor = _locked(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _locked(parent: Path) -> tuple[Path, int]:
    """Create a folder and its lock, which the kernel releases however the process ends.

    Another process may have removed the folder before it was locked; then a new one is created.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        descriptor = os.open(path, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.is_dir():
            files.mark_folder(path)
            return path, descriptor
        os.close(descriptor)


def _has_room(shared: Path, needed: int) -> bool:
    try:
        stats = os.statvfs(shared)
    except OSError:
        return False
    free = stats.f_bavail * stats.f_frsize
    # Programs in this folder are executed.
    executable = not stats.f_flag & os.ST_NOEXEC and os.access(shared, os.W_OK)
    memory = available_bytes() or 0
    return executable and min(free, memory) >= _SPARE * needed


def left(shared: Path = SHARED) -> Iterator[Path]:
    """Yield this user's folders in memory whose process has ended."""
    for path in shared.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.getuid() or not files.is_marked(path):
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            finally:
                os.close(descriptor)
