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
from packaging.version import Version

from envbuilder.core import types
from envbuilder.core.errors import counted, first
from envbuilder.locks.target_wheels import left_out
from envbuilder.packages import upstream
from envbuilder.packages.availability import Blocker, Walk
from envbuilder.packages.python import indexes
from envbuilder.packages.python.uv import Found, Offer, UnresolvableError
from envbuilder.packages.sources import source_locker
from envbuilder.profiles import releases
from envbuilder.profiles.frameworks import FRAMEWORKS, of_name
from envbuilder.profiles.lock import Reason, reason
from envbuilder.profiles.requirements import applies, distribution, pin
from envbuilder.project.names import is_popular, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile
    from envbuilder.project.lines import Line

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
        walk = self._walk(profile, target, places or {}, offered, frozenset())
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
        none = frozenset[str]()
        with self._lock:
            self.index(profile.resolution.as_of).prefetch(old)
            lines = self._walk(profile, target, where, {}, none, follow=False)
            old = {name: version for name, version in old.items() if lines.newer(name, version)}
            if not old:
                return ()
            offered = upstream.of_offers(offers)
            own = (line for line in profile.requirements if distribution(line) in old)
            alone = replace(profile, requirements=(*own, *old))
            # Those of few packages first, since that takes less.
            for asked in (alone, profile):
                walk = self._walk(asked, target, where, offered, none)
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
        excluded: frozenset[str],
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
                left_out(profile) | excluded,
                resolution.overrides,
                (
                    (Requirement(c), by)
                    for c, by in limits.items()
                    if distribution(c) not in excluded
                ),
                self._unbuilt,
            )
            (walk.follow if follow else walk.require)(
                (Requirement(line), places.get(line, whose))
                for line in profile.requirements
                if distribution(line) not in excluded
            )
        return walk

    def _without_framework(self, profile: Profile, python: str, places: Mapping[str, str]) -> Walk:
        """Follow what a profile requires beside its framework, which follows the Python itself."""
        framework = FRAMEWORKS[profile.framework]
        brought = framework.names | framework.parts | framework.companions
        return self._walk(profile, (profile.platforms[0], python), places, {}, brought)

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

    def obstacles(
        self, profile: Profile, python: str, places: Mapping[str, str]
    ) -> tuple[Blocker, ...]:
        """Return what stands in the way of a profile with one Python, beside its framework."""
        return tuple(self._without_framework(profile, python, places).blockers.values())

    def of_framework(self, profile: Profile, python: str) -> Iterator[tuple[str, Requirement]]:
        """Yield what the framework and its companions require on the index, beside its own parts.

        Each comes with who requires it, such as "torchvision 0.14.1".
        """
        index = self.index(profile.resolution.as_of)
        platform = profile.platforms[0]
        row = FRAMEWORKS[profile.framework]
        release = profile.release or "0"
        table = releases.table_of(profile.framework).get(release)
        listed = set(map(distribution, profile.requirements))
        companions = {n: v for n, v in (table.companions if table else {}).items() if n in listed}
        for package, version in {profile.framework: release, **companions}.items():
            page = index.releases(package).get(Version(version))
            wheel = page.usable(upstream.ranks((platform, python))) if page else None
            for need in map(Requirement, index.requires(page, wheel) if page and wheel else ()):
                name = types.canonical(need.name)
                is_part = name in row.builds or row.is_library(name)
                if not is_part and applies(need.marker, platform, python):
                    yield f"{package} {version}", need


class PassedOverError(UnresolvableError):
    """A target would get versions of packages that are too old."""

    def __init__(self, blockers: tuple[Blocker, ...], target: upstream.Target) -> None:
        super().__init__(explained(blockers, target), target)
        self.blockers = blockers


def settled(
    blockers: Iterable[Blocker],
    lines: Iterable[Line],
    taken: Mapping[str, tuple[str, str]],
    target: upstream.Target,
    framework: Iterable[tuple[str, Requirement]] = (),
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield packages that a line pins and no index has so any more, or other pins contradict.

    Each comes with the requirement to take for it, and why. Whoever pinned all of them had them
    beside each other, but on no Mac of today: there, what has no wheel for it is taken from the
    next release that has. What the framework requires itself, holds. What is `taken` already is
    only replaced if that has no wheel either, or on Macs, if others need another release.
    """
    platform = target[0]
    is_mac = target[0] == _MAC
    own_lines = {
        line.name: line for line in lines if applies(Requirement(line.text).marker, *target)
    }
    for each in (b for b in blockers if b.name in own_lines):
        name = each.name
        line = own_lines[each.name]
        version = pin(own_lines[each.name].text)
        if name in taken:
            yield from _instead_of(taken[name], each, line)
            continue
        if each.later and (is_mac or each.kind == "wheel") and not of_name(name):
            why = f"the next with a wheel{' for Macs' if is_mac else ''}"
            yield (
                name,
                (_instead(line.text, each, platform), f"{why}; {line.where} has {line.text}"),
            )
        if not version:
            continue
        needs = [(who, SpecifierSet(versions)) for who, versions in each.needs]
        against = {who: f"{who} needs {v}" for who, v in needs if not v.contains(version, True)}
        pinned = {other for other in own_lines if pin(own_lines[other].text)}
        if each.kind == "conflict" and pinned >= {who.split()[0] for who in against} > set():
            yield name, (line.text, f"{line.where}, though {first([*against.values()], 2)}")
        if each.kind == "release" and Version(each.version).major == Version(version).major:
            why = f"the nearest there is; {line.where} has {version}"
            yield name, (f"{name}=={each.version}", why)
    for who, need in framework:
        name = types.canonical(need.name)
        if name not in own_lines or name in taken:
            continue
        line = own_lines[name]
        series = _series(line.text)
        if series and not any(need.specifier.contains(version, True) for version in series):
            has = pin(line.text) or Requirement(line.text).specifier
            yield name, (f"{name}{need.specifier}", f"{who} needs it; {line.where} has {has}")


def _series(requirement: str) -> tuple[str, ...]:
    """Return the first and the last version of the one line of releases that is allowed, if any."""
    if exact := pin(requirement):
        return (exact,)
    match = re.search(r"(?:~=|==)\s*((?:\d+!)?\d+\.\d+)\.(\d+|\*)\s*(?:;|\Z)", requirement)
    return (f"{match[1]}.{match[2].replace('*', '0')}", f"{match[1]}.9999") if match else ()


def _instead_of(
    taken: tuple[str, str], each: Blocker, line: Line
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield what to take for a package instead of what was taken, if that stands in the way."""
    held, _, place = taken[0].partition("; ")
    if each.later and not place and pin(held) != each.later:
        why = f"the next with a wheel; {line.where} has {line.text}"
        yield each.name, (f"{each.name}=={each.later}", why)
    if each.kind == "conflict" and place and (version := pin(held)):
        # Their own needs, without those of the project's own file.
        needs = [needs for who, needs in each.needs if ":" not in who]
        specifier = SpecifierSet(",".join((f">={version}", *filter(None, needs))))
        why = f"what others need there; {line.where} has {line.text}"
        yield each.name, (f"{each.name}{specifier}; {place}", why)


def _instead(line: str, blocker: Blocker, platform: str) -> str:
    """Return a line with the next release that has a wheel; for Macs, it holds there alone."""
    need = Requirement(line)
    need.specifier = SpecifierSet(f"=={blocker.later}")
    need.marker = None
    return f"{need}{'; sys_platform == ' + repr('darwin') if platform == _MAC else ''}"


def _in_the_way(walk: Walk, old: Mapping[str, str]) -> Iterator[Blocker]:
    """Yield the packages without a wheel that others are too old for, name → version."""
    for blocker in (*walk.blockers.values(), *walk.old_choices.values()):
        names = sorted(walk.requirers(blocker.name) & old.keys())
        if names and blocker.kind in {"source", "wheel"}:
            yield replace(blocker, instead=tuple(f"{name} {old[name]}" for name in names))


def _distance(python: str, other: str) -> int:
    return abs(int(python[2:]) - int(other[2:]))


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
        other = min(blocker.pythons, key=partial(_distance, python), default="")
        edit = f'python: "{other}"' if other else f"exclude: [{name}]"
        if blocker.later and not other:
            edit = f'overrides: {{{name}: "{_instead(name, blocker, platform)}"}}'
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
