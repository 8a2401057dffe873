"""Read what the matrix is about: the locked profiles of a project, or of a folder without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.ci.matrix import LockedProfile, Omission
from envbuilder.core.errors import InvalidError
from envbuilder.locks.entries import entries
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.library import Library
from envbuilder.profiles.profile import Profile, search_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.locks.entries import Entry


def profiles(
    settings: Settings, names: Sequence[str], repository: Path
) -> Iterator[LockedProfile | Omission]:
    """Yield the named profiles, or all that are not opt-in, with their locks.

    What cannot be used is left out, unless it is named or the project lists it: then `InvalidError`
    is raised.
    """
    library = Library(search_path(settings.project, settings.config_dir))
    for name in names or (None,):
        for entry in entries(settings, name):
            if isinstance(entry.profile, Profile) and entry.profile.opt_in and not entry.required:
                continue
            try:
                yield _locked(entry, library, repository)
            except InvalidError as error:
                if entry.required:
                    raise
                yield Omission(label=entry.label, why=error.message)


def _locked(entry: Entry, library: Library, repository: Path) -> LockedProfile:
    """Return a profile with its locks; raise `InvalidError` if it has none that can be used."""
    if isinstance(entry.profile, InvalidError):
        raise entry.profile
    lock = profile_lock.load(entry.earlier) if entry.earlier else None
    usable = profile_lock.require_usable(entry.profile, lock, of_project=bool(entry.environment))
    path = _conda_path(entry, entry.profile, library)
    of_conda = conda_lock.require_usable(entry.profile, conda_lock.load(path)) if path else None
    return LockedProfile(
        environment=entry.environment,
        profile=entry.profile,
        lock=usable,
        path=_inside(entry.earlier, repository),
        conda_lock=of_conda,
        conda_path=_inside(path, repository),
    )


def _conda_path(entry: Entry, profile: Profile, library: Library) -> Path | None:
    """Return the path of a conda lock, if there is one; raise `InvalidError` if one is needed."""
    path = conda_lock.path_for(entry.name, library)
    if entry.environment:
        beside = conda_lock.beside(entry.path)
        path = beside if beside.is_file() else None
    if path is None and profile.backends == ("conda",):
        conda_lock.require_usable(profile, None)
    return path


def _inside(path: Path | None, repository: Path) -> str:
    """Return a path relative to the repository; empty if it is none, or elsewhere."""
    root = repository.resolve()
    if path is None or not path.resolve().is_relative_to(root):
        return ""
    return path.resolve().relative_to(root).as_posix()
