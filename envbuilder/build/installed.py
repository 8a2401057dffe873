"""The project, installed where it lies: its metadata and its commands, in a folder of its own.

A container sees that folder where it sees the project; an image has it in the project's layer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from envbuilder.core import files
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Settings
from envbuilder.project import names, package

FOLDER = package.FOLDER
PROGRAMS = f"{FOLDER}/bin"
_ABOVE = ".envbuilder"
_HOOK = f"{_ABOVE}/hook"
_PROGRAM = Path(__file__).with_name("inside") / "sitecustomize.py"
"""The hook, for any interpreter."""
_HINT = "Remove it, or make it a folder that you can write."


def laid(settings: Settings) -> package.Package:
    """Return the project as a package, with its metadata and commands written.

    Raise `InvalidError` as `package.of` and `lay` do.
    """
    installable = package.of(settings)
    assert settings.project is not None, "it has a definition"
    lay(settings.project, FOLDER, installable.texts)
    return installable


def lay_hook(project: Path) -> Path | None:
    """Return the folder of the hook for missing modules; None where none can be on PYTHONPATH."""
    if os.pathsep in str(project):
        return None
    with contextlib.suppress(InvalidError):
        text = _PROGRAM.read_text(encoding="utf-8").replace("= {}", f"= {names.of_modules()!r}", 1)
        lay(project, _HOOK, {f"{_HOOK}/{_PROGRAM.name}": text})
        return project / _HOOK
    return None


def lay(project: Path, below: str, texts: Mapping[str, str]) -> None:
    """Make a folder of the project hold these files and no others.

    Raise `InvalidError` if that is not possible, or if a link leads elsewhere.
    """
    folder, contents = project / below, {project / path: text for path, text in texts.items()}
    try:
        for place in (*contents, *(parent for path in contents for parent in path.parents)):
            if place.is_relative_to(project / _ABOVE) and place.is_symlink():
                raise InvalidError(f"{place}: is a link", _HINT)
        for path in [p for p in folder.rglob("*") if p not in contents and not p.is_dir()]:
            path.unlink()
        for path, text in contents.items():
            if not path.is_file() or path.read_bytes() != text.encode():
                files.write(path, text.encode(), 0o777 if text.startswith("#!") else 0o666)
        if not (project / _ABOVE / ".gitignore").exists():
            files.write(project / _ABOVE / ".gitignore", b"*\n")
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InvalidError(f"{folder}: {problem}", _HINT) from error
