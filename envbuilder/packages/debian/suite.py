"""Debian archives: the package lists of a suite, and the bases and .debs of targets.

Package lists are read over HTTP from the machine's own mirror and checked against the sha256 in
their Release file. The Release file's signature is not checked: the mirror must be trusted when a
lock is made, but not when it is used, because the lock holds the sha256 of every file.
"""

from __future__ import annotations

import hashlib
import io
import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from envbuilder.core import archives, decoding, types
from envbuilder.core.errors import BuildError, InvalidError, clipped
from envbuilder.core.http import open_session, read, reason, request
from envbuilder.packages.debian import mirrors
from envbuilder.packages.debian.package import (
    Package,
    closure,
    keep_newest,
    minimal,
    parse_packages,
)
from envbuilder.packages.python import indexes
from envbuilder.profiles.lock import (
    MAIN,
    SECURITY,
    File,
    Lock,
    LockedBase,
    Target,
    inputs_digest,
    target_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile

_LARGEST = 128 << 20
"""Maximum bytes of a package list, unpacked; Debian's largest has 60 million."""
ARCHITECTURES: dict[str, str] = {"linux/amd64": "amd64", "linux/arm64": "arm64"}


class Suite(Struct, frozen=True, kw_only=True):
    """The packages of a suite for one platform, with its updates and security fixes."""

    packages: dict[str, Package]
    """The newest version of each name."""
    rolling: bool
    """Still changing: testing and unstable state no version, a released suite does."""


def lock(
    names: Sequence[str], suite: Suite, base: frozenset[str] = frozenset()
) -> tuple[File, ...]:
    """Return the .debs that bring `names` to any minimal system of the suite, sorted by name.

    With `base`, they go on the system that `lock_base` locked from the same lists, given by the
    names of its packages. Raise `InvalidError` for packages that are unavailable.
    """
    chosen = closure(names, suite.packages, base, rolling=suite.rolling)
    return tuple(_file(p) for p in sorted(chosen, key=lambda p: p.name))


def lock_base(names: Sequence[str], suite: Suite) -> tuple[File, ...]:
    """Return the .debs of a whole system with `names`, sorted by name; each has the role `base`.

    These are the packages of every minimal system of the suite, `names`, and all their
    dependencies.
    """
    chosen = minimal(suite.packages, names)
    return tuple(_file(suite.packages[name], "base") for name in sorted(chosen))


def _file(package: Package, role: types.Role = "") -> File:
    try:
        return decoding.convert(
            {
                "kind": "deb",
                "name": package.name,
                "version": package.version,
                "file": package.file,
                "sha256": package.sha256,
                "size": package.size,
                "source": package.source,
                "provenance": "read",
                "by": package.by,
                "role": role,
            },
            File,
        )
    except msgspec.ValidationError as error:
        raise BuildError(
            f"Debian's package list has an invalid entry: {package.file!r}: {error}"
        ) from error


def _read(url: str) -> bytes:
    with open_session() as session, request(session, "GET", url) as response:
        response.raise_for_status()
        return read(response)


def load(
    suite: str,
    platform: str,
    settings: Settings,
    on_progress: Callable[[str], None] = lambda _: None,
    *,
    read: Callable[[str], bytes] = _read,
) -> Suite:
    """Read a suite's package lists.

    Raise `BuildError` if no mirror answers or a list is damaged, `InvalidError` for a platform that
    Debian has no packages for.
    """
    if platform not in ARCHITECTURES:
        raise InvalidError(f"{platform}: Debian packages exist only for Linux")
    architecture = ARCHITECTURES[platform]
    on_progress(f"reading Debian {suite}'s package lists for {platform}")
    universe: dict[str, Package] = {}
    rolling = True
    for name, source in (
        (suite, MAIN),
        (f"{suite}-updates", MAIN),
        (f"{suite}-security", SECURITY),
    ):
        release = _release(name, source, settings, read, required=name == suite)
        if release is None:
            continue
        root, text = release
        stated = mirrors.fields(text)
        if name == suite:
            rolling = "Version" not in stated
        by = f"{name} Release of {_date(stated.get('Date', ''))}"
        path = f"main/binary-{architecture}/Packages.xz"
        try:
            raw = read(f"{root}/dists/{name}/{path}")
        except OSError as error:
            raise BuildError(
                f"the Debian mirror does not serve dists/{name}/{path}: {reason(error)}"
            ) from error
        _verify(raw, text, path, name)
        pieces = archives.pieces(archives.unpacked(io.BytesIO(raw)), _LARGEST)
        try:
            keep_newest(universe, parse_packages(pieces, source=source, by=by))
        except archives.faults() as error:
            raise BuildError(
                f"Debian {name}: {path} cannot be read: {clipped(str(error), 200)}"
            ) from error
    return Suite(packages=universe, rolling=rolling)


def _release(
    name: str, source: str, settings: Settings, read: Callable[[str], bytes], *, required: bool
) -> tuple[str, str] | None:
    problem: Exception | None = None
    for root in mirrors.roots(source, settings):
        try:
            return root, read(f"{root}/dists/{name}/Release").decode("utf-8", "replace")
        except OSError as error:
            problem = error
    if required:
        cause = reason(problem) if problem else "there is none"
        raise BuildError(
            f"no Debian mirror answers for the suite {name} ({cause})",
            f"Set {indexes.variable(source)} to the URL of a mirror.",
        )
    return None


def _verify(raw: bytes, release: str, path: str, suite: str) -> None:
    listed = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {re.escape(path)}$", release, re.MULTILINE)
    if listed is None:
        raise BuildError(f"Debian {suite}: the Release file does not list {path}")
    actual = hashlib.sha256(raw).hexdigest()
    if actual != listed[1]:
        raise BuildError(
            f"Debian {suite}: {path} has sha256 {actual}, but the Release file states {listed[1]}",
            "The mirror may be in the middle of an update, or its files were altered. Try again"
            " later, or use another mirror.",
        )


def _date(text: str) -> str:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return "an unknown date"


# The Debian base of a target: an image that the profile names, or a system made of Debian packages
# (`debian_base`), all of which are in the lock. The packages to install fit any minimal system of
# the suite, or that made one; what an image has installed is never read, so that the lock does not
# depend on it.


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
        self._profile = profile
        self._settings = settings
        self._note = on_progress
        fresh = previous is not None and previous.inputs == inputs_digest(profile)
        of_origin = origin[1] if origin and _is_same_system(profile, origin[0]) else None
        # A suite has only its newest versions, so there is no intermediate version to prefer:
        # packages are either kept as they are or chosen again.
        self._previous = previous if fresh else of_origin
        self._origin = origin
        self._suites: dict[str, Suite] = {}
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
        before = target_of(self._previous, platform, python)
        if before is not None:
            return before.base, before.of_kind("deb")
        files = self._on_image(platform)
        return base(profile, platform, python, files), files

    def _of_packages(
        self, platform: types.Platform, python: types.PythonVersion
    ) -> tuple[LockedBase | None, tuple[File, ...]]:
        """Return a base made of locked packages, its packages and those installed on it."""
        before = target_of(self._previous, platform, python)
        if before is not None:
            return before.base, (*before.base_files, *before.of_kind("deb"))
        debian_suite = self._suite(platform)
        system = lock_base(self._profile.debian_base[python].include, debian_suite)
        if not any(f.name == f"python{python}" for f in system):
            raise InvalidError(
                f"profile '{self._profile.name}': debian_base.{python}: lacks python{python}",
                f"Add python{python}, or python3 if that is the suite's own version.",
            )
        names = frozenset(f.name for f in system)
        files = (*system, *lock(self._profile.system_packages, debian_suite, names))
        return base(self._profile, platform, python, files), files

    def _on_image(self, platform: types.Platform) -> tuple[File, ...]:
        """Return the packages to install on an image; the same for every image of a platform."""
        if platform not in self._closures:
            self._closures[platform] = self._of_origin(platform) or lock(
                self._profile.system_packages, self._suite(platform)
            )
        return self._closures[platform]

    def _of_origin(self, platform: types.Platform) -> tuple[File, ...]:
        """Return the packages that the origin's images have, if it asks for the same ones."""
        if self._origin is None:
            return ()
        other, locked = self._origin
        if other.debian_base or not _asks_for_same(self._profile, other):
            return ()
        for target in locked.targets:
            if target.platform == platform and target.base and (debs := target.of_kind("deb")):
                return debs
        return ()

    def _suite(self, platform: str) -> Suite:
        if platform not in self._suites:
            name = self._profile.debian_suite
            self._suites[platform] = load(name, platform, self._settings, self._note)
        return self._suites[platform]


def base(
    profile: Profile,
    platform: types.Platform,
    python: types.PythonVersion,
    debs: Sequence[File],
) -> LockedBase | None:
    """Return the base of a target, as its profile and its .debs state it; pure.

    If Python is a Debian package, that package decides the version.
    """
    if not platform.startswith("linux/"):
        return None
    versions = {f.name: f.version for f in debs}
    packaged = versions.get(f"python{python}", "").partition("-")[0]
    if python in profile.debian_base:
        system = [f for f in debs if f.role == "base"]
        unpacked = platform in profile.debian_base[python].unpacked
        named = hashlib.sha256("".join(sorted(f.sha256 for f in system)).encode()).hexdigest()
        kind = "unpacked-" if unpacked else ""
        return LockedBase(
            ref=f"envbuilder/debian:{profile.debian_suite}-{kind}{named[:12]}",
            digest=None,
            date=max(map(mirrors.seen, system), default="")[:10] or None,
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
    return (
        _asks_for_same(profile, other)
        and profile.base.items() <= other.base.items()
        and profile.debian_base.items() <= other.debian_base.items()
    )


def _asks_for_same(profile: Profile, other: Profile) -> bool:
    """Return whether two profiles ask for the same packages of the same suite."""
    keys = ("debian_suite", "system_packages", "preload")
    return all(getattr(profile, key) == getattr(other, key) for key in keys)


def is_current(profile: Profile, target: Target) -> bool:
    """Return whether a target's base is still the one that its profile and its .debs name."""
    debs = (*target.base_files, *target.of_kind("deb"))
    return target.base == base(profile, target.platform, target.python, debs)
