"""The profiles and locks that one command uses: each file is read and checked at most once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import signed_lock
from envbuilder.profiles.profile import load as load_profile
from envbuilder.profiles.profile import names, search_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile
    from envbuilder.signatures.statement import Signed


class Library:
    """Profiles and their locks in some folders, read when first needed and then kept."""

    def __init__(self, folders: Sequence[Path], trusted: Sequence[str] | None = None) -> None:
        """`trusted`: keys, one of which must have signed a lock that is used; None: no matter."""
        self.folders = tuple(folders)
        self.trusted = trusted
        self._profiles: dict[str, Profile] = {}
        self._locks: dict[str, Lock | InvalidError | None] = {}
        self._contents: dict[str, tuple[Path, bytes]] = {}
        self.signed: tuple[Signed, ...] = ()
        """The accepted signatures of locks that `usable_lock` returned."""

    @classmethod
    def of(cls, settings: Settings) -> Library:
        """Return the library of a project, a user, and envbuilder itself, in this order."""
        folders = search_path(settings.project, settings.config_dir)
        return cls(folders, settings.configuration.signatures.locks)

    def profile(self, name: str) -> Profile:
        """Return a profile. Raises `InvalidError` if there is none or it is wrong."""
        if name not in self._profiles:
            self._profiles[name] = load_profile(name, self.folders)
        return self._profiles[name]

    def profiles(self) -> tuple[Profile, ...]:
        """Return all profiles, sorted by name. Raises `InvalidError` if one is wrong."""
        return tuple(self.profile(name) for name in names(self.folders))

    def on_packages(self, name: str, python: str) -> str | None:
        """Return the name of a profile's variant whose base is made of locked packages, if any.

        Profiles that cannot be read are passed over.
        """
        for other in names(self.folders):
            with contextlib.suppress(InvalidError):
                variant = self.profile(other)
                if variant.extends == name and python in variant.debian_base:
                    return other
        return None

    def lock(self, name: str) -> Lock | None:
        """Return the lock of a profile; None if it has no readable one."""
        lock = self._read(name)
        return None if isinstance(lock, InvalidError) else lock

    def locks(self, chosen: Sequence[Profile]) -> dict[str, Lock | None]:
        """Return the lock of each profile; None if it has no readable one."""
        return {profile.name: self.lock(profile.name) for profile in chosen}

    def usable_lock(self, profile: Profile, backend: str = "") -> Lock:
        """Return a profile's lock, checked for use; empty if the backend takes nothing from it.

        Raises `InvalidError` if it is damaged, missing, stale or unlocked, `SignatureError` if a
        required signature is missing or not accepted.
        """
        if not profile.takes_lock(backend):
            return profile_lock.nothing(profile)
        lock = self._read(profile.name)
        if isinstance(lock, InvalidError):
            raise lock
        usable = profile_lock.require_usable(profile, lock)
        path, content = self._contents[profile.name]
        signed = signed_lock.require(path, content, self.folders, self.trusted)
        self.signed = tuple(dict.fromkeys((*self.signed, *signed)))
        return usable

    def _read(self, name: str) -> Lock | InvalidError | None:
        if name not in self._locks:
            path = profile_lock.path_for(name, self.folders)
            try:
                self._locks[name] = self._load(name, path) if path else None
            except InvalidError as error:
                self._locks[name] = error
        return self._locks[name]

    def _load(self, name: str, path: Path) -> Lock:
        content = profile_lock.content(path, "envbuilder lock")
        self._contents[name] = path, content
        return profile_lock.parse(content, path)
