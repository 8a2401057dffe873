"""Use uv to choose a framework release, a Python and package versions that fit a project.

There are two kinds of search. The first leaves the framework's release open and tries one Python
version after another. The second replaces pins with lower bounds and finds the nearest later
versions that fit together.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from datetime import date
from functools import cached_property, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuilder.core import pip, process, types
from envbuilder.core.errors import counted, first
from envbuilder.locks.blockers import OutdatedError, allowed, too_old
from envbuilder.locks.target_wheels import overriding, resolver, without
from envbuilder.packages import upstream
from envbuilder.packages.python.uv import Found, Offer, UnresolvableError, Uv, ranks
from envbuilder.profiles import releases
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.requirements import applies, distribution
from envbuilder.project import release
from envbuilder.project.lines import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.locks.blockers import Diagnosis
    from envbuilder.profiles.profile import Profile

_MOST_SOURCES = 12
"""Maximum number of uv runs for one Python version. Several runs are needed because uv names the
packages that lack wheels one at a time."""
_MOST_NEEDS = 3
"""Maximum number of packages to list as the reason for a choice."""
_OF_PYTHON = re.compile(r"wheel|Python")
"""Matches uv errors that another Python version may avoid."""


class Answer(NamedTuple):
    """uv's solution for one Python version."""

    python: str
    versions: Mapping[str, str]
    """The version of each package, by the package's name."""
    sources: frozenset[str]
    """Packages that were left out because they must be built."""

    def release(self, profile: Profile) -> str:
        """Return the framework's release without its build, such as 2.4.1 for 2.4.1+cu121.

        If the solution does not contain the framework, return the profile's release.
        """
        names = FRAMEWORKS[profile.framework].names & self.versions.keys()
        if not names:
            return profile.release or ""
        return self.versions[min(names)].partition("+")[0]


class Way(NamedTuple):
    """An alternative Python version and framework release that an environment could use."""

    python: str
    wheels: tuple[str, ...]
    """Packages that have a wheel for this Python version but not for the original one."""
    release: Line | None
    """The framework release to use instead, and the packages that need it. None if the release does
    not change."""
    sources: frozenset[str] = frozenset()
    """Packages that must be built."""


class Chooser:
    """A search with uv for package versions that fit together on a profile's first platform.

    `diagnosis` provides what the command has read from indexes. `sources` are packages known to
    have no wheels. Packages to be built are not passed to uv, but their requirements are. For the
    packages in `unasked`, which the user did not ask to build, the requirements are not passed
    either. If the Python version is already decided, it is given as `settled`, and packages that
    have wheels only for other Python versions are also treated as packages to be built. `report` is
    called with a line of text for each uv run.
    """

    def __init__(
        self,
        profile: Profile,
        settings: Settings,
        diagnosis: Diagnosis,
        sources: frozenset[str] = frozenset(),
        report: Callable[[str], object] = lambda _: None,
        settled: str = "",
        unasked: frozenset[str] = frozenset(),
    ) -> None:
        self._profile = _of_index(profile)
        self._settings = settings
        self._diagnosis = diagnosis
        self._report = report
        self._settled = settled
        self._unasked = unasked
        self.sources = sources
        """Packages known to have no wheel for any Python version."""

    @cached_property
    def _offers(self) -> tuple[Offer, ...]:
        links = pip.links(pip.sources(os.environ), os.environ)
        return upstream.offers(
            self._profile.indexes, self._settings, links, lambda _: None, self._diagnosis.read
        )

    def alternatives(
        self, python: str, limits: Iterable[str] = (), pythons: Sequence[Line] = ()
    ) -> Iterator[Way]:
        """Yield framework releases and Python versions with which every requirement has a wheel.

        `limits` are the project's constraints on the framework, and `pythons` are its constraints
        on Python. Python versions are tried from the nearest to the farthest, with unsupported
        versions last. Newer framework releases are tried only if the profile's release and older
        ones do not fit.
        """
        profile = self._profile
        every = [*profile.choices()]
        from_oldest = f">={every[-1]}," if every else ""
        for bound in dict.fromkeys(filter(None, (profile.release, *every[:1]))):
            limit = f"<={bound}"
            refusals = set[str]()
            free = _without_release(profile, limits, f"{from_oldest}{limit}")
            for answer in self._answers(free, self._pythons(python, pythons), refusals):
                yield self._way(python, answer, free)
            if not any(limit in refusal for refusal in refusals):
                return

    def moved(
        self, python: str, lines: Iterable[Line], pythons: Sequence[Line] = ()
    ) -> Iterator[tuple[Answer, dict[str, str]]]:
        """Yield solutions that replace pinned versions with the nearest later versions that fit.

        Each solution is yielded together with a dictionary of the versions that do not match their
        pins, by package name. `lines` are the requirements in the project's files. The first
        solution keeps the framework's release if the release is pinned. The second solution may
        change the release.
        """
        loose = _relaxed(self._profile, lines)
        pins = {li.name: Requirement(li.text).specifier for li in lines if is_pin(li.text)}
        names = FRAMEWORKS[self._profile.framework].names
        stays = (f"{name}=={self._profile.release}" for name in names & pins.keys())
        kept = replace(loose, constraints=(*loose.constraints, *stays))
        possible = self._pythons(python, pythons)
        for question in (kept, loose):
            answers = self._answers(question, possible, set(), "--resolution", "lowest-direct")
            for answer in islice(answers, 1):
                versions = answer.versions.items()
                yield (
                    answer,
                    {n: v for n, v in versions if n in pins and not pins[n].contains(v, True)},
                )

    def _answers(
        self, profile: Profile, pythons: Sequence[str], refusals: set[str], *options: str
    ) -> Iterator[Answer]:
        """Yield uv's solution for each Python version that has one.

        A Python version is skipped if a package is known to have no wheel for it. Errors are added
        to `refusals`. The search stops at an error that is already in `refusals` and that does not
        depend on the Python version.
        """
        possible = {*pythons}
        for python in pythons:
            if python not in possible:
                continue
            answer = self.answer(profile, python, *options)
            if isinstance(answer, Answer):
                yield answer
                continue
            proof = answer.reason.proof
            if proof in refusals and not _OF_PYTHON.search(proof):
                return
            refusals.add(proof)
            for name in answer.named.difference(profile.indexes):
                possible &= self._having(self._fitting(profile, name, proof))

    def answer(
        self,
        profile: Profile,
        python: str,
        *options: str,
        before: Mapping[str, str] | None = None,
    ) -> Answer | UnresolvableError:
        """Return uv's solution for a profile's requirements, or the error if there is no solution.

        `before` maps package names to the versions to keep if possible. Packages that the project
        does not get from an index are left out. Raise `BuildError` if an index fails.
        """
        build = profile.resolution.build
        target = (profile.platforms[0], python)
        earlier = before or {}
        sources = self.sources
        profile = _of_index(profile)
        for number in range(_MOST_SOURCES):
            asked = without(profile, sources)
            if not options:  # which would take what is bound by nothing in its oldest version
                asked = self._with_needs(asked, profile, sources, target)
            more = set[str]()
            try:
                wheels = self._asked(asked, python, *options, before=earlier)
                new = [w for w in wheels if earlier.get(w.file.name) != w.file.version]
                blockers = self._diagnosis.outdated(
                    asked, target, new, partial(self._outcome, python=python)
                )
                if not (old := too_old(blockers)):
                    versions = {wheel.file.name: wheel.file.version for wheel in wheels}
                    return Answer(python, versions, sources)
                refusal: UnresolvableError = OutdatedError(old, target)
                more.update(blocker.name for blocker in old if blocker.kind == "source")
            except UnresolvableError as error:
                refusal = error
            # Of these, uv names one by one.
            if number == 0:
                more |= self._never_built(profile) - sources
            for name in refusal.named - sources:
                fitting = self._fitting(profile, name, refusal.reason.proof)
                having = self._having(fitting)
                if self._settled:
                    having &= {self._settled}
                if any(release.sdist for release in fitting) and not having:
                    more.add(name)
            if build is not True:
                more &= {*(build or ())}
            if not more:
                break
            sources |= more
            self.sources = sources  # nor have they wheels for the next Python
        return refusal

    def _with_needs(
        self, question: Profile, profile: Profile, sources: Iterable[str], target: upstream.Target
    ) -> Profile:
        """Return a copy of `question` with the requirements of the packages to be built added.

        `sources` are the names of these packages.
        """
        requirements: list[str] = []
        for name in sorted({*sources} - self._unasked):
            versions = allowed(profile, target, name)
            as_of = profile.resolution.as_of
            asked = (Requirement(li) for li in profile.requirements if distribution(li) == name)
            extras = {"", *chain.from_iterable(each.extras for each in asked)}
            for line in self._diagnosis.required_by_source(name, versions, as_of):
                need = Requirement(line)
                if any(applies(need.marker, *target, extra) for extra in extras):
                    need.marker = None  # uv is asked for this target, and for no extra of it
                    requirements.append(str(need))
        others = [
            line for line in requirements if distribution(line) not in question.resolution.exclude
        ]
        return replace(question, requirements=(*question.requirements, *others))

    def _asked(
        self, profile: Profile, python: str, *options: str, before: Mapping[str, str]
    ) -> tuple[Found, ...]:
        """Run uv for a profile and return its solution.

        Raise `UnresolvableError` if there is no solution.
        """
        packages = counted(len(profile.requirements), "package")
        self._report(f"{profile.name}: asking for {packages} with Python {python}")
        platform = profile.platforms[0]
        with self._uv(profile, python) as started:
            uv = replace(started, options=(*started.options, *options))
            return uv.compile(profile.requirements, platform, python, before, profile.constraints)

    @contextmanager
    def _uv(self, profile: Profile, python: str) -> Iterator[Uv]:
        memory = self._diagnosis.memory
        run = process.run
        with resolver(profile, self._settings, self._offers, run, os.environ, memory) as started:
            yield overriding(started, profile, profile.platforms[0], python)

    def _outcome(self, profile: Profile, python: str) -> tuple[Found, ...] | UnresolvableError:
        try:
            return self._asked(profile, python, before={})
        except UnresolvableError as error:
            return error

    def _never_built(self, profile: Profile) -> frozenset[str]:
        """Return the packages that must be built because no fitting release of them has a wheel.

        Only packages that the project allows to be built are considered.
        """
        build = profile.resolution.build
        required = tuple(map(distribution, profile.requirements))
        names = required if build is True else build or ()
        self._diagnosis.index(profile.resolution.as_of).prefetch(names)
        alone = set[str]()
        for name in names:
            fitting = self._fitting(profile, name)
            if any(release.sdist for release in fitting) and not any(
                release.wheels for release in fitting
            ):
                alone.add(name)
        return frozenset(alone)

    def absent(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the named packages that are on no package index."""
        index = self._diagnosis.index()
        index.prefetch(names)
        return frozenset(n for n in names if not index.releases(n) and n not in index.problems)

    def too_old(self, names: Iterable[str]) -> frozenset[str]:
        """Return the named packages that have fitting releases, but none that can be used.

        These releases have neither a usable wheel nor a source distribution.
        """
        old = set[str]()
        for name in names:
            fitting = self._fitting(self._profile, name)
            if fitting and not (self._having(fitting) or any(release.sdist for release in fitting)):
                old.add(name)
        return frozenset(old)

    def _fitting(self, profile: Profile, name: str, proof: str = "") -> list[upstream.Release]:
        """Return the releases of a package that fit the profile and uv's error (`proof`)."""
        target = (profile.platforms[0], profile.python.default)
        return [*self._diagnosis.fitting(profile, target, name, proof).values()]

    def _having(self, releases: Iterable[upstream.Release]) -> frozenset[str]:
        """Return the Python versions for which any of the releases has a wheel.

        Only wheels for the profile's first platform are considered.
        """
        return frozenset(upstream.pythons(releases, self._profile.platforms[0]))

    def _pythons(self, python: str, limits: Sequence[Line]) -> list[str]:
        """Return the Python versions to try, in order.

        Versions that are still supported come before all others. Within both groups, the versions
        are sorted by their distance from `python`, nearest first.
        """
        of_builds = set[str]()
        for choice in self._profile.choices().values():
            of_builds.update(choice.pythons)
        possible = [v for v in upstream.PYTHONS if v in of_builds or not of_builds]
        day = date.fromisoformat(self._profile.resolution.as_of or date.today().isoformat())

        def rank(version: str) -> tuple[bool, int]:
            # Each is supported for five years, until an October (PEPs 569, 596, 619, 664, 693).
            last = date(2016 + release.distance(version, "3.0"), 10, 31)
            return last < day, release.distance(python, version)

        return sorted(release.allowed(possible, limits), key=rank)

    def _way(self, before: str, answer: Answer, asked: Profile) -> Way:
        """Return the alternative that follows from uv's solution for the profile `asked`.

        The returned alternative includes the reasons for it. `before` is the original Python
        version.
        """
        profile = self._profile
        index = self._diagnosis.index(profile.resolution.as_of)
        required = sorted({*map(distribution, profile.requirements)} & answer.versions.keys())
        index.prefetch(required)
        accepted = ranks(profile.platforms[0], before)
        lacking = []
        for name in required:
            page = index.releases(name).get(Version(answer.versions[name]))
            if page and not page.usable(accepted):
                lacking.append(name)
        version = answer.release(profile)
        needed = None
        if version != profile.release:
            needed = Line(f"{profile.framework}=={version}", self._requirer(answer, asked))
        return Way(answer.python, tuple(lacking), needed, answer.sources)

    def _requirer(self, answer: Answer, asked: Profile) -> str:
        """Return a text that lists the packages that reject the profile's framework release.

        If there are none, return "the project".
        """
        profile = self._profile
        framework = FRAMEWORKS[profile.framework]
        index = self._diagnosis.index(profile.resolution.as_of)
        others = set[str]()
        asked = without(asked, answer.sources)
        target = (profile.platforms[0], answer.python)
        with self._uv(asked, answer.python) as uv:
            pins = answer.versions
            for name, _, by in uv.edges(asked.requirements, *target, pins, asked.constraints):
                if name in framework.names:
                    others.update(by)
        others -= framework.builds
        index.prefetch(others)
        needing = []
        for name in sorted(others & answer.versions.keys()):
            version = answer.versions[name]
            page = index.releases(name).get(Version(version))
            wheel = next(iter(page.wheels), None) if page else None
            for need in map(Requirement, index.requires(wheel) if wheel else ()):
                if types.canonical(need.name) not in framework.names:
                    continue
                holds = applies(need.marker, *target)
                if holds and not need.specifier.contains(profile.release or "0", True):
                    needing.append(f"{name} {version}")
        return first(needing, _MOST_NEEDS) or "the project"


def _of_index(profile: Profile) -> Profile:
    """Return a copy of a profile without the packages that the project gets from other sources.

    These packages are dropped because an index may have an unrelated package with the same name, or
    other versions of the package.
    """
    return without(profile, [source.name for source in profile.resolution.sources])


def _without_release(profile: Profile, limits: Iterable[str], bound: str) -> Profile:
    """Return a copy of a profile that allows any framework release within `limits` and `bound`."""
    framework = FRAMEWORKS[profile.framework]
    builds = framework.builds
    requirements = []
    for line in profile.requirements:
        is_free = distribution(line) in builds and is_pin(line)
        # With its extras: they bring the libraries of its hardware.
        requirements.append(re.split("[=<>!~; ]", line)[0] if is_free else line)
    rules = releases.rules(profile.framework, profile.release)
    constraints = [c for c in profile.constraints if c not in rules]
    constraints += [*limits, *(f"{name}{bound}" for name in sorted(framework.names))]
    overrides = profile.resolution.overrides
    free = (line for line in overrides if distribution(line) not in builds)
    return replace(
        profile,
        requirements=tuple(dict.fromkeys(requirements)),
        constraints=tuple(constraints),
        resolution=replace(profile.resolution, overrides=tuple(free)),
    )


def _relaxed(profile: Profile, lines: Iterable[Line]) -> Profile:
    """Return a copy of a profile in which lower bounds replace exact pins.

    Packages without a lower bound are dropped, because uv would choose their oldest release. The
    packages that make up a build of the framework are also dropped. Dropped packages are installed
    only if other packages depend on them.
    """
    framework = FRAMEWORKS[profile.framework]
    texts = {line.name: line.text for line in lines}
    every = [*profile.choices()] or [profile.release or "0"]
    newest = profile.release  # what nothing asks for is not newer than usual
    if framework.names & texts.keys():
        newest = every[0]
    free = _without_release(profile, (), f">={every[-1]},<={newest}")
    needs = {distribution(text): Requirement(text) for text in free.requirements}
    own = min(framework.names & needs.keys(), default="")
    for name, text in texts.items():
        asking = own if name in framework.names else name
        if name in framework.builds and asking in needs:
            needs[asking].specifier = Requirement(text).specifier
    bounded = []
    for name, need in needs.items():
        need.specifier = SpecifierSet(",".join(_lower(need.specifier)))
        if need.specifier and name not in framework.parts:
            bounded.append(str(need))
    limits = (
        c
        for c in free.constraints
        if distribution(c) in framework.names or distribution(c) not in texts
    )
    return replace(free, requirements=tuple(bounded), constraints=tuple(limits))


def _lower(specifiers: SpecifierSet) -> Iterator[str]:
    """Yield the lower bounds of a specifier set. A pin is treated as a lower bound."""
    for specifier in specifiers:
        if specifier.operator in {"==", "===", "~="}:
            yield f">={specifier.version.removesuffix('.*').partition('+')[0]}"
        elif specifier.operator in {">=", ">", "!="}:
            yield str(specifier)


def is_pin(requirement: str) -> bool:
    """Return whether a requirement allows only a single version or a single series of versions."""
    return any(
        specifier.operator in {"==", "===", "~="}
        for specifier in Requirement(requirement).specifier
    )
