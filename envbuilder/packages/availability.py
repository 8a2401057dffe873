"""Find out from index pages why a target cannot be resolved: all packages that are to blame.

uv says in prose which of its choices failed, and stops at the first. Here, every requirement is
followed to the newest release that fits, and to an older one only if that asks too much of another
package: what has no wheel, no release or no page is known after that, and who requires it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuilder.core import process, types
from envbuilder.packages.upstream import PARALLEL, Index, Release, Target, admits, ranks
from envbuilder.profiles.requirements import applies, pin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from envbuilder.packages import upstream

_DEEPEST = 80
"""Releases of an index's package that are left out because they require too much."""
_MOST = 150
"""Steps after which the walk ends: packages may always ask for another version."""
PYTHONS: tuple[types.PythonVersion, ...] = tuple(f"3.{minor}" for minor in range(8, 15))
"""The Pythons that packages are looked for."""


class Need(NamedTuple):
    """A requirement of a package, and what requires it."""

    specifier: SpecifierSet
    by: str
    """A package, or the place of a line such as "requirements.txt:3"."""
    extras: frozenset[str] = frozenset()


class Blocker(Struct, frozen=True, kw_only=True):
    """A package for which a target has no wheel."""

    name: str
    kind: Literal["absent", "unknown", "source", "wheel", "release", "conflict"]
    """No index has it; some index does not say whether it has it; a release that fits has a source
    only; or wheels for others only; no release is what is required; or nothing can be what all
    require."""
    version: str
    """The newest release that would fit; for `release`: the next for this Python."""
    needs: tuple[tuple[str, str], ...]
    """Who requires it, and which versions: ("wandb 0.15.3", ">=1")."""
    pythons: tuple[str, ...] = ()
    """For `source` and `wheel`: the Pythons that it has wheels for on the target's platform."""
    problem: str = ""
    """For `unknown`: why, in words; for `absent`: what was not there on the day."""
    instead: tuple[str, ...] = ()
    """For these two: versions that are too old, and that are had without it ("wandb 0.15")."""
    later: str = ""
    """For these two, if it has wheels for others: the next release that has one for the target."""


_OWN_INDEX = (
    "its own index has no such wheel, or cannot be reached, and no public lock states a hash of one"
)


def _who(needs: Iterable[Need]) -> tuple[tuple[str, str], ...]:
    return tuple((need.by, str(need.specifier)) for need in needs)


def _conflict(
    name: str, releases: Iterable[Version], needs: tuple[tuple[str, str], ...]
) -> Blocker:
    return Blocker(name=name, kind="conflict", version=str(max(releases)), needs=needs)


class Walk:
    """Follows the requirements of a target to the newest releases that fit.

    `offered`: more releases; of packages that are `named`, the only ones. `unbuilt` returns what a
    release requires of which there is only the source.
    """

    def __init__(
        self,
        index: Index,
        target: Target,
        offered: Mapping[str, Mapping[Version, Release]],
        named: Collection[str] = (),
        excluded: Iterable[str] = (),
        overrides: Iterable[str] = (),
        constraints: Iterable[tuple[Requirement, str]] = (),
        unbuilt: Callable[[str, Release], Sequence[str]] = lambda *_: (),
    ) -> None:
        self._index = index
        (self._platform, self._python) = target
        self._offered = offered
        self._named = named
        self._unbuilt = unbuilt
        self._ranks = ranks(target)
        self._excluded = frozenset(excluded)
        self._overrides = {
            types.canonical(need.name): need.specifier
            for need in map(Requirement, overrides)
            if self._applies(need)
        }
        self._needs: dict[str, dict[str, Need]] = defaultdict(dict)
        self._limits: dict[str, list[Need]] = defaultdict(list)
        self._left: dict[str, dict[Version, Blocker]] = defaultdict(dict)
        """Releases that ask too much, each with what it disagrees about with the others."""
        for need, where in constraints:
            if self._applies(need):
                self._limits[types.canonical(need.name)].append(Need(need.specifier, where))
        self.chosen: dict[str, Release] = {}
        self.blockers: dict[str, Blocker] = {}
        self.old_choices: dict[str, Blocker] = {}
        """What an old version is chosen of, since there is nothing newer to build either."""

    def follow(self, requirements: Iterable[tuple[Requirement, str]]) -> None:
        """Follow requirements, each with the place where it stands, to the end."""
        todo = self.require(requirements)
        for _ in range(_MOST):
            if not todo:
                break
            self._index.prefetch(todo.difference(self._named))
            batch: list[tuple[str, Release, upstream.Listed]] = []
            sources: list[tuple[str, Release]] = []
            again: set[str] = set()
            for name in sorted(todo):
                choice = self._choose(name)
                if isinstance(choice, str):
                    again |= {name, choice}  # others may ask too much of the same package, too
                elif choice:
                    batch.append((name, *choice))
                elif source := self._of_source(name):
                    sources.append((name, source))
            with process.pool(PARALLEL) as pool:
                stated = [*pool.map(lambda each: self._index.requires(*each[1:]), batch)]
            todo = again
            for name, release in sources:
                todo |= self._required(name, release, self._unbuilt(name, release))
            for (name, release, _), lines in zip(batch, stated, strict=True):
                todo |= self._required(name, release, lines)
        for name, release in self.chosen.items():
            newer = self.newer(name, release.version)
            releases = self._index.releases(name)
            # A choice may be older than it must be, since what asked for it was left out later.
            if newer and not any(self.usable(releases[v]) for v in newer):
                blocker = self._blocker(name, releases, newer, self.needs(name), "")
                found = self.blockers if blocker.kind == "source" else self.old_choices
                found[name] = replace(blocker, instead=(f"{name} {release.version}",))

    def require(self, requirements: Iterable[tuple[Requirement, str]]) -> set[str]:
        """Note requirements, each with its place; return the packages that are to be chosen."""
        return {name for need, where in requirements if (name := self._need(need, where, ()))}

    def _required(self, name: str, release: Release, lines: Iterable[str]) -> set[str]:
        by = f"{name} {release.version}"
        for needs in self._needs.values():
            for other in [*needs]:
                if other.startswith(f"{name} ") and other != by:
                    del needs[other]
        extras = frozenset().union(*(need.extras for need in self._needs[name].values()))
        result = set()
        for line in lines:
            try:
                need = Requirement(line)
            except InvalidRequirement:
                continue
            result.add(self._need(need, by, extras))
        return result - {""}

    def _need(self, need: Requirement, by: str, extras: Iterable[str]) -> str:
        """Note a requirement; return the package if that asks for another choice, else nothing."""
        name = types.canonical(need.name)
        if not self._applies(need, extras):
            return ""
        specifier = self._overrides.get(name, need.specifier)
        asked = frozenset(map(types.canonical, need.extras))
        before = self._needs[name].get(by)
        if before:
            specifier = before.specifier & specifier
            asked = before.extras | asked
        self._needs[name][by] = Need(specifier, by, asked)
        chosen = self.chosen.get(name)
        known = frozenset().union(*(n.extras for b, n in self._needs[name].items() if b != by))
        settled = chosen and specifier.contains(chosen.version, True) and asked <= known
        left_out = name in self._excluded or name in self.blockers
        return "" if settled or left_out else name

    def _applies(self, need: Requirement, extras: Iterable[str] = ()) -> bool:
        """Return whether a requirement holds for the target, or for one of some extras there."""
        target = self._platform, self._python
        return any(applies(need.marker, *target, extra) for extra in ("", *extras))

    def needs(self, name: str) -> tuple[Need, ...]:
        """Return what requires a package, whether or not it is left out."""
        return tuple(self._needs[name].values()) if name in self._needs else ()

    def admits(self, need: Requirement) -> bool:
        """Return whether a package may be required in addition by what is left out itself."""
        name = types.canonical(need.name)
        others = [other.specifier for other in self.needs(name)]
        if not others or not self._applies(need):
            return True
        return bool(self._fitting(name, self._index.releases(name), [*others, need.specifier]))

    def _choose(self, name: str) -> tuple[Release, upstream.Listed] | str | None:
        """Choose the newest release with a usable wheel; note a blocker if there is none.

        If a package that requires it asks too much, that one is returned: it is to be chosen again,
        older.
        """
        needs = [*self._needs[name].values()]
        specifiers = [need.specifier for need in needs]
        # A lock of another tool may pin what was yanked since.
        pins = [*specifiers, *(limit.specifier for limit in self._limits[name])]
        listed = {} if name in self._named else self._index.pinned(name, pins)
        releases = {**listed, **self._offered.get(name, {})}
        fitting = self._fitting(name, releases, specifiers)
        early = self._fitting(name, releases, specifiers, early=True)
        for version in (*reversed(fitting), *reversed(early)):
            if wheel := self.usable(releases[version]):
                self.chosen[name] = releases[version]
                return releases[version], wheel
        failing = "" if name in self._named else self._index.problems.get(name, "")
        problem = failing and f"not known, since an index fails ({failing})"
        if not problem and not any(self._is_for(releases[version]) for version in fitting):
            other = self._too_new(name, releases, fitting, needs)
            if other:
                return other
        self.blockers[name] = self._blocker(name, releases, fitting, needs, problem)
        return None

    def newer(self, name: str, version: str) -> list[Version]:
        """Return the releases for which a version that was chosen is too old; none if it is not.

        It is too old if it is of an older major version than the newest release that fits, or a
        pre-release that nothing asks for. What has wheels for other Pythons alone, and no source,
        does not fit this one.
        """
        if name in self._named or name in self._offered or self._left.get(name):
            return []  # of what was left, others are to blame
        chosen = Version(version)
        releases = self._index.releases(name)
        fitting = []
        for each in self._fitting(name, releases, [need.specifier for need in self.needs(name)]):
            release = releases[each]
            is_usable = release.sdist or self.usable(release) or not self._pythons([release])
            if is_usable and release.is_for(self._python):
                fitting.append(each)
        if not fitting:
            return []
        if chosen.major < fitting[-1].major:
            return [v for v in fitting if v > chosen]
        return fitting if chosen.is_prerelease and chosen not in fitting else []

    def requirers(self, name: str) -> frozenset[str]:
        """Return a package and all that require it, of each other or directly."""
        names = set[str]()
        todo = [name]
        while todo:
            names.add(each := todo.pop())
            todo += {need.by.partition(" ")[0] for need in self.needs(each)} - names
        return frozenset(names)

    def _of_source(self, name: str) -> Release | None:
        """Return the release of a package of which there is only the source."""
        blocker = self.blockers[name]
        if blocker.kind != "source":
            return None
        return self._index.releases(name).get(Version(blocker.version))

    def _too_new(
        self,
        name: str,
        releases: Mapping[Version, Release],
        fitting: Sequence[Version],
        needs: Sequence[Need],
    ) -> str:
        """Leave out a release that asks too much, if there is one; return its package.

        That is one that the project's lines rule out, else one without which there is a choice.
        """

        def fits(specifiers: Iterable[SpecifierSet]) -> bool:
            return any(self._is_for(releases[v]) for v in self._fitting(name, releases, specifiers))

        def is_ruled_out(need: Need) -> bool:
            return not fits([*of_lines, need.specifier])

        def is_alone(need: Need) -> bool:
            return fits([other.specifier for other in needs if other is not need])

        packages = {need: need.by.partition(" ")[0] for need in needs}
        of_lines = [need.specifier for need in needs if packages[need] not in self.chosen]
        if not fits(of_lines):
            return ""
        for asks_too_much in (is_ruled_out, is_alone):
            for need in reversed(needs):
                package = packages[need]
                release = self.chosen.get(package)
                if release is None or need.by != f"{package} {release.version}":
                    continue
                if len(self._left[package]) <= _DEEPEST and asks_too_much(need):
                    conflict = (
                        self._blocker(name, releases, fitting, needs, "")
                        if fitting
                        else _conflict(name, releases, _who([*needs, *self._limits[name]]))
                    )
                    self._leave(package, release, conflict)
                    return package
        return ""

    def _leave(self, package: str, release: Release, conflict: Blocker) -> None:
        """Leave a chosen release out, with what it requires."""
        versions = {**self._index.releases(package), **self._offered.get(package, {})}
        self._left[package] |= {v: conflict for v, each in versions.items() if each is release}
        del self.chosen[package]
        for needs in self._needs.values():
            needs.pop(f"{package} {release.version}", None)

    def _fitting(
        self,
        name: str,
        releases: Iterable[Version],
        specifiers: Iterable[SpecifierSet],
        *,
        early: bool = False,
    ) -> list[Version]:
        """Return the versions that specifiers and constraints admit, the oldest first.

        Pre-releases only if there is nothing else, if they are asked for, or `early`.
        """
        combined = SpecifierSet()
        for specifier in (*specifiers, *(limit.specifier for limit in self._limits[name])):
            combined &= specifier
        return sorted(set(combined.filter(releases, early or None)) - self._left[name].keys())

    def _is_for(self, release: Release) -> bool:
        """Return whether a release is made for the target's Python, or has a wheel for it."""
        return release.is_for(self._python) or self.usable(release) is not None

    def usable(self, release: Release) -> upstream.Listed | None:
        """Return the wheel of a release that the target gets; None if it has none for it."""
        wheel = release.usable(self._ranks)
        return wheel if wheel and admits(wheel, self._python) else None

    def _blocker(
        self,
        name: str,
        releases: Mapping[Version, Release],
        fitting: Sequence[Version],
        needs: Sequence[Need],
        problem: str,
    ) -> Blocker:
        by = _who(needs)
        every = (*needs, *self._limits[name])
        if name in self._named and not (
            releases and all(any(need.specifier.filter(releases, True)) for need in every)
        ):
            problem = _OWN_INDEX
        if problem:
            return Blocker(name=name, kind="unknown", version="", needs=by, problem=problem)
        if not releases:
            late = self._index.too_late.get(name, "")
            return Blocker(name=name, kind="absent", version="", needs=by, problem=late)
        left = self._left.pop(name, {})
        built = [v for v in fitting if (s := releases[v].sdist) and admits(s, self._python)]
        tried = self._fitting(name, left, [need.specifier for need in needs])
        if usable := [v for v in tried if self.usable(releases[v])]:
            conflict = left[usable[-1]]
            # An older one of which there is the source is what goes with a pin.
            if not built or not any(versions.startswith("==") for _, versions in conflict.needs):
                return conflict
        if not fitting:
            by = _who(every)
            if all(any(need.specifier.filter(releases, None)) for need in every):
                return _conflict(name, releases, by)
            usual = sorted(v for v in releases if self._is_for(releases[v])) or [max(releases)]
            usual = [v for v in usual if not v.is_prerelease] or usual
            pins = (pin(f"{name}{need.specifier}") for need in every)
            least = max(map(Version, filter(None, pins)), default=usual[-1])
            nearest = next((v for v in usual if v > least), usual[-1])
            return Blocker(name=name, kind="release", version=str(nearest), needs=by)
        version = (built or fitting)[-1]
        later = (v for v in sorted(releases) if v > version and not v.is_prerelease)
        is_bound = bool(releases[version].wheels)
        return Blocker(
            name=name,
            kind="source" if built else "wheel",
            version=str(version),
            later=str(next((v for v in later if is_bound and self.usable(releases[v])), "")),
            needs=by,
            pythons=self._pythons([releases[v] for v in fitting]),
        )

    def _pythons(self, releases: Sequence[Release]) -> tuple[str, ...]:
        """Return the Pythons for which a release has a wheel on the target's platform."""
        pythons = []
        for python in PYTHONS:
            accepted = ranks((self._platform, python))
            wheels = [release.usable(accepted) for release in releases]
            if any(wheel and admits(wheel, python) for wheel in wheels):
                pythons.append(python)
        return tuple(pythons)
