"""Read the code in notebooks, skipping outputs. Notebooks are untrusted JSON."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError, escaped
from envbuilder.project.lines import read_text

_LARGEST = 32 << 20
"""Maximum size in bytes of a notebook. The limit is high, since outputs may contain images."""
_IMPORT = re.compile(
    r"(?am)^import +([A-Za-z_]\w*(?:\.[A-Za-z_]\w*| as [A-Za-z_]\w*| *, *[A-Za-z_]\w*)*)"
    r"|^from +([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*) +import\b"
)


class _Cell(Struct):
    cell_type: str = ""
    source: str | list[str] = ""


class _Notebook(Struct):
    cells: list[_Cell]


def code(project: Path, file: str) -> str:
    """Return the text of all code cells; raise `InvalidError` if the file is not a notebook."""
    try:
        notebook = decoding.from_json(read_text(project, file, _LARGEST), _Notebook)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidError(f"{escaped(file)} is not a notebook in format version 4") from error
    return "\n".join("".join(c.source) for c in notebook.cells if c.cell_type == "code")


def imports(project: Path, file: str) -> str:
    """Return the import statements in a notebook, without any other lines.

    Other lines are left out because they may not be Python.
    """
    return "\n".join(
        f"import {name[1] or name[2]}" for name in _IMPORT.finditer(code(project, file))
    )
