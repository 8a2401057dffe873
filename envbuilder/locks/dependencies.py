"""What the wheels of a target require of each other, so that `check` misses none and needs each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.packages.python.indexes import canonical
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.requirements import applies

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.core import types
    from envbuilder.packages.python.uv import Found, Uv
    from envbuilder.profiles.lock import Target
    from envbuilder.profiles.profile import Profile


def stated(
    wheels: Sequence[Found], profile: Profile, platform: types.Platform, python: str, uv: Uv
) -> tuple[Found, ...]:
    """Return the wheels of a target, each with the names of those that it requires.

    What requires the framework by a name that is left out requires the one that is locked.
    """
    names = FRAMEWORKS[profile.framework].names
    pins = {wheel.file.name: wheel.file.version for wheel in wheels}
    locked = min(names & pins.keys(), default="")
    others = dict.fromkeys(names - pins.keys(), locked) if locked else {}
    pins |= dict.fromkeys(others, pins.get(locked, ""))
    requires: dict[str, set[str]] = {}
    edges = uv.edges(profile.requirements, platform, python, pins, profile.constraints)
    for package, required in edges:
        first, second = others.get(package, package), others.get(required, required)
        requires.setdefault(first, set()).update({second} - {first})
    return tuple(
        replace(w, file=replace(w.file, requires=tuple(sorted(requires.get(w.file.name, ())))))
        for w in wheels
    )


def are_stated(target: Target) -> bool:
    """Return whether a target states them; those of earlier versions and of profiles do not."""
    return any(wheel.requires for wheel in target.of_kind("wheel"))


def problems(profile: Profile, target: Target) -> Iterator[str]:
    """Yield which wheels are missing from a target that states them, and which nothing requires."""
    from packaging.requirements import Requirement

    if not are_stated(target):
        return
    wheels = {wheel.name: wheel.requires for wheel in target.of_kind("wheel")}
    todo = [
        canonical(need.name)
        for need in map(Requirement, profile.requirements)
        if applies(need.marker, target.platform, target.python)
    ]
    reached: set[str] = set()
    while todo:
        if (name := todo.pop()) not in reached:
            reached.add(name)
            todo += wheels.get(name, ())
    for name, requires in wheels.items():
        yield from (f"{r} is missing, which {name} requires" for r in requires if r not in wheels)
    yield from (f"nothing requires {name}" for name in sorted(wheels.keys() - reached))
