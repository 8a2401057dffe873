"""The profiles and locks that one command uses: each file is read and checked at most once."""

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
    """A profile has another framework than the project."""


class Variants(Protocol):
    """A project's variants of profiles, and the places of their locks."""

    @property
    def framework(self) -> tuple[types.Framework, str]:
        """The project's framework and the reason for it, which is empty for the default."""

    def names(self, folders: Sequence[Path]) -> tuple[str, ...]:
        """Return the names of the profiles to choose from."""

    def offers(self, name: str) -> fit.Offers:
        """Return a profile's releases, each with what in the project rules it out."""

    def alias_of(self, name: str) -> str:
        """Return the profile for a name of hardware: `cuda` may mean `jax-cuda`."""

    def unadapted(self, name: str) -> Profile:
        """Return a profile without the project's changes."""

    def of(self, profile: Profile) -> Profile:
        """Return the project's variant of a profile. Raises `InvalidError` if it has none."""

    def lock_path(self, name: str) -> Path:
        """Return the path of the lock of a variant, whether or not it exists."""


class Library:
    """Profiles and their locks in some folders, each read when first needed."""

    def __init__(
        self,
        folders: Sequence[Path],
        trusted: Sequence[str] | None = None,
        variants: Variants | None = None,
    ) -> None:
        """`trusted`: a used lock must be signed by one of these keys; None: no signature needed."""
        self.folders = tuple(folders)
        self.trusted = trusted
        self._variants = variants
        self._profiles: dict[str, Profile] = {}
        self._locks: dict[str, Lock | InvalidError | None] = {}
        self._contents: dict[str, tuple[Path, bytes]] = {}
        self.signed: tuple[signatures.Signed, ...] = ()
        """The accepted signatures of the locks that were read for use."""
        self.notes: tuple[str, ...] = ()
        """Notes for the user on locks that `usable_lock` returned."""

    def profile(self, name: str) -> Profile:
        """Return a profile. Raises `InvalidError` if it does not exist or is invalid."""
        if name not in self._profiles:
            if self._variants:
                self._profiles[name] = self._variants.of(self._variants.unadapted(name))
            else:
                self._profiles[name] = load_profile(name, self.folders)
        return self._profiles[name]

    def named(self, name: str) -> Profile:
        """Return the profile that a user names, possibly by its hardware alone."""
        return self.profile(self._variants.alias_of(name) if self._variants else name)

    def names(self) -> tuple[str, ...]:
        """Return the names of the profiles to choose from, sorted."""
        if self._variants:
            return self._variants.names(self.folders)
        return names(self.folders)

    def profiles(self) -> tuple[Profile, ...]:
        """Return all profiles to choose from. Raises `InvalidError` if one is invalid.

        Those that cannot be combined with the project are left out, unless none can be.
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
        """The framework for choosing a profile, and why; no reason for the default."""
        if self._variants:
            return self._variants.framework
        return (DEFAULT, "")

    def candidates(self, framework: types.Framework | None = None) -> tuple[Profile, ...]:
        """Return the profiles to choose from with one framework, like `profiles`."""
        wanted = framework or self.framework[0]
        return tuple(profile for profile in self.profiles() if profile.framework == wanted)

    def on_packages(self, name: str, python: str) -> str | None:
        """Return the name of a profile's variant whose base is made of locked packages, if any.

        Profiles that cannot be read are skipped.
        """
        for other in names(self.folders):
            with contextlib.suppress(InvalidError):
                variant = self.profile(other)
                if variant.extends == name and python in variant.debian_base:
                    return other
        return None

    def lock_places(self, name: str) -> tuple[Path, ...]:
        """Return the possible paths of a profile's lock; the first existing one is used."""
        if self._variants:
            return (self._variants.lock_path(name),)
        return tuple(folder / "locks" / f"{name}.json" for folder in self.folders)

    def lock(self, name: str) -> Lock | None:
        """Return the lock of a profile, to judge hosts; None if it has no readable one.

        For a variant without one, return the profile's own lock, without files if the variant has
        another release.
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
        """Return which release would work better on a host than a profile's, and how to get it."""
        from envbuilder.profiles import fit

        offers: fit.Offers = [(chosen, "") for chosen in profile.choices().values()]
        if self._variants:
            offers = self._variants.offers(profile.name)
        return fit.other_release(profile, host, self.lock(profile.name), offers)

    def locks(self, chosen: Sequence[Profile]) -> dict[str, Lock | None]:
        """Return the lock of each profile; None if it has no readable one."""
        return {profile.name: self.lock(profile.name) for profile in chosen}

    def usable_lock(self, profile: Profile, backend: str = "") -> Lock:
        """Return a profile's lock, checked for use; an empty lock if the backend does not use it.

        Raises `InvalidError` if it is damaged, missing, stale or unlocked, `SignatureError` if a
        required signature is missing or not accepted.
        """
        if not profile.takes_lock(backend):
            return profile_lock.nothing(profile)
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
        """Store a lock's accepted signature in `signed`; raise `SignatureError` if refused."""
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
    """A shipped lock that is not used, because another one is."""

    lock: Lock
    instead: Path
    """The lock that is used."""

    @property
    def sentence(self) -> str:
        """The sentence that names the lock used instead, and how to go back."""
        return (
            f"{self.instead} is used instead of the shipped lock; to return to that one, remove"
            " the file"
        )


def matching_shipped(profile: Profile, folders: Sequence[Path]) -> tuple[Path, Lock] | None:
    """Return the shipped lock of a profile; the last folder is the shipped one.

    None if it does not fit the profile, which may be one of the user's own.
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
    """Return the shipped lock of a profile if another one is used instead."""
    instead = profile_lock.path_for(profile.name, folders)
    if instead is None or instead.is_relative_to(folders[-1]):
        return None
    shipped = matching_shipped(profile, folders)
    if shipped and shipped[1].state != "unlocked":
        return ShadowedLock(shipped[1], instead)
    return None


LOCK_TYPE = "urn:envbuilder:lock:v1"
"""The predicate type of a statement about a lock."""


def signature_of(path: Path, folders: Sequence[Path]) -> Path | None:
    """Return the first signature file of a lock, if it has one."""
    for candidate in _signature_places(path, folders):
        if candidate.is_file():
            return candidate
    return None


def _signature_places(path: Path, folders: Sequence[Path]) -> list[Path]:
    """Return where to look for signatures: next to a lock, then among the folders' locks.

    Shipped locks cannot get one next to them.
    """
    from envbuilder.core import signatures

    name = signatures.path_beside(path).name
    return [*dict.fromkeys((path.with_name(name), *(f / "locks" / name for f in folders)))]
