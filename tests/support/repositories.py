"""Lay out folders of small files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def lay(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files by their paths below a folder; return the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder
