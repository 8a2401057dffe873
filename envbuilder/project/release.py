"""Choose the release of a project's framework, which is the same for all profiles if possible.

The project determines the release and its Python version, and the hardware determines the build. A
project without limits gets the release with which most profiles were verified. A project with
limits (`torch==2.4.1`) gets the newest release within its limits that is available on the largest
number of profiles. A locked release is kept as long as it meets the limits.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import decoding, files, types
from envbuilder.core.errors import InvalidError, shown
from envbuilder.profiles import releases
from envbuilder.profiles.frameworks import FRAMEWORKS, cuda_of
from envbuilder.profiles.lock import Decided
from envbuilder.profiles.profile import IMAGE_PYTHON, Base, Profile, Python
from envbuilder.profiles.releases import Build, Chosen
from envbuilder.profiles.requirements import applies, pin
from envbuilder.project.lines import Line, parse, with_marker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from packaging.markers import Marker
    from packaging.specifiers import SpecifierSet

    Offered = Callable[[Build], Collection[str]]

OLDEST_PYTHON = 8
"""The minor version of the oldest release of Python 3 that a project may use."""
_PYTHONS = [f"3.{minor}" for minor in range(OLDEST_PYTHON, 16)]
TARGETS = tuple(itertools.product(types.PLATFORMS, _PYTHONS))
"""All targets that profiles can have, as pairs of a platform and a Python version.

A requirement that applies to none of them is ignored.
"""
_LOCAL = re.compile(r"\+[a-z0-9.]+")


class Limits(Struct, frozen=True, kw_only=True):
    """The framework releases and the Python versions that a project allows."""

    framework: types.Framework
    lines: tuple[Line, ...]
    """Requirements for the framework and its companions, as written in files."""
    pythons: tuple[Line, ...]
    preferred: str = ""
    """The release in another tool's lock, which is preferred but not mandatory."""
    required: Line | None = None
    """The release that other packages require; `where` names these packages.

    A profile that does not offer this release ignores the limit.
    """
    stated: tuple[str, ...] = ()
    """The project's own limits, sorted, in the form that a lock records."""
    packages: str = ""
    """Digest of all of the project's requirements."""
    by_packages: bool = False
    """Whether packages also limit the release or the Python version."""

    @property
    def constraints(self) -> tuple[str, ...]:
        """The version constraints on the framework and its companion packages.

        Builds such as `+cu124` are removed from the constraints.
        """
        result = []
        for line in self.lines:
            marker, versions = _parsed(line)
            result.append(with_marker(f"{line.name}{versions}", marker))
        return tuple(result)

    @property
    def every(self) -> tuple[Line, ...]:
        """All limits on the release. The limit in `required` comes last."""
        return (*self.lines, self.required) if self.required else self.lines

    def admits(self, chosen: Chosen) -> bool:
        """Return whether all limits allow a release on the platforms for which it has builds."""
        return self.obstacle(chosen) is None

    def obstacle(self, chosen: Chosen) -> Line | None:
        """Return the first limit that excludes a release, or None if all limits allow it."""
        names = FRAMEWORKS[self.framework].names
        for line in self.every:
            marker, specifier = _parsed(line)
            if line.name in names:
                fits = specifier.contains(chosen.release, True)
            else:
                fits = _goes_with(self.framework, chosen.release, line.name, specifier)
            if not fits and _concerns(marker, chosen):
                return line
        return None

    def conflict_with(self, profile: Profile, chosen: Chosen) -> str:
        """Return the reason why a profile cannot use a release, or an empty string if it can.

        The reason is either that a limit excludes the release, or that the project allows none of
        the Python versions that the profile has for the release.
        """
        if line := self.obstacle(chosen):
            return f"{line.where} asks for {line.text}"
        if pythons(profile, self.pythons, chosen):
            return ""
        return " and ".join(f"{line.where} asks for Python {line.text}" for line in self.pythons)


def _concerns(marker: Marker | None, chosen: Chosen) -> bool:
    """Return whether a marker is true for any platform and Python version of a release's builds."""
    for build in chosen.builds:
        if any(applies(marker, build.platform, python) for python in build.pythons):
            return True
    return False


@cache
def _parsed(line: Line) -> tuple[Marker | None, SpecifierSet]:
    """Return a line's marker, and its version specifier without builds such as `+cu124`."""
    need = parse(line.text, line.where)
    return need.marker, without_build(need.specifier)


def _goes_with(
    framework: types.Framework, release: str, name: str, specifier: SpecifierSet
) -> bool:
    """Return whether the requested version of a companion package fits a framework release.

    For each release, the table of releases lists one version of the companion, a range of versions,
    or neither. If it lists neither, versions that belong to other releases do not fit.
    """
    from packaging.version import Version

    if releases.unknown(framework, release):
        return True
    table = releases.table_of(framework)
    version = table[release].companions.get(name)
    if version:
        return specifier.contains(version, True)
    pins = [
        bound.version.removesuffix(".*")
        for bound in specifier
        if bound.operator in {"==", "===", "~="}
    ]
    made = table[release].range_of(name)
    if made is not None:
        return not pins or any(made.contains(pin, True) for pin in pins)
    for row in table.values():
        other = row.range_of(name)
        if other is not None and any(other.contains(pin, True) for pin in pins):
            return False
    versions = [Version(row.companions[name]) for row in table.values() if name in row.companions]
    if not versions:
        return True
    later = [pin for pin in (*pins, "9999") if Version(pin) > max(versions)]
    return any(specifier.contains(pin, True) for pin in later)


def without_build(specifier: SpecifierSet) -> SpecifierSet:
    """Return a specifier without builds such as `+cu124`, which the hardware determines."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(_LOCAL.sub("", str(specifier)))


def _choices(profile: Profile, limits: Limits) -> dict[str, Chosen]:
    """Return the releases that a profile can use, newest first.

    Releases that the limits pin are included even if no table lists them.
    """
    every = profile.choices()
    for line in limits.every:
        pinned = pin(line.text, FRAMEWORKS[limits.framework].names).partition("+")[0]
        release = pinned + ".0" * (2 - pinned.count("."))
        if pinned and release not in every:
            every = {**profile.choices(release), **every}
    return every


def allowed(versions: Iterable[str], limits: Sequence[Line]) -> tuple[str, ...]:
    """Return the Python versions for which every limit allows at least one patch release."""
    return tuple(v for v in versions if all(_fits(v, limit) for limit in limits))


@cache
def _fits(version: str, limit: Line) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        specifiers = SpecifierSet(limit.text)
    except InvalidSpecifier as error:
        raise InvalidError(f"{limit.where}: Python {shown(limit.text)}: {error}") from error
    return any(specifiers.contains(f"{version}.{patch}") for patch in range(100))


def of_lock(lines: Iterable[Line], names: Collection[str]) -> str:
    """Return the framework release that another tool's lock pins.

    If the lock pins none, return an empty string. If it pins several releases, return the one that
    applies to the largest number of platforms and Python versions.
    """
    pinned = [line for line in lines if line.locked and pin(line.text, names)]

    def reach(line: Line) -> int:
        return sum(applies(_parsed(line)[0], *target) for target in TARGETS)

    best = max(pinned, key=reach, default=None)
    return pin(best.text, names).partition("+")[0] if best else ""


class _Lock(Struct):
    state: str
    decision: Decided | None = None


def locked(path: Path, *, usable: bool = False) -> Decided | None:
    """Return the decision recorded in a lock, or None if the lock cannot be read.

    If `usable` is set, also return None if nothing can be built from the lock.
    """
    try:
        lock = decoding.from_json(files.read(path, decoding.LARGEST), _Lock)
    except (OSError, ValueError):
        return None
    if usable and lock.state == "unlocked":
        return None
    return lock.decision


class Decision(Struct, frozen=True, kw_only=True):
    """The framework release and the Python version that a project uses on a profile."""

    chosen: Chosen
    python: str
    packages: str = ""
    """Digest of all requirements if the decision depends on the packages. Otherwise empty."""
    why: str = ""
    """The reason why the release differs from that of other profiles. Empty if it does not
    differ."""


def stays(profile: Profile, limits: Limits, lock: Decided | None) -> Decision | None:
    """Return the decision that a lock records, or None if it is no longer valid.

    A decision is valid as long as the limits that led to it are unchanged, and the profile and the
    limits still allow it.
    """
    if lock is None or lock.limits != limits.stated or lock.packages not in {"", limits.packages}:
        return None
    chosen = profile.choices(lock.release).get(lock.release)
    if chosen is None or not limits.admits(chosen):
        return None
    if lock.python not in pythons(profile, limits.pythons, chosen):
        return None
    return Decision(chosen=chosen, python=lock.python, packages=lock.packages, why=lock.why)


def pythons(profile: Profile, limits: Sequence[Line], chosen: Chosen) -> tuple[str, ...]:
    """Return the Python versions that a release supports on a profile and that `limits` allow.

    The oldest version comes first.
    """
    usual = profile.python.supported if chosen.release == profile.release else chosen.pythons
    possible = (v for v in chosen.pythons if v in usual and _minor(v) >= OLDEST_PYTHON)
    return allowed(possible, limits)


def distance(python: str, other: str) -> int:
    """Return the number of minor versions between two Python versions."""
    return abs(_minor(python) - _minor(other))


def _minor(python: str) -> int:
    return int(python.removeprefix("3."))


def of_same_cuda(profile: Profile, chosen: Chosen, lines: Iterable[Line]) -> Chosen:
    """Return a release limited to its builds for the CUDA version that packages in `lines` need.

    Return `chosen` unchanged if there are no such builds.
    """
    wanted = {cuda_of(line.name) for line in lines} - {""}
    builds = tuple(build for build in profile.builds if cuda_of(build) in wanted)
    same = releases.choices(profile.framework, builds, profile.platforms)
    return same.get(chosen.release, chosen)


def bases(profile: Profile, pythons: Iterable[str], *, managed: bool) -> dict[str, Base]:
    """Return the base image for each Python version, omitting versions that cannot have one.

    A Python version without a base image of its own gets the profile's default base image, to which
    the interpreter in the lock is added. If `managed` is set, the interpreter in the lock is used
    for every version. A profile with pinned wheels has base images only for the Python versions
    that it lists.
    """
    others = profile.builds and not profile.debian_base
    usual = profile.base.get(profile.image_python) if others else None
    built = {python for _, python in releases.python_builds()}
    result = {}
    for version in pythons:
        base = profile.base.get(version)
        if base and not managed:
            result[version] = base
        elif version in built and (either := base or usual):
            path = f"{IMAGE_PYTHON}/bin/python{version}"
            result[version] = replace(either, python_path=path, python_version="")
    return result


def impossible(profile: Profile, limits: Limits) -> InvalidError:
    """Return the error to raise if none of a profile's releases is within the project's limits."""
    every = _choices(profile, limits)
    admitted = {release: chosen for release, chosen in every.items() if limits.admits(chosen)}
    if admitted:
        pythons_stated = [f"{line.where}: Python {line.text}" for line in limits.pythons]
        versions = set[str]().union(*(pythons(profile, (), c) for c in admitted.values()))
        for_pythons = " for Python " + ", ".join(sorted(versions, key=_minor))
    else:
        obstacles = filter(None, map(limits.obstacle, every.values()))
        pythons_stated = [f"{line.where}: {line.text}" for line in obstacles]
        for_pythons = ""
    has = releases.ranges(profile.framework, admitted or every)
    profile_has = f"profile '{profile.name}' has {FRAMEWORKS[profile.framework].title} {has}"
    return InvalidError(
        f"{', '.join(dict.fromkeys(pythons_stated))}: {profile_has}{for_pythons}",
        "Allow one of the versions listed. To support only some profiles, list them, for example"
        " profiles: [cpu, cuda]",
    )


def decide(
    limits: Limits,
    profiles: Sequence[Profile],
    locked: Callable[[Profile], Decided | None],
    offered: Offered,
) -> dict[str, Decision]:
    """Choose the release and the Python version for each profile.

    Return the decisions by profile name, omitting profiles without an allowed release. All profiles
    must have builds to choose from. `locked` returns the decision in a profile's lock, which is
    kept as long as it is valid. `offered` returns the Python versions for which the hash of a
    build's wheel is available.
    """
    decided = dict[str, Decision]()
    options = list[_Options]()
    for profile in profiles:
        if standing := stays(profile, limits, locked(profile)):
            decided[profile.name] = standing
        elif (possible := _options(profile, limits, offered)).chosen:
            options.append(possible)
    verified = Counter(str(option.profile.release) for option in options).most_common(1)
    common = _common(options, decided, (limits.preferred, *dict(verified)))
    taken = [option.best(common) for option in options]
    pools = [option.pythons(chosen) for option, chosen in zip(options, taken, strict=True)]
    python = _python([option.profile for option in options], pools, decided)
    for option, chosen, pool in zip(options, taken, pools, strict=True):
        profile = option.profile
        usual = python if python in pool else profile.python.default
        decided[profile.name] = Decision(
            chosen=chosen,
            python=usual if usual in pool else pool[-1],
            packages=limits.packages if limits.by_packages else "",
            why=option.why_not(common) if chosen.release != common else "",
        )
    return decided


class _Options(Struct, frozen=True):
    """The releases that a project can use on a profile, newest first."""

    profile: Profile
    chosen: dict[str, Chosen]
    allowed: dict[str, tuple[str, ...]]
    """The Python versions that are allowed with each release."""
    offered: Offered

    def available(self, release: str) -> tuple[str, ...]:
        """Return the allowed Python versions for which a release has wheels with known hashes."""
        if release not in self.chosen:
            return ()
        have = self.offered(self.chosen[release].builds[0])
        return tuple(python for python in self.allowed[release] if python in have)

    def pythons(self, chosen: Chosen) -> tuple[str, ...]:
        """Return the Python versions for which a release has wheels with known hashes.

        If there are no such versions, return all allowed versions.
        """
        return self.available(chosen.release) or self.allowed[chosen.release]

    def best(self, common: str) -> Chosen:
        """Return the best release for the profile.

        This is the first available release in the following order: the common release, the
        profile's own release, the releases older than the common one, and all others. If none is
        available, return the common release or, if the profile does not offer it, the newest one.
        """
        older = itertools.dropwhile(
            lambda release: release != common, releases.table_of(self.profile.framework)
        )
        preferred = (common, self.profile.release or "", *older, *self.chosen)
        release = next(filter(self.available, preferred), common)
        return self.chosen.get(release) or next(iter(self.chosen.values()))

    def why_not(self, common: str) -> str:
        """Return the reason why the profile does not use the common release."""
        if common not in self.chosen:
            return f"{common} does not exist for this profile"
        return f"no reachable index or public lock has a hash of {self.chosen[common].title}"


def _options(profile: Profile, limits: Limits, offered: Offered) -> _Options:
    options = _Options(profile, {}, {}, offered)
    for release, chosen in _choices(profile, limits).items():
        if limits.admits(chosen) and (possible := pythons(profile, limits.pythons, chosen)):
            options.chosen[release] = chosen
            options.allowed[release] = possible
    if limits.required and not options.chosen:
        return _options(profile, replace(limits, required=None), offered)
    return options


def _common(
    options: Sequence[_Options], standing: Mapping[str, Decision], preferred: Sequence[str]
) -> str:
    """Return the release that all profiles should use if they can.

    This is the release in the largest number of locks. If there are no locks, it is the first
    preferred release that any profile offers. If no profile offers one, it is the release that is
    available on the largest number of profiles.
    """
    from packaging.version import Version

    locked = Counter(decision.chosen.release for decision in standing.values()).most_common(1)
    if locked:
        return locked[0][0]
    every = set[str]().union(*(option.chosen for option in options))
    for release in preferred:
        if release in every:
            return release
    newest_first = sorted(every, key=Version, reverse=True)

    def having(release: str) -> int:
        return sum(bool(option.available(release)) for option in options)

    return max(newest_first, key=having, default="")


def _python(
    profiles: Sequence[Profile],
    pools: Sequence[Collection[str]],
    standing: Mapping[str, Decision],
) -> str:
    """Return the Python version that all profiles should use if they can.

    This is the version in the largest number of locks. If there are no locks, it is the version
    that the largest number of profiles allow. If there are several such versions, the one with base
    images on the largest number of profiles is preferred.
    """
    locked = Counter(decision.python for decision in standing.values()).most_common(1)
    if locked:
        return locked[0][0]
    usual = Counter(profile.python.default for profile in profiles).most_common(1)

    def rank(version: str) -> tuple[int, int, bool, int]:
        having = [p for p, pool in zip(profiles, pools, strict=True) if version in pool]
        images = sum(version in profile.image_pythons for profile in having)
        return len(having), images, version == usual[0][0], _minor(version)

    return max(set[str]().union(*pools), key=rank, default="")


def also_for_images(profile: Profile, default: str, allowed: Sequence[str]) -> Python:
    """Return an environment's Python versions, including one with which images can be made.

    If no image can be made with the default version, the newest allowed version that has a base
    image is added.
    """
    for_images = [python for python in allowed if python in profile.image_pythons]
    if not profile.makes_images or not for_images or default in for_images:
        return Python(default=default, supported=(default,))
    return Python(default=default, supported=(default, for_images[-1]))
