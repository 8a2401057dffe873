"""Choose the Debian base of a target, and the .debs to install on it.

A base is an image that the profile names, or a system made of Debian packages (`debian_base`), all
of which are in the lock. The packages to install fit any minimal system of the suite, or that made
one; what an image has installed is never read, so that the lock does not depend on it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from envbuilder.core.errors import InvalidError
from envbuilder.packages.debian import suite
from envbuilder.profiles.lock import File, Lock, LockedBase, Target, inputs_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from envbuilder.core import types
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile


class Debs:
    """The bases and .debs of one profile's targets; each suite is read once.

    They are taken from `previous` if the profile has not changed since, else from the lock of its
    `origin` if that has the same system.
    """

    def __init__(
        self,
        profile: Profile,
        settings: Settings,
        previous: Lock | None,
        on_progress: Callable[[str], None],
        origin: tuple[Profile, Lock] | None = None,
    ) -> None:
        self._profile, self._settings, self._note = profile, settings, on_progress
        fresh = previous is not None and previous.inputs == inputs_digest(profile)
        of_origin = origin[1] if origin and _is_same_system(profile, origin[0]) else None
        self._previous = previous if fresh else of_origin
        self._origin = origin
        self._suites: dict[str, suite.Suite] = {}
        self._closures: dict[types.Platform, tuple[File, ...]] = {}

    def of(
        self, platform: types.Platform, python: types.PythonVersion
    ) -> tuple[LockedBase | None, tuple[File, ...]]:
        """Return the base of a target and its .debs; None and no files if it is not for Linux."""
        profile = self._profile
        if not platform.startswith("linux/"):
            return None, ()
        if python in profile.debian_base:
            return self._of_packages(platform, python)
        # Without an image, .debs are only unpacked to get a library to preload.
        if not profile.system_packages or not (python in profile.base or profile.preload):
            return base(profile, platform, python, ()), ()
        before = self._before(platform, python)
        # An earlier envbuilder may have chosen the packages for one image: they are chosen again.
        if before is not None and not (before.base and before.base.status):
            return before.base, before.of_kind("deb")
        files = self._on_image(platform)
        return base(profile, platform, python, files), files

    def _of_packages(
        self, platform: types.Platform, python: types.PythonVersion
    ) -> tuple[LockedBase | None, tuple[File, ...]]:
        """Return a base made of locked packages, its packages and those installed on it."""
        before = self._before(platform, python)
        if before is not None:
            return before.base, (*before.base_files, *before.of_kind("deb"))
        debian_suite = self._suite(platform)
        system = suite.lock_base(self._profile.debian_base[python].include, debian_suite)
        if not any(f.name == f"python{python}" for f in system):
            raise InvalidError(
                f"profile '{self._profile.name}': debian_base.{python}: lacks python{python}",
                f"Add python{python}, or python3 if that is the suite's own version.",
            )
        names = frozenset(f.name for f in system)
        files = (*system, *suite.lock(self._profile.system_packages, debian_suite, names))
        return base(self._profile, platform, python, files), files

    def _on_image(self, platform: types.Platform) -> tuple[File, ...]:
        """Return the packages to install on an image; the same for every image of a platform."""
        if platform not in self._closures:
            self._closures[platform] = self._of_origin(platform) or suite.lock(
                self._profile.system_packages, self._suite(platform)
            )
        return self._closures[platform]

    def _of_origin(self, platform: types.Platform) -> tuple[File, ...]:
        """Return the packages that the origin's images have, if it asks for the same ones."""
        other = self._origin[0] if self._origin else self._profile
        if self._origin is None or other.debian_base or not _asks_for_same(self._profile, other):
            return ()
        targets = (t for t in self._origin[1].targets if t.platform == platform)
        every = (t.of_kind("deb") for t in targets if t.base and not t.base.status)
        return next(filter(None, every), ())

    def _before(self, platform: str, python: str) -> Target | None:
        """Return the target of the previous lock, if the profile has not changed since.

        A suite has only its newest versions, so there is no intermediate version to prefer:
        packages are either kept as they are or chosen again.
        """
        for target in self._previous.targets if self._previous else ():
            if (target.platform, target.python) == (platform, python):
                return target
        return None

    def _suite(self, platform: str) -> suite.Suite:
        if platform not in self._suites:
            name = self._profile.debian_suite
            self._suites[platform] = suite.load(name, platform, self._settings, self._note)
        return self._suites[platform]


def base(
    profile: Profile,
    platform: types.Platform,
    python: types.PythonVersion,
    debs: Iterable[File],
) -> LockedBase | None:
    """Return the base of a target, as its profile and its .debs state it; pure.

    If Python is a Debian package, that package decides the version.
    """
    if not platform.startswith("linux/"):
        return None
    debs = tuple(debs)
    versions = {f.name: f.version for f in debs}
    packaged = versions.get(f"python{python}", "").partition("-")[0]
    system = tuple(f for f in debs if f.role == "base")
    if python in profile.debian_base:
        dates = [when for f in system if (when := suite.seen(f))]
        unpacked = platform in profile.debian_base[python].unpacked
        named = hashlib.sha256("".join(sorted(f.sha256 for f in system)).encode()).hexdigest()
        kind = "unpacked-" if unpacked else ""
        return LockedBase(
            ref=f"envbuilder/debian:{profile.debian_suite}-{kind}{named[:12]}",
            digest=None,
            date=max(dates)[:10] if dates else None,
            python_path=f"/usr/bin/python{python}",
            python_version=packaged,
            suite=profile.debian_suite,
            unpacked=unpacked,
        )
    image = profile.base.get(python)
    if image is None:
        return None
    return LockedBase(
        ref=image.ref,
        digest=image.digest,
        date=image.date,
        python_path=image.python_path,
        python_version=image.python_version or packaged,
    )


def _is_same_system(profile: Profile, other: Profile) -> bool:
    """Return whether the targets that two profiles share have the same base and .debs."""
    return _asks_for_same(profile, other) and all(
        getattr(other, key).get(python) == value
        for key in ("base", "debian_base")
        for python, value in getattr(profile, key).items()
    )


def _asks_for_same(profile: Profile, other: Profile) -> bool:
    """Return whether two profiles ask for the same packages of the same suite."""
    keys = ("debian_suite", "system_packages", "preload")
    return all(getattr(profile, key) == getattr(other, key) for key in keys)


def is_current(profile: Profile, target: Target) -> bool:
    """Return whether a target's base is still the one that its profile and its .debs name."""
    stated = base(
        profile, target.platform, target.python, (*target.base_files, *target.of_kind("deb"))
    )
    locked = target.base
    if locked is None or stated is None:
        return locked is stated
    # Earlier envbuilders read the version in the base image if no package stated it.
    version = stated.python_version or locked.python_version
    return msgspec.structs.replace(locked, status=None) == msgspec.structs.replace(
        stated, python_version=version
    )
