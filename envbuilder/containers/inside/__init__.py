"""Code that runs inside containers, as their first process."""

from __future__ import annotations

from pathlib import Path

_GUARD = Path(__file__).with_name("guard.py")
BEGINNING = "{beginning}"
"""Word of a guarded command that is replaced by the path of a file with stdin's first line."""


def guarded(python: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a container's command that runs another one for as long as its stdin stays open.

    The container then ends with the process at the other end, even if that is killed. `python`
    starts an interpreter of the image.
    """
    return (*python, "-c", _GUARD.read_text(encoding="utf-8"), BEGINNING, *command)


def accompanied(python: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a container's command that runs another in the foreground, passing signals on."""
    return (*python, "-c", _GUARD.read_text(encoding="utf-8"), "", *command)
