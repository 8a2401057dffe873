"""Say why a target cannot be resolved: every package that stands in the way, and what to do.

The facts come from the pages of indexes (`packages.availability`); here they are put into
words, packages that may be built from source are found among them, and the Python for which the
fewest packages lack a wheel.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from envbuilder.core import text
from envbuilder.packages import availability
from envbuilder.packages.availability import Blocker, Walk
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.requirements import distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.packages.python.uv import Offer
    from envbuilder.profiles.profile import Profile

_MOST_NEEDS = 3
_PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))


class Diagnosis:
    """The pages of the user's indexes, opened when something cannot be resolved, and kept."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._stack = settings, ExitStack()
        self._lock = threading.Lock()
        self._indexes: dict[str, availability.Index] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def blockers(
        self,
        profile: Profile,
        target: availability.Target,
        offers: Iterable[Offer] = (),
        places: Mapping[str, str] | None = None,
    ) -> tuple[Blocker, ...]:
        """Return what has no wheel for a target of a profile.

        `places`: requirement → where it stands.
        """
        from packaging.requirements import Requirement

        places = places or {}
        framework = FRAMEWORKS[profile.framework]
        own = {distribution(line) for line in profile.requirements}
        left_out = framework.foreign(profile.accelerator) - own
        with self._lock:
            walk = Walk(
                self._index(profile.resolution.as_of),
                target,
                availability.of_offers(offers),
                {distribution(name) for name in profile.indexes},
                {*left_out, *profile.resolution.exclude},
                profile.resolution.overrides,
                profile.constraints,
            )
            walk.follow(
                (Requirement(line), places.get(line, f"profile {profile.name}"))
                for line in profile.requirements
            )
        return tuple(walk.blockers.values())

    def _index(self, as_of: str | None) -> availability.Index:
        if (key := as_of or "") not in self._indexes:
            opened = availability.opened(self._settings, as_of)
            self._indexes[key] = self._stack.enter_context(opened)
        return self._indexes[key]

    def pythons(
        self, profile: Profile, python: str, places: Mapping[str, str]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the Pythons for which fewer packages lack a wheel, the best one first.

        With each: the packages that have one there. The framework does not count: which of its
        releases there is depends on the Python.
        """
        framework = FRAMEWORKS[profile.framework]
        brought = framework.names | framework.parts | framework.companions
        lines = tuple(r for r in profile.requirements if distribution(r) not in brought)
        rules = (c for c in profile.constraints if distribution(c) not in brought)
        others = replace(profile, requirements=lines, constraints=(*rules,))
        build = profile.resolution.build
        allowed = () if isinstance(build, bool) else build
        lacking = {
            version: {
                blocker.name
                for blocker in self.blockers(others, (profile.platforms[0], version), (), places)
                if blocker.kind in {"source", "wheel", "release"} and blocker.name not in allowed
            }
            for version in _PYTHONS
        }
        usual = lacking[python]

        def rank(version: str) -> tuple[int, int]:
            return len(lacking[version]), abs(int(version[2:]) - int(python[2:]))

        for version in sorted(_PYTHONS, key=rank):
            if len(lacking[version]) < len(usual):
                yield version, tuple(sorted(usual - lacking[version]))


def explained(blockers: Sequence[Blocker], target: availability.Target) -> str:
    """Return in a sentence with items what stands in the way of a target."""
    platform, python = target
    count = text.counted(len(blockers), "package")
    verb = "stands" if len(blockers) == 1 else "stand"
    items = [_sentence(blocker, platform, python) for blocker in blockers]
    built = sorted(blocker.name for blocker in blockers if blocker.kind == "source")
    if built:
        items.append(
            f"To have them built, by code of their own, sealed off: build_from_source:"
            f" [{', '.join(built)}]"
        )
    return text.with_items(f"{platform} with Python {python}: {count} {verb} in the way", items)


def _sentence(blocker: Blocker, platform: str, python: str) -> str:
    name = blocker.name
    release = f"{name} {blocker.version}" if blocker.version else name
    needs = [f"{who} needs {versions or 'any'}" for who, versions in blocker.needs[:_MOST_NEEDS]]
    by = "; ".join(who for who, _ in blocker.needs[:_MOST_NEEDS])
    elsewhere = f"; it has one for Python {', '.join(blocker.pythons)}" if blocker.pythons else ""
    if blocker.kind == "absent":
        return f"{name} ({by}): no index has it. Correct the name, or exclude: [{name}]"
    if blocker.kind == "source":
        return f"{release} ({by}): has no wheel for Python {python}, only its source{elsewhere}"
    if blocker.kind == "wheel":
        return (
            f"{release} ({by}): has neither a wheel for {platform} with Python {python} nor a"
            f" source{elsewhere}"
        )
    if blocker.kind == "release":
        return (
            f"{name}: no release is what is required ({', '.join(needs)}); the newest is {release}"
        )
    return (
        f"{name}: no release is what all require: {', '.join(needs)}. To decide for them:"
        f' overrides: {{{name}: "{name}>=…"}}'
    )
