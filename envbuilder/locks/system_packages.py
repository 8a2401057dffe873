"""Choose the Debian base of a target, and the .debs to install on it.

A base is an image that the profile names, or a system made of Debian packages (`debian_base`), all
of which are in the lock. The packages to install are computed for the base that will be used, if it
can be read; otherwise so that they fit any minimal system of the suite.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from envbuilder.core.errors import InvalidError
from envbuilder.packages.debian import mirrors as archives
from envbuilder.packages.debian import suite as debian
from envbuilder.profiles.lock import Lock, LockedBase, Target, inputs_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from envbuilder.core import types as words
    from envbuilder.core.settings import Settings
    from envbuilder.packages.debian.package import Stanza
    from envbuilder.packages.debian.status import Status
    from envbuilder.packages.debian.suite import Suite
    from envbuilder.profiles.locked_file import File
    from envbuilder.profiles.profile import Profile

    ReadBase = Callable[[str, words.Platform, Settings, Callable[[str], None]], Status | None]


class Debs:
    """The bases and .debs of one profile's targets; each suite and base is read once."""

    def __init__(
        self,
        profile: Profile,
        settings: Settings,
        kept: Lock | None,
        on_progress: Callable[[str], None],
        read_base: ReadBase,
        base_image: str | None = None,
    ) -> None:
        self._profile, self._settings, self._note = profile, settings, on_progress
        self._read_base, self._base_image = read_base, base_image
        self._kept = kept if kept is not None and kept.inputs == inputs_digest(profile) else None
        self._suites: dict[str, Suite] = {}
        self._closures: dict[tuple[str, str], tuple[File, ...]] = {}

    def of(
        self, platform: words.Platform, python: words.PythonVersion
    ) -> tuple[LockedBase | None, tuple[File, ...]]:
        """Return the base of a target and its .debs; None and no files if it is not for Linux."""
        profile = self._profile
        if not platform.startswith("linux/"):
            return None, ()
        if python in profile.debian_base:
            return self._made(platform, python)
        # Without an image, .debs are only unpacked to get a library to preload.
        if not profile.system_packages or not (python in profile.base or profile.preload):
            return base(profile, platform, python, ()), ()
        before = self._before(platform, python)
        stated = before.base.status if before and before.base else None
        if before is not None and stated is None:
            return before.base, before.of_kind("deb")  # they fit any base
        status = self._status(platform, python)
        if before is not None and (status is None or status.digest == stated):
            return before.base, before.of_kind("deb")  # they fit this base, or it is unreadable
        files = self._on_image(platform, status)
        found = base(profile, platform, python, files, status.packages if status else {})
        if found is not None and status is not None:
            found = msgspec.structs.replace(found, status=status.digest)
        return found, files

    def _made(
        self, platform: words.Platform, python: words.PythonVersion
    ) -> tuple[LockedBase | None, tuple[File, ...]]:
        """Return a base made of locked packages, its packages and those installed on it."""
        before = self._before(platform, python)
        if before is not None:
            return before.base, (*before.base_files, *before.of_kind("deb"))
        suite = self._suite(platform)
        own = debian.lock_base(self._profile.debian_base[python].include, suite)
        if not any(f.name == f"python{python}" for f in own):
            raise InvalidError(
                f"profile '{self._profile.name}': debian_base.{python}: brings no python{python}",
                f"Add python{python}, or python3 where that is the suite's own Python.",
            )
        installed: dict[str, Stanza] = {f.name: suite.packages[f.name] for f in own}
        files = (*own, *debian.lock(self._profile.system_packages, suite, installed))
        return base(self._profile, platform, python, files), files

    def _on_image(self, platform: words.Platform, status: Status | None) -> tuple[File, ...]:
        """Return the packages to install on an image; shared by images with equal packages."""
        key = (platform, status.digest if status else "")
        if key not in self._closures:
            installed = status.packages if status else None
            wanted = self._profile.system_packages
            suite = self._suite(platform)
            self._closures[key] = debian.lock(wanted, suite, installed, self._listed())
        return self._closures[key]

    def _status(self, platform: words.Platform, python: words.PythonVersion) -> Status | None:
        image = self._profile.base.get(python)
        if image is None or not self._profile.system_packages:
            return None
        named = self._base_image or self._settings.configuration.base_images.get(image.ref)
        locked = f"{image.ref}@{image.digest}" if image.digest else image.ref
        return self._read_base(named or locked, platform, self._settings, self._note)

    def _before(self, platform: str, python: str) -> Target | None:
        """Return the target of the previous lock, if the profile has not changed since.

        A suite has only its newest versions, so there is no intermediate version to prefer:
        packages are either kept as they are or chosen again.
        """
        for target in self._kept.targets if self._kept else ():
            if (target.platform, target.python) == (platform, python):
                return target
        return None

    def _listed(self) -> tuple[str, ...]:
        """Return the packages that are locked even if the base has them.

        A native environment has no base: it unpacks the library that it preloads from the same
        files.
        """
        native = self._profile.preload and "venv" in self._profile.backends
        return self._profile.system_packages if native else ()

    def _suite(self, platform: str) -> Suite:
        if platform not in self._suites:
            name = self._profile.debian_suite
            self._suites[platform] = debian.load(name, platform, self._settings, self._note)
        return self._suites[platform]


def base(
    profile: Profile,
    platform: words.Platform,
    python: words.PythonVersion,
    debs: Iterable[File],
    installed: Mapping[str, Stanza] | None = None,
) -> LockedBase | None:
    """Return the base of a target, as its profile and its .debs state it; pure.

    If Python is a Debian package, that package decides the version.
    """
    if not platform.startswith("linux/"):
        return None
    debs = tuple(debs)
    versions = {n: s.version for n, s in (installed or {}).items()} | {
        f.name: f.version for f in debs
    }
    packaged = versions.get(f"python{python}", "").partition("-")[0]
    own = tuple(f for f in debs if f.role == "base")
    if python in profile.debian_base:
        seen = [when for f in own if (when := archives.seen(f))]
        unpacked = platform in profile.debian_base[python].unpacked
        named = hashlib.sha256("".join(sorted(f.sha256 for f in own)).encode()).hexdigest()
        kind = "unpacked-" if unpacked else ""
        return LockedBase(
            ref=f"envbuilder/debian:{profile.debian_suite}-{kind}{named[:12]}",
            digest=None,
            date=max(seen)[:10] if seen else None,
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


def is_current(profile: Profile, target: Target) -> bool:
    """Return whether a target's base is still the one that its profile and its .debs name."""
    stated = base(
        profile, target.platform, target.python, (*target.base_files, *target.of_kind("deb"))
    )
    own = target.base
    if own is None or stated is None:
        return own is stated
    # A version that was read in the base image cannot be derived without the image.
    version = stated.python_version or own.python_version
    return msgspec.structs.replace(own, status=None) == msgspec.structs.replace(
        stated, python_version=version
    )
