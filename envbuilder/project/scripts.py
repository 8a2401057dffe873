"""Read what a script states of itself: the block of metadata at its top (PEP 723)."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from envbuilder.core.errors import InvalidError, escaped
from envbuilder.core.settings import DEFAULT, Definition, Environment, Settings
from envbuilder.project.lines import Listed, read_text
from envbuilder.project.tables import pyproject, read_pyproject

_BLOCK = re.compile(r"^# /// script\s*\n((?:#(?:[ \r].*)?\n)+?)# ///\s*$", re.MULTILINE)


def _stated(text: str) -> str:
    """Return the block of a script as a pyproject.toml with its lines; empty if it has none."""
    block = _BLOCK.search(text)
    if block is None:
        return ""
    above = "\n" * text.count("\n", 0, block.start())
    return f"{above}[project]\n{re.sub(r'^# ?', '', block[1], flags=re.MULTILINE)}"


def has_list(project: Path, file: str) -> bool:
    """Return whether a file is a script that states what it requires."""
    try:
        return file.endswith(".py") and bool(_stated(read_text(project, file)))
    except InvalidError:
        return False


def read_script(project: Path, file: str) -> Listed:
    """Return what a script states that it requires. Raises `InvalidError`."""
    text = _stated(read_text(project, file))
    if not text:
        raise InvalidError(
            f"{escaped(file)}: it states no requirements, which stand below `# /// script`",
            "List another file, or write them under requirements: in envbuilder.yaml.",
        )
    return read_pyproject(pyproject(text, file), project, file, text, (), ())


def of_script(settings: Settings, path: Path) -> Settings:
    """Return the settings for a script that states what it requires: a project of its own.

    Those of another program, and in a project, stay as they are.
    """
    folder = path.absolute().parent
    if settings.definition is not None or not has_list(folder, path.name):
        return settings
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or DEFAULT
    environment = Environment(requirements_from=(path.name,))
    definition = Definition(environments={name: environment})
    return replace(settings, project=folder, definition=definition, environment=name)
