"""Choose the release of its framework that a project gets, one for all profiles if it can be.

The release and its Python are the project's choice, the build is the hardware's. Without a wish,
projects get the release that most profiles were verified with; with one (`torch==2.4.1`), the
newest within it that the most profiles have. What a lock has already stays while it fits.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import decoding, files, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import shown
from envbuilder.profiles import releases
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.profile import Base, Profile, Python
from envbuilder.profiles.releases import Build, Chosen
from envbuilder.profiles.requirements import applies, pin
from envbuilder.project.lines import Line, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from packaging.markers import Marker
    from packaging.specifiers import SpecifierSet

    Offered = Callable[[Build], Collection[str]]

OLDEST_PYTHON = 8
"""The minor version of the oldest Python that a project may use."""
_LOCAL = re.compile(r"\+[a-z0-9.]+")


class Limits(Struct, frozen=True, kw_only=True):
    """What a project says of its framework's release, and of Python."""

    framework: types.Framework
    lines: tuple[Line, ...]
    """Requirements of the framework and its companions, as in files."""
    pythons: tuple[Line, ...]
    preferred: str = ""
    """The release that another tool's lock has; others are possible."""
    required: Line | None = None
    """The release that other packages need; `where` names them. It binds no profile without it."""

    @property
    def constraints(self) -> tuple[str, ...]:
        """The requirements of the framework and its companions, as constraints on any build."""
        parsed = ((line.name, *_parsed(line)) for line in self.lines)
        return tuple(
            f"{name}{versions}" + (f"; {marker}" if marker else "")
            for name, marker, versions in parsed
        )

    def admits(self, chosen: Chosen) -> bool:
        """Return whether a release, on the platforms of its builds, is what all lines allow."""
        return self.obstacle(chosen) is None

    def obstacle(self, chosen: Chosen) -> Line | None:
        """Return the first line that rules a release out."""
        names = FRAMEWORKS[self.framework].names
        companions = _companions(self.framework, chosen.release)
        targets = [(b.platform, v) for b in chosen.builds for v in b.pythons]
        for line in (*self.lines, *filter(None, [self.required])):
            marker, specifier = _parsed(line)
            if any(applies(marker, *target) for target in targets):
                version = chosen.release if line.name in names else companions.get(line.name, "")
                if version and not specifier.contains(version, True):
                    return line
        return None

    def conflict_with(self, profile: Profile, chosen: Chosen) -> str:
        """Return what rules a release out on a profile, also by its Pythons; empty if nothing."""
        if line := self.obstacle(chosen):
            return f"{line.where} asks for {line.text}"
        if pythons(profile, self.pythons, chosen):
            return ""
        return " and ".join(f"{line.where} asks for Python {line.text}" for line in self.pythons)


@cache
def _parsed(line: Line) -> tuple[Marker | None, SpecifierSet]:
    """Return where a line holds, and which releases it allows."""
    need = parse(line.text, line.where)
    return need.marker, without_build(need.specifier)


def _companions(framework: types.Framework, release: str) -> Mapping[str, str]:
    """Return the versions of companions that go with a release; of the newest, the last stated."""
    rows = releases.table_of(framework) if not releases.unknown(framework, release) else {}
    result: dict[str, str] = {}
    for row in reversed(rows.values()):
        result |= row.companions
        if row.release == release:
            break
    return result


def without_build(specifier: SpecifierSet) -> SpecifierSet:
    """Return the limits on the release: `+cu124` names a build, which the hardware decides."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(_LOCAL.sub("", str(specifier)))


def _choices(profile: Profile, limits: Limits) -> dict[str, Chosen]:
    """Return the releases of a profile, the newest first, and pinned ones that no table has."""
    every = profile.choices()
    for line in (*limits.lines, *filter(None, [limits.required])):
        pinned = pin(line.text, FRAMEWORKS[limits.framework].names).partition("+")[0]
        release = pinned + ".0" * (2 - pinned.count("."))
        if pinned and release not in every:
            every = {**profile.choices(release), **every}
    return every


def allowed(versions: Iterable[str], limits: Sequence[Line]) -> tuple[str, ...]:
    """Return the Pythons of some that all files allow, each by some patch release."""
    return tuple(v for v in versions if all(_fits(v, limit) for limit in limits))


def _fits(version: str, limit: Line) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        specifiers = SpecifierSet(limit.text)
    except InvalidSpecifier as error:
        raise InvalidError(f"{limit.where}: Python {shown(limit.text)}: {error}") from error
    return any(specifiers.contains(f"{version}.{patch}") for patch in range(100))


class Locked(NamedTuple):
    """What a lock has."""

    release: str
    python: str


def of_lock(lines: Iterable[Line], names: Collection[str]) -> str:
    """Return the release that another tool's lock has; of several, that for the most Pythons."""
    pinned = [line for line in lines if line.locked and pin(line.text, names)]
    targets = [*itertools.product(types.PLATFORMS, (f"3.{n}" for n in range(OLDEST_PYTHON, 16)))]

    def reach(line: Line) -> int:
        return sum(applies(_parsed(line)[0], *target) for target in targets)

    best = max(pinned, key=reach, default=None)
    return pin(best.text, names).partition("+")[0] if best else ""


class _File(Struct):
    name: str
    version: str


class _Target(Struct):
    python: str
    files: tuple[_File, ...]


class _Lock(Struct):
    targets: tuple[_Target, ...] = ()


def locked(path: Path, framework: types.Framework) -> Locked | None:
    """Return the release and the first Python of a lock; None if there is none to be read."""
    try:
        lock = decoding.from_json(files.read(path, decoding.LARGEST), _Lock)
    except (OSError, ValueError):
        return None
    names = FRAMEWORKS[framework].names
    for target in lock.targets:
        for file in target.files:
            if file.name in names:
                return Locked(file.version.partition("+")[0], target.python)
    return None


class Decision(Struct, frozen=True, kw_only=True):
    """The release and the Python that a project gets on a profile."""

    chosen: Chosen
    python: str
    why: str = ""
    """Why it is another release than on other profiles."""


def stays(profile: Profile, limits: Limits, lock: Locked | None) -> Decision | None:
    """Return what a lock has, if the project and the tables still allow it on a profile."""
    if lock is None:
        return None
    chosen = profile.choices(lock.release).get(lock.release)
    if chosen is None or not limits.admits(chosen):
        return None
    possible = pythons(profile, limits.pythons, chosen)
    return Decision(chosen=chosen, python=lock.python) if lock.python in possible else None


def pythons(profile: Profile, limits: Sequence[Line], chosen: Chosen) -> tuple[str, ...]:
    """Return the Pythons that files allow with a release on a profile, the oldest first."""
    usual = profile.python.supported if chosen.release == profile.release else chosen.pythons
    possible = (v for v in chosen.pythons if v in usual and int(v[2:]) >= OLDEST_PYTHON)
    return allowed(possible, limits)


def bases(profile: Profile, pythons: Iterable[str], *, managed: bool) -> dict[str, Base]:
    """Return the base image of each Python that can have one.

    A Python without an image of its own gets the profile's usual base, to which the lock's
    interpreter is added; with `managed`, every Python does. A profile whose wheels are pinned has
    the Pythons that it names, and no others.
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
            path = f"{types.IMAGE_PYTHON}/bin/python{version}"
            result[version] = replace(either, python_path=path, python_version="")
    return result


def impossible(profile: Profile, limits: Limits) -> InvalidError:
    """Return the error about a profile for which a project allows no release."""
    every = _choices(profile, limits)
    admitted = {release: chosen for release, chosen in every.items() if limits.admits(chosen)}
    if admitted:
        lines = [*limits.pythons]
        wish = "Python {}"
        versions = {v for chosen in admitted.values() for v in chosen.pythons}
        pythons = " for Python " + ", ".join(sorted(versions, key=lambda v: int(v[2:])))
    else:
        lines = [line for c in every.values() if (line := limits.obstacle(c))]
        wish = "{}"
        pythons = ""
    stated = dict.fromkeys(f"{line.where}: {wish.format(line.text)}" for line in lines)
    has = releases.ranges(profile.framework, admitted or every)
    title = FRAMEWORKS[profile.framework].title
    return InvalidError(
        f"{', '.join(stated)}: profile '{profile.name}' has {title} {has}{pythons}",
        "Allow what it has. To support only profiles that fit, list them: profiles: [NAME, …]",
    )


def decide(
    limits: Limits,
    profiles: Sequence[Profile],
    locks: Mapping[str, Locked],
    offered: Offered,
) -> dict[str, Decision]:
    """Return profile → its release and Python; without a profile that has none the project allows.

    All profiles have builds. `locks`: profile → what stays while it fits. `offered` returns the
    Pythons for which the hash of a build's wheel can be had.
    """
    stay = {p.name: stays(p, limits, locks.get(p.name)) for p in profiles}
    standing = {name: decision for name, decision in stay.items() if decision}
    every = {p.name: _options(p, limits, offered) for p in profiles if p.name not in standing}
    options = {name: option for name, option in every.items() if option.chosen}
    undecided = [p for p in profiles if p.name in options]
    verified = Counter(str(p.release) for p in undecided).most_common(1)
    common = _common(options, standing, (limits.preferred, *dict(verified)))
    taken = {p.name: options[p.name].best(p, common) for p in undecided}
    pools = {name: options[name].pythons(chosen) for name, chosen in taken.items()}
    python = _python(undecided, pools, standing)
    return standing | {
        p.name: Decision(
            chosen=taken[p.name],
            python=next(v for v in (python, p.python.default, pool[-1]) if v in pool),
            why=options[p.name].why_not(common) if taken[p.name].release != common else "",
        )
        for p in undecided
        for pool in [pools[p.name]]
    }


class _Options(Struct, frozen=True):
    """The releases that a project may have on a profile, the newest first."""

    chosen: dict[str, Chosen]
    allowed: dict[str, tuple[str, ...]]
    """Release → Pythons."""
    offered: Offered

    def available(self, release: str) -> tuple[str, ...]:
        """Return the Pythons of a release for which there are wheels with a hash."""
        if release not in self.chosen:
            return ()
        have = self.offered(self.chosen[release].builds[0])
        return tuple(v for v in self.allowed[release] if v in have)

    def pythons(self, chosen: Chosen) -> tuple[str, ...]:
        """Return the Pythons to choose from; those without wheels only if there are no others."""
        return self.available(chosen.release) or self.allowed[chosen.release]

    def best(self, profile: Profile, common: str) -> Chosen:
        """Return the common release, else the profile's own, else the nearest that is available."""
        order = [*self.chosen]
        older = itertools.dropwhile(
            lambda release: release != common, releases.table_of(profile.framework)
        )
        near = [r for r in older if r in self.chosen]
        preferred = filter(None, (common, profile.release, *near))
        release = next(filter(self.available, (*preferred, *order)), "")
        return self.chosen[release or (common if common in self.chosen else order[0])]

    def why_not(self, common: str) -> str:
        """Return why it is not the common release."""
        if common not in self.chosen:
            return f"there is no {common} for it"
        return f"no source that answers states a hash of {self.chosen[common].title}"


def _options(profile: Profile, limits: Limits, offered: Offered) -> _Options:
    every = _choices(profile, limits)
    admitted = {r: chosen for r, chosen in every.items() if limits.admits(chosen)}
    possible = {r: pythons(profile, limits.pythons, chosen) for r, chosen in admitted.items()}
    if limits.required and not any(possible.values()):
        return _options(profile, replace(limits, required=None), offered)
    return _Options({r: c for r, c in admitted.items() if possible[r]}, possible, offered)


def _common(
    options: Mapping[str, _Options], standing: Mapping[str, Decision], preferred: Sequence[str]
) -> str:
    """Return the release for all: of the locks, else a preferred one, else what most have."""
    from packaging.version import Version

    locked = Counter(decision.chosen.release for decision in standing.values()).most_common(1)
    if locked:
        return locked[0][0]
    possible = (r for r in preferred if any(r in option.chosen for option in options.values()))
    if release := next(possible, ""):
        return release
    every = {release for option in options.values() for release in option.chosen}
    newest_first = sorted(every, key=Version, reverse=True)

    def having(release: str) -> int:
        return sum(bool(option.available(release)) for option in options.values())

    return max(newest_first, key=having, default="")


def _python(
    profiles: Sequence[Profile],
    pools: Mapping[str, Collection[str]],
    standing: Mapping[str, Decision],
) -> str:
    """Return the Python for all: of the locks, else the one that most have, also for images."""
    locked = Counter(decision.python for decision in standing.values()).most_common(1)
    if locked:
        return locked[0][0]
    usual = Counter(p.python.default for p in profiles).most_common(1)

    def rank(version: str) -> tuple[int, int, bool, int]:
        having = [p for p in profiles if version in pools[p.name]]
        images = sum(version in p.image_pythons for p in having)
        return len(having), images, version == usual[0][0], int(version.partition(".")[2])

    return max({v for pool in pools.values() for v in pool}, key=rank, default="")


def also_for_images(profile: Profile, default: str, allowed: Sequence[str]) -> Python:
    """Return a Python; if no image can be made with it, with the newest one that has a base."""
    for_images = [v for v in allowed if v in profile.image_pythons]
    if not profile.makes_images or not for_images or default in for_images:
        return Python(default=default, supported=(default,))
    return Python(default=default, supported=(default, for_images[-1]))
