"""Recorded trees with what engines leave there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envbuilder.host import engines
from envbuilder.host.model import Containers
from envbuilder.host.snapshot import Reader
from tests.support.repositories import lay


def tree(root: Path, files: dict[str, Any]) -> Path:
    return lay(root, {p: c if isinstance(c, str) else json.dumps(c) for p, c in files.items()})


def look(root: Path, *, full: bool = False, live: bool = False) -> tuple[Containers, list[str]]:
    reader = Reader(root)
    reader.live = live
    engines.read(reader, full=full)
    taken = reader.snapshot("linux")
    return engines.decide(taken), engines.notes(taken)
