"""Check a shared store: a cache folder that an administrator fills and other users build from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from envbuilder.core.files import file_sha256
from envbuilder.packages.store import NAME, Store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File

_FOLDERS = (NAME, "datasets", "bases")
_PATIENCE_SECONDS = 5.0


def objection(root: Path) -> str:
    """Return why a shared store, or a part of it, cannot be used; empty if all of it can."""
    try:
        present = {path.name for path in root.iterdir()}
        folders = [root / name for name in _FOLDERS if name in present]
        if NAME in present:
            folders += (root / NAME / "sha256").iterdir()
        for folder in folders:
            (folder / ".").stat()  # what is within can be opened
    except OSError as error:
        return f"the shared store cannot be used: {error.filename}: {error.strerror}"
    if not folders:
        return f"the shared store cannot be used: {root}: holds no {NAME}/"
    return ""


def damage(files: Iterable[File], settings: Settings) -> str:
    """Return which of these files has other bytes in the shared store; empty if none is known to.

    Small files are read first, as far as a few seconds allow.
    """
    store = Store.of(settings)
    shared = [f for f in files if store.is_shared(f.sha256)]
    end = time.monotonic() + _PATIENCE_SECONDS
    for file in sorted(shared, key=lambda f: f.size or 0):
        path = store.path(file.sha256)
        try:
            wrong = file.size not in {None, path.stat().st_size}
            wrong = wrong or (time.monotonic() < end and file_sha256(path) != file.sha256)
        except OSError as error:
            return f"the shared store is damaged: {path}: {error.strerror or error}"
        if wrong:
            return f"the shared store is damaged: {path} is not {file.basename}"
    return ""
