"""What is in a folder."""

from __future__ import annotations

from pathlib import Path


def names_in(folder: Path) -> set[str]:
    """Return the names of all that is in a folder."""
    return {path.name for path in folder.iterdir()}
