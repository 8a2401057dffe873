"""Read the metadata block at the top of a script (PEP 723)."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.core.errors import InvalidError, escaped
from envbuilder.core.settings import Definition, Environment, Settings
from envbuilder.project.lines import Listed, read_text
from envbuilder.project.tables import pyproject, read_pyproject

_BLOCK = re.compile(r"(?m)^# /// script\s*\n((?:#(?:[ \r].*)?\n)+?)# ///\s*$")


def _stated(project: Path, file: str) -> str:
    """Convert a script's metadata block to a pyproject.toml with the same line numbers.

    Raise `InvalidError` if the script has no metadata block.
    """
    text = read_text(project, file)
    block = _BLOCK.search(text)
    if block is None:
        raise InvalidError(
            f"{escaped(file)}: the script lists no requirements, which belong below `# /// script`",
            "List another file, or write the requirements under requirements: in envbuilder.yaml.",
        )
    above = "\n" * text.count("\n", 0, block.start())
    return f"{above}[project]\n{re.sub('(?m)^# ?', '', block[1])}"


def has_list(project: Path, file: str) -> bool:
    """Return whether a file is a script that lists its own requirements."""
    with suppress(InvalidError):
        return file.endswith(".py") and bool(_stated(project, file))
    return False


def read_script(project: Path, file: str) -> Listed:
    """Read the requirements in a script's metadata block; raise `InvalidError` if it is invalid."""
    text = _stated(project, file)
    return read_pyproject(pyproject(text, file), project, file, text, (), ())


def of_script(settings: Settings, path: Path) -> Settings:
    """Return settings that treat a script with its own requirements as a separate project.

    For any other program, and inside a project, return the settings unchanged.
    """
    folder = path.absolute().parent
    if settings.definition is not None or not has_list(folder, path.name):
        return settings
    name = types.canonical(path.name)
    definition = Definition(environments={name: Environment(requirements_from=(path.name,))})
    return replace(settings, project=folder, definition=definition, environment=name)
