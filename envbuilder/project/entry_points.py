"""Guess which program of a folder its user wants to run."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from envbuilder.core import files

if TYPE_CHECKING:
    from pathlib import Path

_GUARD = re.compile(rb"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)
_NEVER = re.compile(r"(setup|conftest|noxfile|tasks|test_.*|.*_test)\.py")
_MOST_LOOKED_AT = 200
_LARGEST = 1 << 20


def arguments(folder: Path) -> tuple[str, ...]:
    """Return what follows `python` to run the one program in a folder; empty if it is unclear.

    A script that is meant to be run says so; if none does, any script may be it.
    """
    entries = sorted(islice(folder.iterdir(), _MOST_LOOKED_AT))
    packages = [
        ("-m", path.name)
        for path in entries
        if path.name.isidentifier() and (path / "__main__.py").is_file()
    ]
    scripts = [
        path
        for path in entries
        if path.suffix == ".py" and not _NEVER.fullmatch(path.name) and path.is_file()
    ]
    meant = [path for path in scripts if _is_program(path)]
    candidates = [*packages, *((path.name,) for path in meant or (() if packages else scripts))]
    return candidates[0] if len(candidates) == 1 else ()


def _is_program(path: Path) -> bool:
    try:
        return _GUARD.search(files.read(path, _LARGEST)) is not None
    except OSError:
        return False
