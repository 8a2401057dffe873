"""The lock that came with envbuilder for a profile, where one of the user's own is used instead.

`envbuilder lock` writes such a lock, which stays when envbuilder and its locks are updated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from envbuilder.core.errors import InvalidError
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.frameworks import of_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile


class Hidden(NamedTuple):
    """A shipped lock that is not used, because there is another one."""

    lock: Lock
    instead: Path
    """The lock that is used."""

    def sentence(self, used: Lock | None) -> str:
        """Return which lock is used instead, how the two differ, and the way back.

        `used`: the other lock, if it can be read.
        """
        difference = f", which {comparison(self.lock, used)}" if used else ""
        return (
            f"{self.instead} is used instead of the lock that came with envbuilder{difference}; to"
            " return to that one, remove the file"
        )


def fitting(profile: Profile, folders: Sequence[Path]) -> tuple[Path, Lock] | None:
    """Return the shipped lock of a profile; the last folder is the shipped one.

    None if it does not fit the profile, which may be one of the user's own.
    """
    path = profile_lock.path_for(profile.name, folders[-1:])
    try:
        lock = profile_lock.load(path) if path else None
    except InvalidError:
        return None
    fits = lock is not None and lock.inputs == profile_lock.inputs_digest(profile)
    return (path, lock) if path and lock and fits else None


def hidden(profile: Profile, folders: Sequence[Path]) -> Hidden | None:
    """Return the shipped lock of a profile if another one is used instead."""
    instead = profile_lock.path_for(profile.name, folders)
    if instead is None or instead.is_relative_to(folders[-1]):
        return None
    shipped = fitting(profile, folders)
    return Hidden(shipped[1], instead) if shipped and shipped[1].state != "unlocked" else None


def comparison(shipped: Lock, other: Lock) -> str:
    """Return how a shipped lock differs from the one that hides it, in a few words."""
    newer, older = _moves(shipped, other)
    if shipped == other:
        return "is the same"
    if newer and not older:
        return f"is newer: {_listed(newer)}"
    if older and not newer:
        return f"is older: {_listed(older)}"
    return f"differs: {_listed([*newer, *older])}" if newer else "has the same versions"


def is_preferable(shipped: Lock, other: Lock) -> bool:
    """Return whether a shipped lock has another framework's version, or only newer packages."""
    newer, older = _moves(shipped, other)
    moved = any(_is_framework(line.partition(" ")[0]) for line in (*newer, *older))
    return moved or bool(newer and not older)


def _moves(shipped: Lock, other: Lock) -> tuple[list[str], list[str]]:
    """Return the packages that a shipped lock has in newer versions, and those in older ones."""
    from packaging.version import InvalidVersion, Version

    def is_newer(version: str, than: str) -> bool:
        try:
            return Version(version) > Version(than)
        except InvalidVersion:
            return True  # the user's lock alone can have one: the shipped ones are checked

    versions = _versions(other)
    newer: dict[str, None] = {}
    older: dict[str, None] = {}
    for key, version in _versions(shipped).items():
        if key in versions and version != versions[key]:
            (newer if is_newer(version, versions[key]) else older)[f"{key[-1]} {version}"] = None
    return [*newer], [*older]


def _versions(lock: Lock) -> dict[tuple[str, str, str], str]:
    """Return the versions of Python packages, by platform, Python and name; frameworks first."""
    files = [
        ((target.platform, target.python, file.name), file.version)
        for target in lock.targets
        for file in target.of_kind("wheel")
    ]
    return dict(sorted(files, key=lambda item: not _is_framework(item[0][-1])))


def _is_framework(name: str) -> bool:
    return of_name(name) is not None


def _listed(packages: Sequence[str]) -> str:
    more = f" and {len(packages) - 3} more" if packages[3:] else ""
    return f"{', '.join(packages[:3])}{more}"
