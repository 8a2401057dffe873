"""Say why a target cannot be resolved: every package that stands in the way, and what to do.

The facts come from the pages of indexes (`packages.availability`); here they are put into
words, packages that may be built from source are found among them, and the Python for which the
fewest packages lack a wheel.
"""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from datetime import date, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envbuilder.core.errors import counted
from envbuilder.locks.target_wheels import left_out
from envbuilder.packages import upstream
from envbuilder.packages.availability import Blocker, Walk
from envbuilder.packages.python import indexes
from envbuilder.packages.python.uv import Found, Offer, UnresolvableError
from envbuilder.packages.sources import source_locker
from envbuilder.profiles import releases
from envbuilder.profiles.lock import Reason, reason
from envbuilder.profiles.requirements import distribution
from envbuilder.project.names import is_popular, nearest
from envbuilder.project.release import distance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from packaging.version import Version

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile

_LARGEST_SOURCE = 32 << 20
"""Bytes of a source on an index that is read for what it requires."""
_MOST_NEEDS = 3
_MOST_SHOWN = 6
"""Names, and limits, that an item shows of those that an index's packages state."""
_MAC = "macos/arm64"
_RECENT = timedelta(days=365)
"""Age of a wheel below which its version is not doubted: no page of an index is read for it."""


class Diagnosis:
    """The pages of the user's indexes, opened when something cannot be resolved, and kept."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._lock = threading.RLock()
        self._indexes: dict[str, upstream.Index] = {}
        self._stated: dict[str, tuple[str, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def blockers(
        self,
        profile: Profile,
        target: upstream.Target,
        offers: Iterable[Offer] = (),
        places: Mapping[str, str] | None = None,
    ) -> tuple[Blocker, ...]:
        """Return what has no wheel for a target of a profile.

        `places`: requirement → where it stands.
        """
        offered = upstream.of_offers(offers)
        walk = self._walk(profile, target, places or {}, offered)
        return tuple(walk.blockers.values())

    def passed_over(
        self,
        profile: Profile,
        target: upstream.Target,
        wheels: Iterable[Found],
        offers: Iterable[Offer] = (),
        places: Mapping[str, str] | None = None,
    ) -> tuple[Blocker, ...]:
        """Return the packages without a wheel for which a target gets others that are too old.

        Pages are read only of `wheels` that are old themselves or pre-releases, and of what newer
        releases of these require.
        """
        today = profile.resolution.as_of or date.today().isoformat()
        recent = (date.fromisoformat(today) - _RECENT).isoformat()
        old = {
            wheel.file.name: wheel.file.version
            for wheel in wheels
            if wheel.file.source == indexes.DEFAULT
            and not wheel.url.startswith("file:")  # of a folder of the user's own
            and (wheel.uploaded < recent or re.search(r"[a-z]", wheel.file.version))
        }
        where = places or {}
        with self._lock:
            self.index(profile.resolution.as_of).prefetch(old)
            lines = self._walk(profile, target, where, {}, follow=False)
            old = {name: version for name, version in old.items() if lines.newer(name, version)}
            if not old:
                return ()
            offered = upstream.of_offers(offers)
            own = (line for line in profile.requirements if distribution(line) in old)
            alone = replace(profile, requirements=(*own, *old))
            # Those of few packages first, since that takes less.
            for asked in (alone, profile):
                walk = self._walk(asked, target, where, offered)
                behind = {n: v for n, v in old.items() if walk.newer(n, v)}
                blockers = tuple(_in_the_way(walk, behind))
                if not blockers:
                    break
        return blockers

    def _walk(
        self,
        profile: Profile,
        target: upstream.Target,
        places: Mapping[str, str],
        offered: Mapping[str, Mapping[Version, upstream.Release]],
        *,
        follow: bool = True,
    ) -> Walk:
        resolution = profile.resolution
        row = releases.table_of(profile.framework).get(profile.release or "")
        # The resolver finds those that fit by going back; their table states them.
        companions = row.companions if row else {}
        whose = f"profile {profile.name}"
        limits = {f"{name}=={version}": whose for name, version in companions.items()}
        limits = {c: places.get(c, whose) for c in profile.constraints} | limits
        with self._lock:
            walk = Walk(
                self.index(resolution.as_of),
                target,
                offered,
                {distribution(name) for name in profile.indexes},
                left_out(profile),
                resolution.overrides,
                ((Requirement(c), by) for c, by in limits.items()),
                self._unbuilt,
            )
            (walk.follow if follow else walk.require)(
                (Requirement(line), places.get(line, whose)) for line in profile.requirements
            )
        return walk

    def _unbuilt(self, name: str, release: upstream.Release) -> tuple[str, ...]:
        """Return what a release requires of which there is only the source, if it says so."""
        sdist = release.sdist
        if sdist is None or (sdist.size or 0) > _LARGEST_SOURCE:
            return ()
        if sdist.file not in self._stated:
            self._stated[sdist.file] = source_locker.requirements(sdist, self._settings)
        return self._stated[sdist.file]

    def index(self, as_of: str | None = None) -> upstream.Index:
        """Return the indexes as they were on a day, opened when first needed."""
        if (key := as_of or "") not in self._indexes:
            opened = upstream.opened(self._settings, as_of)
            self._indexes[key] = self._stack.enter_context(opened)
        return self._indexes[key]

    def elsewhere(self, name: str, version: str, as_of: str | None) -> Sequence[str] | None:
        """Return what a release requires, by a wheel for another platform; None without one."""
        with self._lock:
            return self.index(as_of).required_elsewhere(name, version)


class PassedOverError(UnresolvableError):
    """A target would get versions of packages that are too old."""

    def __init__(self, blockers: tuple[Blocker, ...], target: upstream.Target) -> None:
        super().__init__(explained(blockers, target), target)
        self.blockers = blockers


def replaced(line: str, version: str, platform: str) -> str:
    """Return a requirement of another version of what a line requires; for Macs, only there."""
    need = Requirement(line)
    need.specifier = SpecifierSet(f"=={version}")
    need.marker = None
    return f"{need}{'; sys_platform == ' + repr('darwin') if platform == _MAC else ''}"


def _in_the_way(walk: Walk, old: Mapping[str, str]) -> Iterator[Blocker]:
    """Yield the packages without a wheel that others are too old for, name → version."""
    for blocker in (*walk.blockers.values(), *walk.old_choices.values()):
        names = sorted(walk.requirers(blocker.name) & old.keys())
        if names and blocker.kind in {"source", "wheel"}:
            yield replace(blocker, instead=tuple(f"{name} {old[name]}" for name in names))


def explained(blockers: Sequence[Blocker], target: upstream.Target) -> Reason:
    """Return what stands in the way of a target, one by one."""
    platform, python = target
    # Several may be left out over one that they disagree about.
    blockers = [*{(b.name, b.kind): b for b in reversed(blockers)}.values()][::-1]
    count = counted(len(blockers), "package")
    verb = "stands" if len(blockers) == 1 else "stand"
    items = [_sentence(blocker, platform, python) for blocker in blockers]
    built = sorted(blocker.name for blocker in blockers if blocker.kind == "source")
    if built:
        items.append(
            f"To have them built, by code of their own, sealed off: build_from_source:"
            f" [{', '.join(built)}]"
        )
    old = set(chain.from_iterable(blocker.instead for blocker in blockers))
    if old:
        lines = sorted(each.replace(" ", "==") for each in old)
        items.append(f"To take what is that old, require it: {', '.join(lines)}")
    return reason(f"{count} {verb} in the way", items)


def _sentence(blocker: Blocker, platform: str, python: str) -> str:
    name = blocker.name
    release = f"{name} {blocker.version}" if blocker.version else name
    limiting = sorted(blocker.needs, key=lambda need: not need[1])
    needs = [f"{who} needs {versions}" for who, versions in limiting[:_MOST_SHOWN] if versions]
    by = "; ".join(who for who, _ in blocker.needs[:_MOST_NEEDS])
    elsewhere = f"; it has one for Python {', '.join(blocker.pythons)}" if blocker.pythons else ""
    if blocker.kind == "absent":
        perhaps = f"; perhaps {near} is meant" if (near := nearest(name)) else ""
        why = f"no index has it{perhaps}"
        edit = "Correct the name"
        if not near and is_popular(name):
            edit = "Name an index that has it"
        if blocker.problem:
            why = blocker.problem
            edit = "To go on: a later as_of"
        return f"{name} ({by}): {why}. {edit}, or exclude: [{name}]"
    if blocker.kind == "unknown":
        return f"{name} ({by}): {blocker.problem}. Once it can be reached, lock again"
    instead = f"; {', '.join(blocker.instead)} would be taken instead" if blocker.instead else ""
    if blocker.kind == "source":
        return (
            f"{release} ({by}): has no wheel for Python {python}, only its source{elsewhere}"
            f"{instead}"
        )
    if blocker.kind == "wheel":
        other = min(blocker.pythons, key=partial(distance, python), default="")
        edit = f'python: "{other}"' if other else f"exclude: [{name}]"
        if blocker.later and not other:
            edit = f'overrides: {{{name}: "{replaced(name, blocker.later, platform)}"}}'
        return (
            f"{release} ({by}): has neither a wheel for {platform} with Python {python} nor a"
            f" source{elsewhere}{instead}. To go on: {edit}"
        )
    # What a profile limits goes with its release of the framework: no override holds against it.
    of_profile = [v for who, v in blocker.needs if v and who.startswith("profile ")]
    if blocker.kind == "release":
        edit = f'To take that: overrides: {{{name}: "{name}=={blocker.version}"}}'
        if of_profile:
            edit = f"To go on: another framework_version, or exclude: [{name}]"
        limit = f"no release is what is required ({', '.join(needs)})"
        return f"{name}: {limit}; the nearest is {release}. {edit}"
    exact = next((v for _, v in blocker.needs if re.fullmatch(r"==[^*,]+", v)), ">=…")
    return (
        f"{name}: no release is what all require: {', '.join(needs)}. To decide for them:"
        f' overrides: {{{name}: "{name}{",".join(of_profile) or exact}"}}'
    )
