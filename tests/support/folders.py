"""What is in a folder, and in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def names_in(folder: Path) -> set[str]:
    """Return the names of all that is in a folder."""
    return {path.name for path in folder.iterdir()}


def read_json(path: Path) -> Any:
    """Return the data of a JSON file."""
    return json.loads(path.read_bytes())
