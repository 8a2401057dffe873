"""Projects that tests lay out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def lay_profile(folder: Path, name: str, text: str) -> None:
    """A project with one profile, and a place for its locks."""
    (folder / "envbuilder.yaml").write_text("")
    (folder / "profiles" / "locks").mkdir(parents=True, exist_ok=True)
    (folder / "profiles" / f"{name}.yaml").write_text(text)
