"""Locks in a project's folder that no environment of it uses any more."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core import decoding, files, types
from envbuilder.core.settings import LOCKS, PROJECT_FILE
from envbuilder.profiles import profile as profile_files
from envbuilder.project import environments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.core.settings import Settings

_FILE = re.compile(r"([^.]+)\.([^.]+)(\.conda)?\.json")
_MOST = 1000
"""Files of the folder that are looked at."""


class Needless(Struct, frozen=True, kw_only=True):
    """A lock that could go."""

    path: Path
    why: str
    excluded: bool
    """Whether the project's file rules it out. Otherwise its profile does not exist on this
    machine, and may be somebody's own on another one."""


def needless(settings: Settings) -> Iterator[Needless]:
    """Yield the locks that a project does not need; files that are no locks of ours are not named.

    Nothing outside of a project.
    """
    if settings.project is None or settings.definition is None:
        return
    available = environments.names(settings.definition)
    listed = settings.definition.profiles
    profiles = profile_files.names(profile_files.search_path(settings.project, settings.config_dir))
    folder = settings.project / LOCKS
    files = sorted(itertools.islice(folder.iterdir(), _MOST)) if folder.is_dir() else []
    for path in files:
        match = _FILE.fullmatch(path.name)
        if match is None:
            continue
        environment, profile = match[1], match[2]
        if environment not in available:
            why, excluded = f"{PROJECT_FILE} has no environment '{environment}'", True
        elif listed is not None and profile not in listed:
            why, excluded = f"profiles: in {PROJECT_FILE} does not list '{profile}'", True
        elif profile not in profiles:
            why, excluded = f"there is no profile '{profile}' on this machine", False
        else:
            continue
        if types.is_name(environment) and _is_lock(path, profile):
            yield Needless(path=path, why=why, excluded=excluded)


def _is_lock(path: Path, profile: str) -> bool:
    """Return whether a file is a lock of this profile, as far as its first level tells."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        data = decoding.strict_json(files.read(path, decoding.LARGEST))
    except (OSError, ValueError):
        return False
    keys = {"schema", "profile", "inputs", "targets"}
    return isinstance(data, dict) and keys <= data.keys() and data["profile"] == profile
