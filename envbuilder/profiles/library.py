"""The profiles and locks that one command uses. Each of them is read at most once."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec.structs import replace

from envbuilder.core.errors import Hint, InvalidError
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.frameworks import DEFAULT
from envbuilder.profiles.profile import Profile, load as load_profile, names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core import signatures, types
    from envbuilder.host.model import Host
    from envbuilder.profiles import fit
    from envbuilder.profiles.lock import Lock


class OtherFrameworkError(InvalidError):
    """An error for a profile whose framework differs from the project's framework."""


class Variants(Protocol):
    """A project's variants of profiles, and the locations of their locks."""

    @property
    def framework(self) -> tuple[types.Framework, str]:
        """The project's framework and the reason for it. The reason is empty for the default."""

    def names(self, folders: Sequence[Path]) -> tuple[str, ...]:
        """Return the names of the profiles that can be chosen.

        `folders` are the folders that contain profiles.
        """

    def offers(self, name: str) -> fit.Offers:
        """Return a profile's releases, each with the reason why the project cannot use it.

        The reason is empty if the project can use the release.
        """

    def alias_of(self, name: str) -> str:
        """Return the name of the profile for a kind of hardware, such as `jax-cuda` for `cuda`."""

    def unadapted(self, name: str) -> Profile:
        """Return a profile as it is without the project's changes."""

    def of(self, profile: Profile) -> Profile:
        """Return the project's variant of a profile; raise `InvalidError` if there is none."""

    def lock_path(self, name: str) -> Path:
        """Return the path of a variant's lock, whether or not the file exists."""


class Library:
    """The profiles and locks in a list of folders. Each of them is read when first needed."""

    def __init__(
        self,
        folders: Sequence[Path],
        trusted: Sequence[str] | None = None,
        variants: Variants | None = None,
    ) -> None:
        """Create a library without reading anything.

        If `trusted` is given, each lock must be signed with one of these keys before it is used. If
        `trusted` is None, no signature is needed.
        """
        self.folders = tuple(folders)
        self.trusted = trusted
        self._variants = variants
        self._profiles: dict[str, Profile] = {}
        self._locks: dict[str, Lock | InvalidError | None] = {}
        self._contents: dict[str, tuple[Path, bytes]] = {}
        self.signed: tuple[signatures.Signed, ...] = ()
        """The accepted signatures of the locks that were read for use."""
        self.notes: tuple[str, ...] = ()
        """Notes for the user about locks that `usable_lock` returned."""

    def profile(self, name: str) -> Profile:
        """Return the profile `name`; raise `InvalidError` if it does not exist or is invalid."""
        if name not in self._profiles:
            if self._variants:
                self._profiles[name] = self._variants.of(self._variants.unadapted(name))
            else:
                self._profiles[name] = load_profile(name, self.folders)
        return self._profiles[name]

    def named(self, name: str) -> Profile:
        """Return the profile that a user named, either by its name or by its hardware."""
        return self.profile(self._variants.alias_of(name) if self._variants else name)

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of the profiles that can be chosen."""
        if self._variants:
            return self._variants.names(self.folders)
        return names(self.folders)

    def profiles(self) -> tuple[Profile, ...]:
        """Return all profiles that can be chosen; raise `InvalidError` if one of them is invalid.

        In a project, profiles that cannot be combined with the project are left out. If none can be
        combined, raise `InvalidError`.
        """
        possible = []
        errors = []
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
        """The framework whose profiles can be chosen, and the reason for this framework.

        The reason is empty for the default framework.
        """
        if self._variants:
            return self._variants.framework
        return (DEFAULT, "")

    def candidates(self, framework: types.Framework | None = None) -> tuple[Profile, ...]:
        """Return the profiles that can be chosen for a framework.

        The default is the project's framework. Raise `InvalidError` in the same cases as
        `profiles`.
        """
        wanted = framework or self.framework[0]
        return tuple(profile for profile in self.profiles() if profile.framework == wanted)

    def on_packages(self, name: str, python: str) -> str | None:
        """Return the name of a profile's variant whose base consists of locked Debian packages.

        Return None if there is no such variant for the given Python version. Profiles that cannot
        be read are skipped.
        """
        for other in names(self.folders):
            with contextlib.suppress(InvalidError):
                variant = self.profile(other)
                if variant.extends == name and python in variant.debian_base:
                    return other
        return None

    def lock_places(self, name: str) -> tuple[Path, ...]:
        """Return the paths where a profile's lock may be. The first one that exists is used."""
        if self._variants:
            return (self._variants.lock_path(name),)
        return tuple(folder / "locks" / f"{name}.json" for folder in self.folders)

    def lock(self, name: str) -> Lock | None:
        """Return the lock with which to judge hosts, or None if there is no readable lock.

        If a project's variant has no readable lock, return the original profile's lock. If the
        original profile has a different release than the variant, remove the files from that lock.
        """
        lock = self._read(name)
        if self._variants and (lock is None or isinstance(lock, InvalidError)):
            path = profile_lock.path_for(name, self.folders)
            with contextlib.suppress(InvalidError):
                lock = profile_lock.load(path) if path else None
                if self.profile(name).release != self._variants.unadapted(name).release:
                    return lock and replace(lock, targets=())
                return lock
        if isinstance(lock, InvalidError):
            return None
        return lock

    def advice(self, profile: Profile, host: Host) -> str:
        """Return a sentence that suggests a framework release that would suit a host better.

        Return an empty string if there is no such release.
        """
        from envbuilder.profiles import fit

        offers: fit.Offers = [(chosen, "") for chosen in profile.choices().values()]
        if self._variants:
            offers = self._variants.offers(profile.name)
        return fit.other_release(profile, host, self.lock(profile.name), offers)

    def locks(self, chosen: Sequence[Profile]) -> dict[str, Lock | None]:
        """Return the lock of each profile, by profile name.

        The lock is None if a profile has no readable lock.
        """
        return {profile.name: self.lock(profile.name) for profile in chosen}

    def usable_lock(self, profile: Profile) -> Lock:
        """Return a profile's lock after checking that it can be used.

        Raise `InvalidError` if the lock is damaged, missing, stale or unlocked, and
        `SignatureError` if a required signature is missing or not accepted.
        """
        lock = self._read(profile.name)
        hidden = None if self._variants else hidden_lock(profile, self.folders)
        try:
            if isinstance(lock, InvalidError):
                raise lock
            usable = profile_lock.require_usable(
                profile, lock, of_project=self._variants is not None
            )
        except InvalidError as error:
            if hidden is None:
                raise
            way_back = f"To return to the shipped lock, remove {hidden.instead}"
            raise InvalidError(error.message, (*error.hints, Hint(way_back))) from error
        if hidden is not None and hidden.lock != usable:
            self.notes = (hidden.sentence,)
        path, content = self._contents[profile.name]
        self.require_signature(path, content)
        return usable

    def require_signature(self, path: Path, content: bytes) -> None:
        """Check a lock's signature if signatures are required, and add the signature to `signed`.

        Raise `SignatureError` if the signature is missing or not accepted.
        """
        if self.trusted is None:
            return
        from envbuilder.core import signatures  # few locks have to be signed

        digests = {"sha256": hashlib.sha256(content).hexdigest()}
        files = _signature_places(path, self.folders)
        trusted = signatures.read_public_keys(self.trusted)
        _, signed = signatures.require_signed(str(path), files, trusted, LOCK_TYPE, digests)
        self.signed = tuple(dict.fromkeys((*self.signed, replace(signed, name=path.name))))

    def _read(self, name: str) -> Lock | InvalidError | None:
        if name not in self._locks:
            path = next(filter(Path.is_file, self.lock_places(name)), None)
            try:
                self._locks[name] = self._load(name, path) if path else None
            except InvalidError as error:
                self._locks[name] = error
        return self._locks[name]

    def _load(self, name: str, path: Path) -> Lock:
        content = profile_lock.content(path, ("lock",))
        self._contents[name] = path, content
        return profile_lock.parse(content, path)


class ShadowedLock(NamedTuple):
    """A shipped lock that is not used because another lock of the profile takes precedence."""

    lock: Lock
    instead: Path
    """The path of the lock that is used."""

    @property
    def sentence(self) -> str:
        """A sentence that names the lock in use and says how to return to the shipped lock."""
        return f"{self.instead} replaces the shipped lock, until you remove the file"


def matching_shipped(profile: Profile, folders: Sequence[Path]) -> tuple[Path, Lock] | None:
    """Return the shipped lock of a profile, with its path.

    Shipped locks are in the last of the folders. Return None if there is no such lock, or if it
    does not match the profile, for example because the user has replaced the profile.
    """
    path = profile_lock.path_for(profile.name, folders[-1:])
    try:
        lock = profile_lock.load(path) if path else None
    except InvalidError:
        return None
    if path and lock and lock.inputs == profile_lock.inputs_digest(profile):
        return path, lock
    return None


def hidden_lock(profile: Profile, folders: Sequence[Path]) -> ShadowedLock | None:
    """Return a profile's shipped lock if another lock is used instead; otherwise None."""
    instead = profile_lock.path_for(profile.name, folders)
    if instead is None or instead.is_relative_to(folders[-1]):
        return None
    shipped = matching_shipped(profile, folders)
    if shipped and shipped[1].state != "unlocked":
        return ShadowedLock(shipped[1], instead)
    return None


LOCK_TYPE = "urn:envbuilder:lock:v1"
"""The predicate type of a signed statement about a lock."""


def signature_of(path: Path, folders: Sequence[Path]) -> Path | None:
    """Return the path of a lock's first existing signature file, or None if there is none."""
    for candidate in _signature_places(path, folders):
        if candidate.is_file():
            return candidate
    return None


def _signature_places(path: Path, folders: Sequence[Path]) -> list[Path]:
    """Return the paths where a lock's signature may be, in order of precedence.

    The first path is next to the lock. The others are in the `locks` folder of each profile folder,
    because a shipped lock cannot have a signature next to it.
    """
    from envbuilder.core import signatures

    name = signatures.path_beside(path).name
    return [*dict.fromkeys((path.with_name(name), *(f / "locks" / name for f in folders)))]
