"""Change a project's file, and its locks with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.commands import locking
from envbuilder.core import console, files
from envbuilder.core.errors import EnvbuilderError, InvalidError
from envbuilder.core.project_file import DEFAULT
from envbuilder.core.schema import read_text
from envbuilder.core.settings import PROJECT_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.commands.locking import Outcome
    from envbuilder.core.settings import Settings
    from envbuilder.project.edit import Change

_LEFT = f"{PROJECT_FILE} is left as it was."


def read(settings: Settings) -> tuple[str, Path]:
    """Return the text of a project's file, and its path. Raises `InvalidError` if there is none."""
    if settings.project is None:
        raise InvalidError(
            f"there is no {PROJECT_FILE} in this folder or above", "Write one: envbuilder init"
        )
    path = settings.project / PROJECT_FILE
    return read_text(path), path


def apply(change: Change, path: Path, settings: Settings, *, lock: bool) -> int:
    """Write a change together with the locks that follow from it; return the exit code.

    Nothing is written if no lock follows at all, or if the file was changed meanwhile: resolving
    may take minutes. Raises `InvalidError` for both.
    """
    if not change.lines:
        console.result(f"{PROJECT_FILE}: nothing to change")
        return 0
    outcomes = _resolved(change, settings) if lock else ()
    if read_text(path) != change.before:
        raise InvalidError(
            f"{path}: was changed by somebody else meanwhile, and is left like that",
            "Run the command again.",
        )
    try:
        files.rewrite(path, change.text.encode())
    except OSError as error:
        raise InvalidError(f"{path}: cannot be written: {error.strerror or error}") from error
    for line in change.lines:
        console.result(f"{PROJECT_FILE}: {line}")
    if not lock:
        console.result("Next: envbuilder lock")
    return locking.settle(outcomes)


def _resolved(change: Change, settings: Settings) -> Sequence[Outcome]:
    """Return the locks of the environments that a change concerns."""
    from envbuilder.locks.entries import of_project

    changed = replace(settings, definition=change.definition)
    try:
        concerned = [
            entry
            for entry in of_project(changed)
            if settings.environment in {DEFAULT, entry.environment}
        ]
        outcomes = locking.resolved(concerned, changed, upgrade=False)
    except EnvbuilderError as error:
        error.hint = f"{error.hint} {_LEFT}".strip()
        raise
    failures = [outcome for outcome in outcomes if outcome.obstacle]
    if outcomes and len(failures) == len(outcomes):
        first = failures[0]
        others = f" (and for {len(failures) - 1} more)" if failures[1:] else ""
        raise InvalidError(f"{first.entry.label} cannot be locked{others}: {first.obstacle}", _LEFT)
    return outcomes
