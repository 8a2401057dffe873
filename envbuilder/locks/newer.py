"""Say of packages in a new lock why they are not at their newest version.

The resolver that made the lock is asked, whose index pages are in its cache: which versions exist
for the lock's first target, and, if nothing that the user wrote excludes one, which package does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Yield a line for each package that the lock has in an older version than there is.

    Of `names` if there are any, which also get one if nothing newer exists; else of what the
    profile requires by name. `places`: where the user wrote a requirement, which is the profile's
    own otherwise. An index that fails is one line.
    """
    from packaging.requirements import Requirement
    from packaging.version import Version

    target = lock.targets[0]
    pins = {canonical(f.name): f.version for f in target.of_kind("wheel")}
    chosen = {canonical(name) for name in names}
    required = {canonical(Requirement(line).name) for line in profile.requirements}
    try:
        newest = _newest(profile, target, uv, sorted((chosen or required) & pins.keys()))
    except (BuildError, UnresolvableError):
        yield "which newer versions exist is unknown: an index did not answer"
        return
    questions = 0
    for name, version in newest.items():
        if Version(version) <= Version(pins[name]):
            if name in chosen:
                yield f"{name} {pins[name]}: no newer version is known"
            continue
        why = _stated(profile, name, version, places)
        if not why and questions < _MOST_HELD:
            questions += 1
            why = _held(profile, target, uv, {**pins, name: version}, name)
        yield f"{name} {pins[name]}: {why or 'the newest that fits the others'} ({version} exists)"


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


def _stated(profile: Profile, name: str, version: str, places: Mapping[str, str]) -> str:
    """Return the first requirement that excludes a version, and where it stands."""
    from packaging.requirements import Requirement

    for line in (*profile.requirements, *profile.constraints):
        requirement = Requirement(line)
        if canonical(requirement.name) != name or requirement.specifier.contains(version):
            continue
        if line in places:
            return f"{places[line]} says {line}"
        exact = any(s.operator in {"==", "==="} for s in requirement.specifier)
        return "pinned by the profile" if exact else f"the profile requires {line}"
    return ""


def _held(profile: Profile, target: Target, uv: Uv, pins: Mapping[str, str], name: str) -> str:
    """Return which package excludes a version that is put among the lock's others."""
    try:
        uv.require_together(
            profile.requirements, target.platform, target.python, pins, profile.constraints
        )
    except UnresolvableError as conflict:
        return unresolvable.holder(conflict.proof, name)
    return ""
