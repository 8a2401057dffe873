"""Link a project's environment to a path in the project that stays the same, for editors.

An environment's own folder is another one after every change of its lock.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from envbuilder.core import files

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.settings import Settings

FOLDER = ".envbuilder"


def update(settings: Settings, prefix: Path) -> str:
    """Let `.envbuilder/ENVIRONMENT` in the project lead to an environment.

    Return a sentence if that is not possible; the environment works without. Does nothing outside
    of a project.
    """
    if settings.project is None or settings.definition is None:
        return ""
    folder = settings.project / FOLDER
    link = folder / settings.environment
    if link.is_symlink() and link.readlink() == prefix:
        return ""
    if folder.is_symlink() or (link.exists() and not link.is_symlink()):
        return f"{link}: not made by envbuilder, left as it is"
    new = folder / f".{settings.environment}.{secrets.token_hex(6)}"
    try:
        if not folder.exists():
            files.write(folder / ".gitignore", b"*\n")
        new.symlink_to(prefix)
        new.replace(link)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        return f"{link}: cannot be written: {error.strerror or error}"
    return ""
