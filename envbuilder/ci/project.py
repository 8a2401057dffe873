"""Read what the matrix is about: the locked profiles of a project, or of a folder without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.ci.matrix import LockedProfile, Omission
from envbuilder.core.errors import InvalidError
from envbuilder.locks.entries import entries
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.profile import Profile

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
    for name in names or (None,):
        for entry in entries(settings, name):
            if isinstance(entry.profile, Profile) and entry.profile.opt_in and not entry.required:
                continue
            try:
                yield _locked(entry, repository)
            except InvalidError as error:
                if entry.required:
                    raise
                yield Omission(label=entry.label, why=error.message)


def _locked(entry: Entry, repository: Path) -> LockedProfile:
    if isinstance(entry.profile, InvalidError):
        raise entry.profile
    lock = profile_lock.load(entry.earlier) if entry.earlier else None
    usable = profile_lock.require_usable(entry.profile, lock)
    assert entry.earlier is not None, "there is a lock"
    path = entry.earlier.resolve()
    inside = path.is_relative_to(repository.resolve())
    return LockedProfile(
        environment=entry.environment,
        profile=entry.profile,
        lock=usable,
        path=path.relative_to(repository.resolve()).as_posix() if inside else "",
    )
