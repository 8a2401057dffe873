"""Record which projects use what was built: for each, a small file with its path, beside it.

What was built is named by its content, so that all projects with the same lock share it. It is used
by every project that a command was given in; one that is no longer there uses nothing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.builds.attestations import NATIVE
from envbuilder.core import files
from envbuilder.core.settings import PROJECT_FILE

if TYPE_CHECKING:
    from envbuilder.builds.plan import Plan
    from envbuilder.core.settings import Settings

FOLDER = "users"
"""Subfolder, in the folder of a fingerprint's images, of the records of their users."""


def of_environment(prefix: Path) -> Path:
    """Return the folder that records the users of a native environment."""
    return prefix.with_name(f".{prefix.name}.{FOLDER}")


def record(plan: Plan, settings: Settings) -> None:
    """Record that the current project, if any, uses what a plan made on this machine.

    What cannot be recorded works without.
    """
    kind = plan.artifact.kind
    if settings.project is None or kind not in NATIVE | {"image"}:
        return
    folder = settings.records_dir / plan.fingerprint / FOLDER
    if kind in NATIVE:
        folder = of_environment(Path(plan.artifact.ref))
    entry = folder / files.folder_identity(settings.project)
    with contextlib.suppress(OSError):
        if not entry.exists():
            files.ensure_folder(folder)
            files.write(entry, os.fsencode(settings.project), files.PRIVATE)


def recorded(folder: Path) -> tuple[Path, ...]:
    """Return the projects in a folder of records that are still there, sorted."""
    projects = []
    for entry in folder.glob("[0-9a-f]*"):
        with contextlib.suppress(OSError):
            project = Path(os.fsdecode(entry.read_bytes()))
            if entry.name == files.folder_identity(project) and _is_there(project):
                projects.append(project)
    return tuple(sorted(projects))


def _is_there(project: Path) -> bool:
    """Return whether a folder still holds a project, or cannot be looked into."""
    try:
        (project / PROJECT_FILE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
