"""Records of the files that an environment may share with others."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.core.resources import OWN

SHARED = f"{OWN}/shared.json"
"""Path of the records in an environment."""
BYTECODE = "__pycache__"
"""Folder of the bytecode of the modules beside it."""


class SharedFile(Struct, frozen=True, array_like=True, gc=False):
    """A file that several environments may share, as written by the build."""

    path: str
    executable: bool
    sha256: str
    size: int
    time: int
    """Time of its last change, in nanoseconds."""
    inode: int

    def is_same(self, status: os.stat_result) -> bool:
        """Return whether a file is unchanged, unless somebody restored its time."""
        return (status.st_size, status.st_mtime_ns) == (self.size, self.time)


def shared(prefix: Path) -> tuple[SharedFile, ...]:
    """Return the records of the files that an environment may share with others."""
    try:
        return decoding.from_json((prefix / SHARED).read_bytes(), tuple[SharedFile, ...])
    except (OSError, ValueError):
        return ()


def link_bytecode(prefix: Path, folder: Path) -> None:
    """Link a build's bytecode to where Python looks for it with that `sys.pycache_prefix`."""
    folders: set[str] = set()
    for file in shared(prefix):
        above, is_bytecode, name = file.path.rpartition(f"/{BYTECODE}/")
        if is_bytecode:
            target = f"{folder}{prefix}/{above}"
            if above not in folders:
                os.makedirs(target, exist_ok=True)  # noqa: PTH103
                folders.add(above)
            os.symlink(f"{prefix}/{file.path}", f"{target}/{name}")  # noqa: PTH211
