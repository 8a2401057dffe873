"""The profiles and locks that one command uses: each file is read and checked at most once."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from envbuilder.core.errors import InvalidError
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import shipped_lock, signed_lock
from envbuilder.profiles.frameworks import DEFAULT
from envbuilder.profiles.profile import load as load_profile
from envbuilder.profiles.profile import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core import types
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile
    from envbuilder.signatures.statement import Signed


class OtherFrameworkError(InvalidError):
    """A profile brings another framework than the project is for."""


class Variants(Protocol):
    """What a project makes of profiles, and where the locks of the results are."""

    @property
    def framework(self) -> tuple[types.Framework, str]:
        """The framework that the project is for, and what says so; "" if nothing does."""

    def names(self, folders: Sequence[Path]) -> tuple[str, ...]:
        """Return the names of the profiles to choose from."""

    def of(self, profile: Profile) -> Profile:
        """Return the project's variant of a profile. Raises `InvalidError` if it has none."""

    def lock_path(self, name: str) -> Path:
        """Return the path of the lock of a variant, whether or not it exists."""


class Library:
    """Profiles and their locks in some folders, read when first needed and then kept."""

    def __init__(
        self,
        folders: Sequence[Path],
        trusted: Sequence[str] | None = None,
        variants: Variants | None = None,
    ) -> None:
        """`trusted`: keys, one of which must have signed a lock that is used; None: no matter."""
        self.folders = tuple(folders)
        self.trusted = trusted
        self._variants = variants
        self._profiles: dict[str, Profile] = {}
        self._locks: dict[str, Lock | InvalidError | None] = {}
        self._contents: dict[str, tuple[Path, bytes]] = {}
        self.signed: tuple[Signed, ...] = ()
        """The accepted signatures of locks that `usable_lock` returned."""
        self.notes: tuple[str, ...] = ()
        """What a user should know of locks that `usable_lock` returned."""

    def profile(self, name: str) -> Profile:
        """Return a profile. Raises `InvalidError` if there is none or it is wrong."""
        if name not in self._profiles:
            profile = load_profile(name, self.folders)
            self._profiles[name] = self._variants.of(profile) if self._variants else profile
        return self._profiles[name]

    def names(self) -> tuple[str, ...]:
        """Return the names of the profiles to choose from, sorted."""
        return self._variants.names(self.folders) if self._variants else names(self.folders)

    def profiles(self) -> tuple[Profile, ...]:
        """Return all profiles to choose from. Raises `InvalidError` if one is wrong.

        Those that a project cannot be combined with are left out, unless that is all of them.
        """
        possible, errors = [], []
        for name in self.names():
            try:
                possible.append(self.profile(name))
            except InvalidError as error:
                if self._variants is None:
                    raise
                errors.append(error)
        if errors and not possible:
            raise min(errors, key=lambda error: isinstance(error, OtherFrameworkError))
        return tuple(possible)

    @property
    def framework(self) -> tuple[types.Framework, str]:
        """The framework to choose a profile of, and what says so; "" if nothing does."""
        return self._variants.framework if self._variants else (DEFAULT, "")

    def candidates(self, framework: types.Framework | None = None) -> tuple[Profile, ...]:
        """Return the profiles to choose from that bring one framework, as `profiles` does."""
        wanted = framework or self.framework[0]
        return tuple(profile for profile in self.profiles() if profile.framework == wanted)

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

    def lock_places(self, name: str) -> tuple[Path, ...]:
        """Return the paths that a profile's lock may have; the first one that exists is used."""
        if self._variants:
            return (self._variants.lock_path(name),)
        return tuple(folder / "locks" / f"{name}.json" for folder in self.folders)

    def lock(self, name: str) -> Lock | None:
        """Return the lock of a profile, for judging hosts by it; None if it has no readable one.

        For a variant that is not locked yet, it is that of the profile itself: same framework.
        """
        lock = self._read(name)
        if lock is None and self._variants:
            path = profile_lock.path_for(name, self.folders)
            with contextlib.suppress(InvalidError):
                return profile_lock.load(path) if path else None
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
        hidden = None if self._variants else shipped_lock.hidden(profile, self.folders)
        try:
            if isinstance(lock, InvalidError):
                raise lock
            usable = profile_lock.require_usable(
                profile, lock, of_project=self._variants is not None
            )
        except InvalidError as error:
            if hidden is None:
                raise
            way_back = f"to return to the lock that came with envbuilder, remove {hidden.instead}"
            raise InvalidError(error.message, f"{error.hint}; {way_back}") from error
        if hidden is not None and shipped_lock.is_preferable(hidden.lock, usable):
            self.notes = (hidden.sentence(usable),)
        path, content = self._contents[profile.name]
        signed = signed_lock.require(path, content, self.folders, self.trusted)
        self.signed = tuple(dict.fromkeys((*self.signed, *signed)))
        return usable

    def _read(self, name: str) -> Lock | InvalidError | None:
        if name not in self._locks:
            path = next(filter(Path.is_file, self.lock_places(name)), None)
            try:
                self._locks[name] = self._load(name, path) if path else None
            except InvalidError as error:
                self._locks[name] = error
        return self._locks[name]

    def _load(self, name: str, path: Path) -> Lock:
        content = profile_lock.content(path, "envbuilder lock")
        self._contents[name] = path, content
        return profile_lock.parse(content, path)
