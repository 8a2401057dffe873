"""What a project's file gives every command of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.build.access import NOTHING, Access
from envbuilder.core.errors import InvalidError
from envbuilder.core.strict_yaml import shown
from envbuilder.project import environments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envbuilder.core.project_file import Definition
    from envbuilder.core.settings import Settings


def of(settings: Settings) -> Access:
    """Return what the environment in the settings gives its commands.

    Raise `InvalidError` with the place in the project's file if a folder does not exist.
    """
    if settings.definition is None or settings.project is None:
        return NOTHING
    folders = _python_path(settings.definition, settings.environment, settings.project)
    return Access(python_path=tuple(dict.fromkeys(folders)))


def _python_path(definition: Definition, name: str, project: Path) -> Iterator[Path]:
    for text, where in environments.entries(definition, name, project, "python_path"):
        folder = project / text
        if not folder.is_dir():
            raise InvalidError(
                f"{where}: python_path: {shown(text)} is not a folder of the project",
                "Write its path from the folder of envbuilder.yaml, or remove it.",
            )
        yield folder
