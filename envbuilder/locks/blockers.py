"""Find out which packages prevent a target from being resolved, and what requires them.

Such packages have no wheel. A single error from uv names only some of them. Therefore, uv is run
again without the named packages, but with the requirements that their source distributions declare.
This is repeated until uv finds a solution or fails for another reason.
"""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from datetime import date, timedelta
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, Self

from msgspec import Struct
from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuilder.core.errors import counted
from envbuilder.locks.target_wheels import without
from envbuilder.packages import fetch, upstream
from envbuilder.packages.python import indexes
from envbuilder.packages.python.uv import Found, Memory, UnresolvableError, ranks
from envbuilder.packages.sources import source_locker
from envbuilder.profiles.lock import Reason, reason
from envbuilder.profiles.requirements import applies, distribution
from envbuilder.project.names import is_popular, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile

    Ask = Callable[[Profile], Sequence[Found] | UnresolvableError]
    """A function that asks uv whether a profile can be resolved for a target. It returns uv's
    solution, or the error that explains why there is none."""

_LARGEST_SOURCE = 32 << 20
"""Maximum size in bytes of a source distribution that is downloaded to read its requirements."""
_MOST_NEEDS = 3
_MOST_QUESTIONS = 12
"""Maximum number of uv runs for one target."""
_MAC = "macos/arm64"
_RECENT = timedelta(days=365)
"""Maximum age of a recent wheel. For such a wheel, the index is not searched for newer versions."""
_OWN_INDEX = (
    "its own index has no such wheel or cannot be reached, and no public lock contains its hash"
)


class Blocker(Struct, frozen=True, kw_only=True):
    """A package that has no wheel for a target."""

    name: str
    kind: Literal["absent", "unknown", "source", "wheel"]
    """The reason why the package has no wheel. `absent`: no index has the package. `unknown`: an
    index cannot be read. `source`: the releases that would fit are available only as source
    distributions. `wheel`: the releases that would fit have no source distribution either, and
    their wheels are for other targets."""
    version: str = ""
    """The newest release that would fit. For `source`, it is the newest one that can be built."""
    by: tuple[str, ...] = ()
    """The places and packages that require this package, such as "requirements.txt:3" or "wandb
    0.15.3"."""
    pythons: tuple[str, ...] = ()
    """The Python versions for which fitting releases have wheels on the target's platform."""
    problem: str = ""
    """For `unknown`, the reason why the package's state is unknown. For `absent`, the releases that
    did not exist yet on the `as_of` day."""
    instead: tuple[str, ...] = ()
    """Outdated versions that the target would get because of this package, such as "wandb 0.15"."""


class Diagnosis:
    """A cache of the data that a command has read from package indexes.

    Because of the cache, each page is read only once. The user's own indexes are read only when
    something cannot be resolved.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._lock = threading.RLock()
        self._indexes: dict[str, upstream.Index] = {}
        self._stated: dict[str, tuple[str, ...]] = {}
        self.read = upstream.Pages().read
        """A function that returns a page of a package index that a profile names."""

    @cached_property
    def memory(self) -> Memory:
        """The results of earlier uv runs."""
        return Memory(answers={}, indexes=tuple(p.url for p in fetch.places() if not p.flat))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def blockers(
        self,
        profile: Profile,
        target: upstream.Target,
        refusal: UnresolvableError,
        ask: Ask,
        places: Mapping[str, str] | None = None,
    ) -> tuple[tuple[Blocker, ...], UnresolvableError | None]:
        """Return the packages that have no wheel for a target, and the error that remains.

        The remaining error says why the profile cannot be resolved even without these packages. It
        is None if the profile can then be resolved. `refusal` is uv's error for the complete
        profile. `places` maps each requirement to the place where it is listed.
        """
        blockers: dict[str, Blocker | None] = {}
        rest: UnresolvableError | None = refusal
        lines = {**(places or {})}
        for _ in range(_MOST_QUESTIONS):
            new = sorted(rest.named - blockers.keys()) if rest else []
            if not new or rest is None:
                break
            requirements: list[str] = []
            with self._lock:
                self.index(profile.resolution.as_of).prefetch(new)
                for name in new:
                    blocker = self._blocker(name, profile, target, rest, lines)
                    blockers[name] = blocker
                    if blocker is None or blocker.kind != "source":
                        continue
                    exact = SpecifierSet(f"=={blocker.version}")
                    for line in self.required_by_source(name, exact, profile.resolution.as_of):
                        lines[line] = f"{name} {blocker.version}"
                        requirements.append(line)
            profile = replace(profile, requirements=(*profile.requirements, *requirements))
            answer = ask(without(profile, [name for name in blockers if blockers[name]]))
            rest = answer if isinstance(answer, UnresolvableError) else None
        return tuple(filter(None, blockers.values())), rest

    def outdated(
        self,
        profile: Profile,
        target: upstream.Target,
        wheels: Iterable[Found],
        ask: Ask,
        places: Mapping[str, str] | None = None,
    ) -> tuple[Blocker, ...]:
        """Return the packages without wheels that cause a target to get outdated packages.

        A package is outdated if a release with a newer major version fits the project. A
        pre-release that nothing requires is outdated if another release would fit.
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
        blockers: dict[str, Blocker] = {}
        with self._lock:
            self.index(profile.resolution.as_of).prefetch(old)
            newer = {n: self._newer(profile, target, n, version) for n, version in old.items()}
        fitting: list[dict[str, str]] = []
        for name in filter(newer.get, old):
            limit = SpecifierSet(newer[name])
            if any(
                name not in versions_of_release or limit.contains(versions_of_release[name])
                for versions_of_release in fitting
            ):
                continue  # what was taken within another limit is within this one
            limited = replace(profile, constraints=(*profile.constraints, f"{name}{limit}"))
            answer = ask(limited)
            if not isinstance(answer, UnresolvableError):
                fitting.append({wheel.file.name: wheel.file.version for wheel in answer})
                continue
            if not answer.named:
                continue
            standing, rest = self.blockers(limited, target, answer, ask, places)
            for blocker in () if rest else standing:
                before = blockers.get(blocker.name, blocker).instead
                blockers[blocker.name] = replace(blocker, instead=(*before, f"{name} {old[name]}"))
        return tuple(blockers.values())

    def _newer(self, profile: Profile, target: upstream.Target, name: str, version: str) -> str:
        """Return a specifier for the versions that a package should have instead of `version`.

        Return an empty string if `version` is not outdated. A release does not fit if it has no
        source distribution and has wheels only for other Python versions.
        """
        accepted = ranks(*target)
        fitting = []
        for each_version, release in self.fitting(profile, target, name).items():
            is_for_others = upstream.pythons([release], target[0])
            usable = release.sdist or release.usable(accepted) or not is_for_others
            if usable and release.is_for(target[1]):
                fitting.append(each_version)
        chosen = Version(version)
        if fitting and chosen.major < fitting[-1].major:
            # Up to the newest: uv would take a later pre-release for what has no wheel.
            return f">={chosen.major + 1},<={fitting[-1].public}"
        is_early = fitting and chosen.is_prerelease and chosen not in fitting
        return f"=={fitting[-1]}" if is_early else ""

    def _blocker(
        self,
        name: str,
        profile: Profile,
        target: upstream.Target,
        refusal: UnresolvableError,
        places: Mapping[str, str],
    ) -> Blocker | None:
        """Return the blocker that describes a package named in uv's error.

        Return None if the package does not prevent a solution.
        """
        index = self.index(profile.resolution.as_of)
        releases = index.releases(name)
        lines = [line for line in profile.requirements if distribution(line) == name]
        by = [places.get(line, f"profile {profile.name}") for line in lines]
        proof = refusal.reason.proof
        by += (who for who, _ in _needs(name, proof))
        blocker = Blocker(name=name, kind="unknown", by=tuple(dict.fromkeys(by)))
        if name in map(distribution, profile.indexes):
            return replace(blocker, problem=_OWN_INDEX)
        if failing := index.problems.get(name):
            return replace(blocker, problem=f"unknown, because an index fails ({failing})")
        if not releases:
            return replace(blocker, kind="absent", problem=index.too_late.get(name, ""))
        releases = self.fitting(profile, target, name, proof)
        accepted = ranks(*target)
        if not releases or any(release.usable(accepted) for release in releases.values()):
            return None
        built = []
        for version, release in releases.items():
            if release.sdist and upstream.admits(release.sdist, target[1]):
                built.append(version)
        return replace(
            blocker,
            kind="source" if built else "wheel",
            version=str((built or [*releases])[-1]),
            pythons=upstream.pythons(releases.values(), target[0]),
        )

    def fitting(
        self, profile: Profile, target: upstream.Target, name: str, proof: str = ""
    ) -> dict[Version, upstream.Release]:
        """Return the releases of a package that satisfy the profile and the limits in uv's error.

        `proof` is the text of the error. If the version limits in the error contradict each other,
        return the releases that satisfy any of these limits.
        """
        index = self.index(profile.resolution.as_of)
        versions = allowed(profile, target, name)
        specifiers = {specifier for _, specifier in _needs(name, proof)}
        bounds = {*filter(None, specifiers)}
        if len(bounds) != 1:
            bounds = specifiers or {versions}
        every: dict[Version, upstream.Release] = {}
        for bound in bounds:
            every |= index.fitting(name, versions & bound)
        return dict(sorted(every.items()))

    def required_by_source(
        self, name: str, versions: SpecifierSet, as_of: str | None
    ) -> tuple[str, ...]:
        """Return the requirements that a package's source distribution declares.

        The source distribution of the newest release within `versions` is used. Return an empty
        tuple if there is none, if it is too large, or if it declares no requirements.
        """
        releases = [*self.index(as_of).fitting(name, versions).values()]
        sdist = releases[-1].sdist if releases else None
        if sdist is None or (sdist.size or 0) > _LARGEST_SOURCE:
            return ()
        if sdist.file not in self._stated:
            self._stated[sdist.file] = source_locker.requirements(sdist, self._settings)
        return self._stated[sdist.file]

    def index(self, as_of: str | None = None) -> upstream.Index:
        """Return the user's indexes as they were on the day `as_of`, by default today.

        The indexes are opened only once for each day.
        """
        if (key := as_of or "") not in self._indexes:
            opened = upstream.opened(self._settings, as_of)
            self._indexes[key] = self._stack.enter_context(opened)
        return self._indexes[key]

    def elsewhere(self, name: str, version: str, as_of: str | None) -> Sequence[str] | None:
        """Return a release's requirements, as read from a wheel for another platform.

        Return None if there is no such wheel.
        """
        with self._lock:
            return self.index(as_of).required_elsewhere(name, version)


def allowed(profile: Profile, target: upstream.Target, name: str) -> SpecifierSet:
    """Return the versions of a package that the profile itself allows on a target."""
    lines = (*profile.requirements, *profile.constraints)
    overrides = [line for line in profile.resolution.overrides if distribution(line) == name]
    result = SpecifierSet()
    for line in overrides or lines:
        if distribution(line) != name:
            continue
        need = Requirement(line)
        if applies(need.marker, *target):
            result &= need.specifier
    return result


def _needs(name: str, proof: str) -> list[tuple[str, SpecifierSet]]:
    """Return the packages that require `name` according to uv's error.

    Each package is returned together with the versions of `name` that the package allows. `proof`
    is the text of the error.
    """
    package = r"([A-Za-z][\w.-]*?)(?:==(\S+)|[<>!~]\S+)?"
    pattern = rf"(?<!\S){package} depends? on {re.escape(name)}(?![\w-])(\S*)"
    needs = []
    for package, version, versions in re.findall(pattern, proof):
        specifier = re.match(r"(?:[<>=!~]=?[\w.*+!]+,?)*", versions)
        text = specifier[0].strip(",.") if specifier else ""
        needs.append((f"{package} {version}".strip(), SpecifierSet(text)))
    return needs


def too_old(blockers: Sequence[Blocker]) -> tuple[Blocker, ...]:
    """Return the blockers that force outdated versions which could be avoided.

    An outdated version cannot be avoided if one of the packages that cause it has neither a wheel
    nor a source distribution.
    """
    versions = {
        *chain.from_iterable(blocker.instead for blocker in blockers if blocker.kind == "wheel")
    }
    return tuple(blocker for blocker in blockers if not versions.issuperset(blocker.instead))


class OutdatedError(UnresolvableError):
    """Raised when a target would get outdated versions of packages."""

    def __init__(self, blockers: tuple[Blocker, ...], target: upstream.Target) -> None:
        super().__init__(explained(blockers, target), target)
        self.blockers = blockers


def replaced(line: str, version: str, platform: str) -> str:
    """Return a requirement that pins the package in the requirement `line` to `version`.

    If the platform is macOS, the requirement has an environment marker for macOS.
    """
    need = Requirement(line)
    need.specifier = SpecifierSet(f"=={version}")
    need.marker = None
    return f"{need}{'; sys_platform == ' + repr('darwin') if platform == _MAC else ''}"


def explained(blockers: Sequence[Blocker], target: upstream.Target) -> Reason:
    """Return the reason why a target cannot be locked.

    The reason contains one item for each blocker and for each remedy.
    """
    platform, python = target
    # Several may be left out over one that they disagree about.
    blockers = [*{(b.name, b.kind): b for b in reversed(blockers)}.values()][::-1]
    count = counted(len(blockers), "package")
    verb = "blocks" if len(blockers) == 1 else "block"
    items = [_sentence(blocker, platform, python) for blocker in blockers]
    built = sorted(blocker.name for blocker in blockers if blocker.kind == "source")
    if built:
        items.append(
            "To build them in a sandbox, which runs their own code: build_from_source:"
            f" [{', '.join(built)}]"
        )
    old = set(chain.from_iterable(blocker.instead for blocker in blockers))
    if old:
        lines = sorted(line.replace(" ", "==") for line in old)
        items.append(f"To accept such old versions, require them: {', '.join(lines)}")
    return reason(f"{count} {verb} the lock", items)


def _sentence(blocker: Blocker, platform: str, python: str) -> str:
    name = blocker.name
    release = f"{name} {blocker.version}"
    by = "; ".join(blocker.by[:_MOST_NEEDS]) or "required by others"
    elsewhere = (
        f", but there is one for Python {', '.join(blocker.pythons)}" if blocker.pythons else ""
    )
    instead = f", so {', '.join(blocker.instead)} would be used" if blocker.instead else ""
    if blocker.kind == "absent":
        near = nearest(name)
        perhaps = f" (similar: {near})" if near else ""
        problem = f"no index has it{perhaps}"
        edit = "Correct the name"
        if not near and is_popular(name):
            edit = "Configure an index that has it"
        if blocker.problem:
            problem = blocker.problem
            edit = "Choose a later as_of"
        return f"{name} ({by}): {problem}. {edit}, or exclude: [{name}]"
    if blocker.kind == "unknown":
        return f"{name} ({by}): {blocker.problem}. Lock again when the index can be reached"
    if blocker.kind == "source":
        return (
            f"{release} ({by}): has no wheel for Python {python}, only its source{elsewhere}"
            f"{instead}"
        )
    edit = "one of these Pythons, or " if blocker.pythons else ""
    return (
        f"{release} ({by}): has neither a wheel for {platform} with Python {python} nor a"
        f" source{elsewhere}{instead}. Use {edit}exclude: [{name}]"
    )
