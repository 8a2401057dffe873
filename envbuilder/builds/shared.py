"""Records of the files that an environment may share with other environments."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.core.resources import OWN

SHARED = f"{OWN}/shared.json"
"""Path of the records, relative to the environment's prefix."""
BYTECODE = "__pycache__"
"""Name of the folders in which Python stores the bytecode of modules."""


class SharedFile(Struct, frozen=True, array_like=True, gc=False):
    """The record of a file that several environments may share.

    The record describes the file as it was when the build wrote it.
    """

    path: str
    executable: bool
    sha256: str
    size: int
    time: int
    """Time at which the file was last modified, in nanoseconds since 1970."""
    inode: int

    def is_same(self, status: os.stat_result) -> bool:
        """Return whether the file still has the recorded size and modification time.

        A change is not detected if the size and the time were restored afterwards.
        """
        return (status.st_size, status.st_mtime_ns) == (self.size, self.time)


def shared(prefix: Path) -> tuple[SharedFile, ...]:
    """Return the records of an environment's shared files.

    Return an empty tuple if the records are missing or cannot be read.
    """
    try:
        return decoding.from_json((prefix / SHARED).read_bytes(), tuple[SharedFile, ...])
    except (OSError, ValueError):
        return ()


def link_bytecode(prefix: Path, folder: Path) -> None:
    """Link an environment's bytecode into `folder`, for use as Python's `sys.pycache_prefix`."""
    folders: set[str] = set()
    for file in shared(prefix):
        above, is_bytecode, name = file.path.rpartition(f"/{BYTECODE}/")
        if is_bytecode:
            target = f"{folder}{prefix}/{above}"
            if above not in folders:
                os.makedirs(target, exist_ok=True)  # noqa: PTH103
                folders.add(above)
            os.symlink(f"{prefix}/{file.path}", f"{target}/{name}")  # noqa: PTH211
