"""Read and write the table of a run as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from envbuilder.core import bounded, strict_json
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import printable
from envbuilder.fleet.model import LONGEST_REASON, Summary

if TYPE_CHECKING:
    from pathlib import Path

NAME = "summary.json"
_LARGEST = 64 << 20
_HINT = "Name the folder of a run, or its summary.json."


def encode(summary: Summary) -> bytes:
    """Return a table as the text that `read` reads."""
    return msgspec.json.encode(summary) + b"\n"


def read(path: Path) -> Summary:
    """Return a run's table, by its folder or its file. Raises `InvalidError`."""
    path = path / NAME if path.is_dir() else path
    try:
        content = bounded.read(path, _LARGEST)
        strict_json.require_few_values(content)
        return msgspec.json.decode(content, type=Summary)
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror or error}", _HINT) from error
    except (ValueError, RecursionError) as error:
        problem = printable(str(error), LONGEST_REASON)
        raise InvalidError(f"{path}: not the table of a run: {problem}", _HINT) from error
