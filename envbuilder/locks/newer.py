"""Say of packages in a new lock why they are not at their newest version.

The resolver that made the lock is asked, whose index pages are in its cache: which versions exist
for the lock's first target, and, if no requirement excludes one, which package does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.version import Version

from envbuilder.core.errors import BuildError
from envbuilder.packages.python import unresolvable
from envbuilder.packages.python.indexes import DEFAULT, canonical
from envbuilder.packages.python.uv import UnresolvableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from envbuilder.packages.python.uv import Uv
    from envbuilder.profiles.lock import Lock, Target
    from envbuilder.profiles.profile import Profile

_MOST_HELD = 4
"""Packages of a lock for which the resolver is asked what holds them back."""


def unmoved(
    profile: Profile, lock: Lock, uv: Uv, places: Mapping[str, str], names: Iterable[str] = ()
) -> Iterator[str]:
    """Yield a line for each package that an upgrade leaves at an older version than there is.

    Of `names` if there are any, which also get one if nothing newer exists; else of what the
    profile requires by name. `places`: where the user wrote a requirement, which is the profile's
    own otherwise. An index that fails is one line.
    """
    target = lock.targets[0]
    pins = _pins(target)
    named = {canonical(name) for name in names}
    try:
        newest = _newest(profile, target, uv, sorted((named or _required(profile)) & pins.keys()))
    except (BuildError, UnresolvableError):
        yield "which newer versions exist is unknown: an index did not answer"
        return
    newer = _newer(newest, pins)
    limits = {name: _limit(profile, name, version, places) for name, version in newer.items()}
    free = {name: version for name, version in newer.items() if not limits[name]}
    reasons = {**limits, **_held(profile, target, uv, free)}
    for name in newest:
        if name in newer:
            yield f"{name} {pins[name]}: {reasons[name]} ({newer[name]} exists)"
        elif named:
            yield f"{name} {pins[name]}: no newer version is known"


def unexpected(profile: Profile, lock: Lock, uv: Uv, before: Lock | None) -> Iterator[str]:
    """Yield a line for each package that comes in a version which the user may not expect.

    Packages without wheels cannot be locked, so that a much older version, or a pre-release, may be
    all that fits. Only what is required by name and was not in the lock `before`. The resolver's
    cache alone is asked.
    """
    target = lock.targets[0]
    pins = _pins(target)
    present = {canonical(file.name) for file in before.files} if before else set()
    names = sorted((_required(profile) & pins.keys()) - present)
    uv = replace(uv, options=("--offline",))
    try:
        newest = _newest(profile, target, uv, names)
    except (BuildError, UnresolvableError):
        newest = {}
    newer = _newer(newest, pins)
    free = {name: version for name, version in newer.items() if not _limit(profile, name, version)}
    reasons = _held(profile, target, uv, free)
    for name in names:
        if name in reasons:
            yield f"{name} {pins[name]}: {reasons[name]} ({newer[name]} exists)"
        elif Version(pins[name]).is_prerelease and not _allows_prereleases(profile, name):
            yield f"{name} {pins[name]}: a pre-release, since no release that fits has a wheel"


def _pins(target: Target) -> dict[str, str]:
    return {canonical(file.name): file.version for file in target.of_kind("wheel")}


def _required(profile: Profile) -> set[str]:
    return {canonical(Requirement(line).name) for line in profile.requirements}


def _newer(newest: Mapping[str, str], pins: Mapping[str, str]) -> dict[str, str]:
    return {n: version for n, version in newest.items() if Version(version) > Version(pins[n])}


def _newest(profile: Profile, target: Target, uv: Uv, names: Iterable[str]) -> dict[str, str]:
    """Return the newest version of each package, from its own source."""
    sources = {canonical(name): source for name, source in profile.indexes.items()}
    by_source = {
        True: [name for name in names if name in sources],
        False: [name for name in names if name not in sources],
    }
    wheels = [
        wheel.file
        for upstream, each in by_source.items()
        if each
        for wheel in uv.newest(each, target.platform, target.python, from_first_index=upstream)
    ]
    return {f.name: f.version for f in wheels if f.source == sources.get(f.name, DEFAULT)}


def _about(profile: Profile, name: str) -> Iterator[Requirement]:
    """Yield the requirements and constraints on a package."""
    requirements = map(Requirement, (*profile.requirements, *profile.constraints))
    return (r for r in requirements if canonical(r.name) == name)


def _allows_prereleases(profile: Profile, name: str) -> bool:
    return any(requirement.specifier.prereleases for requirement in _about(profile, name))


def _limit(
    profile: Profile, name: str, version: str, places: Mapping[str, str] | None = None
) -> str:
    """Return the first requirement that excludes a version, and where it stands; else empty."""
    for requirement in _about(profile, name):
        if requirement.specifier.contains(version):
            continue
        place = (places or {}).get(str(requirement))
        if place:
            return f"{place} says {requirement}"
        exact = any(s.operator in {"==", "==="} for s in requirement.specifier)
        return "pinned by the profile" if exact else f"the profile requires {requirement}"
    return ""


def _held(profile: Profile, target: Target, uv: Uv, newer: Mapping[str, str]) -> dict[str, str]:
    """Return why newer versions do not fit, which no requirement excludes."""
    reasons = dict.fromkeys(newer, "the newest that fits the others")
    for name in [*newer][:_MOST_HELD]:
        try:
            reasons[name] = _holder(profile, target, uv, name, newer[name]) or reasons[name]
        except BuildError:
            break
    return reasons


def _holder(profile: Profile, target: Target, uv: Uv, name: str, version: str) -> str:
    """Return what a version contradicts: the requirements, or else the lock's other versions."""
    for others in ({}, _pins(target)):
        pins = {**others, name: version}
        try:
            uv.require_together(
                profile.requirements, target.platform, target.python, pins, profile.constraints
            )
        except UnresolvableError as conflict:
            if why := unresolvable.holder(conflict.proof, name):
                return why
    return ""
