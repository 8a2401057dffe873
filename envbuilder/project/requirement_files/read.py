"""Read the requirements of a file by its kind, which its name states."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped
from envbuilder.project.requirement_files import (
    environment_yml,
    pylock,
    pyproject,
    requirements_txt,
    uv_lock,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from envbuilder.project.requirement_files.listed import Listed

SUPPORTED = "requirements.txt, pyproject.toml, uv.lock, pylock.toml and environment.yml"

_WITH_EXTRAS = (
    (re.compile(r"pyproject\.toml\Z"), pyproject.read),
    (re.compile(r"uv\.lock\Z"), uv_lock.read),
    (re.compile(r"pylock(\.[^.]+)?\.toml\Z"), pylock.read),
)
_PLAIN = (
    (re.compile(r".+\.(txt|in)\Z"), requirements_txt.read),
    (re.compile(r".+\.ya?ml\Z"), environment_yml.read),
)
_INSTEAD = {
    "poetry.lock": "List pyproject.toml, or the result of: poetry export -o requirements.txt",
    "pdm.lock": "List pyproject.toml, or the result of: pdm export -o requirements.txt",
    "Pipfile": "List the result of: pipenv requirements > requirements.txt",
    "Pipfile.lock": "List the result of: pipenv requirements > requirements.txt",
    "pixi.toml": "List the result of: pixi workspace export conda-environment environment.yml",
    "pixi.lock": "List the result of: pixi workspace export conda-environment environment.yml",
    "setup.py": "Add what its install_requires lists: envbuilder add NAME",
    "setup.cfg": "Add what its install_requires lists: envbuilder add NAME",
}
_MOST_ENTRIES = 1000
"""Maximum number of a folder's entries that are looked at for a suggestion."""
_MOST_SUGGESTIONS = 6


def read(
    project: Path, file: str, extras: Sequence[str] = (), groups: Sequence[str] = ()
) -> Listed:
    """Return what a file of a project requires; `file` is its path in the project.

    `extras` and `groups` are added, for files that have any. Nothing outside the project is read.
    Raises `InvalidError`.
    """
    name = PurePosixPath(file).name
    try:
        for pattern, read_with_extras in _WITH_EXTRAS:
            if pattern.match(name):
                return read_with_extras(project, file, extras, groups)
        for pattern, read_plain in _PLAIN:
            if pattern.match(name):
                _require_none(file, extras, groups)
                return read_plain(project, file)
    except InvalidError as error:
        if isinstance(error.__cause__, FileNotFoundError) and not error.hint:
            raise InvalidError(error.message, _suggestion(project, file)) from error
        raise
    raise InvalidError(
        f"{escaped(file)}: not a kind of file that requirements are read from",
        _INSTEAD.get(name, f"Supported are {SUPPORTED}."),
    )


def unread(project: Path) -> Iterator[str]:
    """Yield why nothing is read from files at the top that may list requirements, and what to do.

    For a project that requires nothing: of one that lists a file, the others do not matter.
    """
    for name in ("pyproject.toml", *_INSTEAD):
        if (project / name).is_file():
            try:
                read(project, name)
            except InvalidError as error:
                yield f"{error.message}. {error.hint}"


def is_supported(name: str) -> bool:
    """Return whether a file of this name is one that requirements are read from."""
    return any(pattern.match(name) for pattern, _ in (*_WITH_EXTRAS, *_PLAIN))


def _require_none(file: str, extras: Sequence[str], groups: Sequence[str]) -> None:
    for kind, names in (("extras", extras), ("groups", groups)):
        if names:
            raise InvalidError(
                f"{escaped(file)}: a file of this kind has no {kind}",
                f"Remove {kind}: {escaped(', '.join(names), 100)}.",
            )


def _suggestion(project: Path, file: str) -> str:
    """Return the files that could be meant, in the folder of the missing one and at the top."""
    folders = dict.fromkeys((PurePosixPath(file).parent, PurePosixPath()))
    names = [
        (folder / entry).as_posix()
        for folder in folders
        if ".." not in folder.parts and not folder.is_absolute()
        for entry in _entries(project / folder)
    ]
    if not names:
        return f"Supported are {SUPPORTED}."
    shown = ", ".join(escaped(name, 80) for name in names[:_MOST_SUGGESTIONS])
    return f"The project has {shown}."


def _entries(folder: Path) -> list[str]:
    """Return the names of files in a folder that requirements can be read from."""
    try:
        names = [path.name for path in islice(folder.iterdir(), _MOST_ENTRIES) if path.is_file()]
    except (OSError, ValueError):
        return []
    return sorted(name for name in names if is_supported(name))
