"""Leave files out of a wheel that another package installs with other bytes.

Pip lets the wheel that it installs last win, uv the one that happens to write last. A lock decides
it: one of both goes without the files, as a wheel of its own with its own hash.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.core.files import file_sha256
from envbuilder.core.text import first
from envbuilder.packages.sources import sealed
from envbuilder.packages.store import Store

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import File


def note(file: File) -> str:
    """Return what is said of it while locking."""
    assert file.recipe is not None, "it is pruned"
    return f"note: {file.name} goes without {first(file.recipe.without, 2)}: another package has it"


def whole(file: File) -> File:
    """Return the wheel of an index that a pruned one is made of."""
    recipe = file.recipe
    assert recipe is not None, "it is pruned"
    return replace(
        file,
        file=recipe.location,
        sha256=recipe.sha256,
        size=None,
        source=recipe.index,
        recipe=None,
    )


def make(file: File, python: str, settings: Settings) -> File:
    """Return a wheel without the files of its recipe, made of the whole one in the store.

    It is kept in the store. Raises `BuildError` if that is no wheel.
    """
    store, recipe = Store.of(settings), file.recipe
    assert recipe is not None, "it is pruned"
    with tempfile.TemporaryDirectory(prefix="envbuilder-wheel-") as folder:
        path, _ = sealed.normalise(
            store.path(recipe.sha256),
            Path(folder),
            file.name,
            python,
            recipe.location,
            recipe.without,
        )
        sha256, size = file_sha256(path), path.stat().st_size
        store.take_file(path, sha256)
    return replace(file, sha256=sha256, size=size)
