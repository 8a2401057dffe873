"""What a project's file gives every command of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.build import access
from envbuilder.build.access import NOTHING, Access
from envbuilder.containers.engine.container import Port, Volume
from envbuilder.core import files, process
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import shown
from envbuilder.project import environments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envbuilder.core.project_file import Definition
    from envbuilder.core.settings import Settings


def of(settings: Settings) -> Access:
    """Return what the environment in the settings gives its commands.

    Raise `InvalidError` with the place in the project's file if a folder does not exist, or if a
    volume would cover something of an image.
    """
    definition, name, project = settings.definition, settings.environment, settings.project
    if definition is None or project is None:
        return NOTHING
    ports = environments.of(settings).ports
    volumes = {volume.target: volume for volume in _volumes(definition, name, project)}
    return Access(
        ports=tuple(Port(outside=number, inside=number) for number in dict.fromkeys(ports)),
        volumes=tuple(volumes.values()),
        python_path=tuple(dict.fromkeys(_python_path(definition, name, project))),
    )


def command(settings: Settings) -> tuple[str, ...]:
    """Return the environment's own command. Raise `InvalidError` if it states none."""
    stated = environments.of(settings).command
    if not stated:
        raise InvalidError(
            "there is no command to run",
            "Write it after two hyphens: envbuilder run -- python train.py. Or state it in"
            " envbuilder.yaml, as in command: [python, train.py]",
        )
    return stated


def _python_path(definition: Definition, name: str, project: Path) -> Iterator[Path]:
    for text, where in environments.entries(definition, name, project, "python_path"):
        folder = project / text
        if not folder.is_dir():
            raise InvalidError(
                f"{where}: python_path: {shown(text)} is not a folder of the project",
                "Write its path from the folder of envbuilder.yaml, or remove it.",
            )
        yield folder


def _volumes(definition: Definition, name: str, project: Path) -> Iterator[Volume]:
    for (source, target), where in environments.entries(definition, name, project, "volumes"):
        try:
            path = access.place_inside(target)
            is_folder = source.startswith("./")
            stated = _folder(project, source) if is_folder else volume_name(project, source)
        except InvalidError as error:
            raise InvalidError(f"{where}: volumes: {error.message}", error.hint) from error
        yield Volume(source=stated, target=path)


def _folder(project: Path, text: str) -> str:
    """Return a folder of the project; a link that leaves it would show the command others."""
    folder = (project / text).resolve()
    if not folder.is_relative_to(project.resolve()):
        raise InvalidError(
            f"{shown(text)} leads out of the project",
            f"State such a folder when you run a command: -v {process.quoted([text])}:PATH",
        )
    if not folder.is_dir():
        raise InvalidError(
            f"{shown(text)} is not a folder of the project",
            f"Create it first: mkdir -p {process.quoted([str(folder)])}",
        )
    return str(folder)


def volume_name(project: Path, name: str) -> str:
    """Return the engine's name of a project's volume: those of other projects are others."""
    return f"envbuilder-{files.folder_identity(project)[:12]}-{name}"
