"""Resolve a profile to a lock, which lists exact files with their sha256.

uv is run separately for each of the profile's platforms and Python versions. It uses the user's own
package index and a static index. The static index contains the packages that the profile takes from
upstream indexes. This module prepares the uv runs. It also records which hashes in the result were
read from an index, and which are only claimed by a public lock file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from envbuilder.core import pip, process, types
from envbuilder.core.errors import BuildError, InvalidError, one_line
from envbuilder.locks import compare, target_wheels
from envbuilder.locks.blockers import Blocker, OutdatedError, explained, too_old
from envbuilder.locks.target_wheels import ClashError
from envbuilder.packages import interpreters, upstream
from envbuilder.packages.debian.suite import Debs, Suites
from envbuilder.packages.python import wheel_conflicts
from envbuilder.packages.python.uv import Found, Memory, Offer, Runner, UnresolvableError, Uv
from envbuilder.packages.sources.source_locker import SourceLocker
from envbuilder.profiles.lock import (
    File,
    Lock,
    Reason,
    Target,
    nothing,
    reason,
    target_of,
)
from envbuilder.project import forms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.locks.blockers import Ask
    from envbuilder.profiles.profile import Profile, Resolution, Source

    Contents = Callable[[Sequence[Found], str], Mapping[str, Mapping[str, str]]]
    Preferred = Callable[[str, str], dict[str, str]]
    Measure = Callable[[Iterable[str]], Mapping[str, int]]
    Place = tuple[types.Platform, types.PythonVersion]
    Start = Callable[..., contextlib.AbstractContextManager[Uv]]
    """A function that starts uv for a profile with additional `offers`."""
    Standing = tuple[Sequence[Blocker], UnresolvableError | None]
    Explain = Callable[[Profile, Place, UnresolvableError, Ask], Standing]
    FindOutdated = Callable[[Profile, Place, Iterable[Found], Ask], Sequence[Blocker]]

_MOST_ROUNDS = 12
"""Maximum number of rounds of finding packages to build. Each round follows the requirements one
level deeper."""
_ANY_OF = {
    "linux/amd64": "manylinux_2_17_x86_64",
    "linux/arm64": "manylinux_2_17_aarch64",
    "macos/arm64": "macosx_11_0_arm64",
}
"""The platform tag for a wheel that will be built for a single target."""
_AT_ONCE = 2
"""Maximum number of a lock's targets to resolve in parallel."""
_KIND_ORDER = {"wheel": 0, "source": 0, "deb": 1, "conda": 2, "oci": 3}


def resolve(
    profile: Profile,
    settings: Settings,
    previous: Lock | None = None,
    upgrade: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
    *,
    origin: tuple[Profile, Lock] | None = None,
    upgrade_packages: Iterable[str] = (),
    run: Runner = process.run,
    read: Callable[[str], bytes] = upstream.read_url,
    measure: Measure = target_wheels.sizes,
    contents: Contents | None = None,
    environ: Mapping[str, str] = os.environ,
    explain: Explain | None = None,
    find_outdated: FindOutdated = lambda *_: (),
    elsewhere: Callable[[str, str], Sequence[str] | None] = lambda *_: None,
    memory: Memory | None = None,
    suites: Suites | None = None,
) -> Lock:
    """Create the lock for a profile.

    Versions in `previous` are kept if they still fit, unless `upgrade` is set or a package is in
    `upgrade_packages`. Those packages are updated to the newest version that fits the others. For a
    project's variant of a profile, `origin` is the original profile with its lock, from which
    anything unchanged is taken. `memory` and `suites` contain results that the command already has.

    If neither an index nor a claim provides a distribution, the lock has the state `unlocked` and
    contains the reason. `explain` finds the packages that prevent a target from being resolved.
    `find_outdated` finds outdated versions among those that are in no earlier lock. `elsewhere`
    reads the requirements of a release from a wheel for another platform. Packages without wheels
    are built if the project allows it. A project's lock records what each package requires, and may
    omit targets.

    Raise `BuildError` if an index fails, `ToolError` if uv is missing, and `InvalidError` if the
    bytes of a local wheel contradict its index or a claim.
    """
    start = partial(
        target_wheels.resolver, settings=settings, run=run, environ=environ, memory=memory
    )
    offers = upstream.offers(
        profile.indexes, settings, pip.links(pip.sources(environ), environ), on_progress, read
    )
    basis = None if upgrade else previous
    of_origin = origin[1] if origin else None
    first = basis or (None if upgrade else of_origin)
    free = set(map(types.canonical, upgrade_packages))
    before = partial(preferred, first, free)
    debs = Debs(profile, suites or Suites(settings, on_progress), basis, origin)
    staying = [file for file in basis.files if file.name not in free] if basis else []
    foundry = SourceLocker(
        profile.resolution, settings, on_progress, elsewhere, forms.shown, staying
    )
    in_project = settings.definition is not None
    accepted = set[str]()
    for lock in filter(None, (basis, of_origin)):
        accepted.update(f"{file.name} {file.version}" for file in lock.files)

    lacking = target_wheels.unoffered(profile, offers)
    offered = _Offered(offers, {}, [])
    ask_of = partial(_asking, start, offered)

    def require_recent(place: Place, wheels: Iterable[Found]) -> None:
        new = [w for w in wheels if f"{w.file.name} {w.file.version}" not in accepted]
        blockers = find_outdated(asked, place, new, ask_of(place))
        for blocker in blockers:
            if blocker.kind == "wheel":
                lacks = (
                    f"{blocker.name} {blocker.version} has neither a matching wheel nor a source"
                )
                target = f"{place[0]} with Python {place[1]}"
                on_progress(f"note: {target} gets {', '.join(blocker.instead)}, because {lacks}")
        if old := too_old(blockers):
            raise OutdatedError(old, place)

    try:
        asked = profile
        offered.named.update(_named_sources(profile, foundry))
        for left in reversed(range(_MOST_ROUNDS)):
            with _uv_of_targets(asked, start, offered) as uv_of:
                uv = next(iter(uv_of.values()))
                read_contents = contents or partial(
                    wheel_conflicts.remote_contents, settings=settings, variables=uv.environment
                )
                solution = _targets(
                    asked,
                    debs,
                    before,
                    uv_of,
                    read_contents,
                    require_recent,
                    on_progress,
                    lacking,
                    in_project=in_project,
                )
                instead = _in_place_of_others(asked, solution) if left else []
                obstacles: dict[Place, Sequence[Blocker]] = {}
                if explain and not instead:
                    obstacles = _obstacles(asked, solution, ask_of, explain)
                building = _offers(profile.resolution, obstacles, foundry, solution)
                more = [offer for offer in building if left and offer not in offered.built]
                if instead or more:
                    asked = replace(asked, requirements=(*asked.requirements, *instead))
                    offered.built.extend(more)
                    continue
                solution = _finished(solution, obstacles, foundry, may_lack=in_project)
                tools, urls = _tools(profile, uv, (basis, of_origin), on_progress)
                # While the folder exists that wheels of the user's own were found in.
                lock = _sized(
                    replace(
                        nothing(profile),
                        tools=tools,
                        targets=_with_interpreters(solution.targets, profile, settings, basis),
                        missing=solution.missing,
                    ),
                    solution.urls | urls,
                    previous,
                    measure,
                    on_progress,
                )
                break
    except UnresolvableError as error:
        return replace(nothing(profile), state="unlocked", obstacle=error.reason)
    return _judged(lock, compare.foreign_files(profile, lock, compare.own_lock(origin)))


def _asking(start: Start, offered: _Offered, place: Place) -> Ask:
    """Return a function that uses uv to check whether a profile can be resolved for a target.

    The function returns uv's solution, or the error if there is none.
    """

    def ask(profile: Profile) -> tuple[Found, ...] | UnresolvableError:
        with start(profile, offers=offered.on(place)) as uv:
            try:
                overridden = target_wheels.overriding(uv, profile, *place)
                return target_wheels.of_target(profile, *place, {}, overridden)
            except UnresolvableError as error:
                return error

    return ask


@contextlib.contextmanager
def _uv_of_targets(profile: Profile, start: Start, offered: _Offered) -> Iterator[dict[Place, Uv]]:
    """Yield a dictionary with a `Uv` for each target of a profile.

    Each `Uv` has an index of the wheels offered for its target.
    """
    uv_of = {}
    with contextlib.ExitStack() as stack:
        for place in itertools.product(profile.platforms, profile.python.supported):
            uv_of[place] = stack.enter_context(start(profile, offers=offered.on(place)))
        yield uv_of


class _Offered(NamedTuple):
    """Wheels that uv can choose, in addition to those on the user's own indexes."""

    indexes: Sequence[Offer]
    """Wheels from the indexes that the profile names."""
    named: dict[Source, Offer]
    """Wheels from the sources that the project names."""
    built: list[Offer]
    """Wheels of packages that must be built."""

    def on(self, place: Place) -> tuple[Offer, ...]:
        """Return the wheels that are offered for a target."""
        offers = (offer for source, offer in self.named.items() if source.serves(*place))
        return (*self.indexes, *self.built, *offers)


class _Solution(NamedTuple):
    """The result of resolving all targets of a profile."""

    targets: tuple[Target, ...]
    urls: dict[str, str]
    """The URL at which uv found each wheel, by the wheel's sha256."""
    failures: dict[Place, UnresolvableError]
    """The targets that cannot be resolved, with the error for each."""
    missing: dict[str, Reason]
    """The targets that the lock omits, with the reason for each."""


def _in_place_of_others(asked: Profile, solution: _Solution) -> list[str]:
    """Return requirements for packages that can be installed instead of conflicting packages."""
    clashes = (e for e in solution.failures.values() if isinstance(e, ClashError))
    return sorted({clash.instead for clash in clashes} - {"", *asked.requirements})


def _with_interpreters(
    targets: Iterable[Target], profile: Profile, settings: Settings, basis: Lock | None
) -> tuple[Target, ...]:
    """Return the targets, with an interpreter added to each that uses a standalone Python."""
    everywhere = settings.definition is not None or profile.python.managed
    return tuple(
        replace(target, interpreter=interpreters.of_target(target, basis))
        if everywhere or (target.base and target.base.gets_python)
        else target
        for target in targets
    )


def _named_sources(profile: Profile, foundry: SourceLocker) -> dict[Source, Offer]:
    """Return an offer for each package source that the project specifies.

    Sources that serve none of the profile's targets are left out. Raise `UnresolvableError` if a
    source is unavailable.
    """
    offers = {}
    for source in profile.resolution.sources:
        places = itertools.product(profile.platforms, profile.python.supported)
        pythons = dict.fromkeys(place[1] for place in places if source.serves(*place))
        try:
            if pythons:
                candidate = foundry.prepare(
                    source.name, pythons=(*pythons,), location=source.location
                )
                offers[source] = candidate.offer
        except (BuildError, InvalidError) as error:
            raise UnresolvableError(f"{error.message}. {error.hint}") from error
    return offers


def _obstacles(
    asked: Profile,
    solution: _Solution,
    ask_of: Callable[[Place], Ask],
    explain: Explain,
) -> dict[Place, Sequence[Blocker]]:
    """Return the packages that prevent targets from being resolved, by target."""
    obstacles: dict[Place, Sequence[Blocker]] = {}
    for target, failure in solution.failures.items():
        if isinstance(failure, OutdatedError):
            obstacles[target] = failure.blockers
        elif not isinstance(failure, ClashError):
            obstacles[target], _ = explain(asked, target, failure, ask_of(target))
    return obstacles


def _offers(
    resolution: Resolution,
    obstacles: Mapping[Place, Sequence[Blocker]],
    foundry: SourceLocker,
    solution: _Solution,
) -> list[Offer]:
    """Return an offer for each package that has no wheel and that may be built.

    If a package cannot be built, record the failure for its target in `solution`.
    """
    offers = []
    for (platform, python), blockers in obstacles.items():
        for blocker in blockers:
            if blocker.kind != "source" or not foundry.allows(blocker.name):
                continue
            exact = f"=={blocker.version}"
            source = resolution.source_of(blocker.name, platform, python)
            location = source.location if source else ""
            try:
                candidate = foundry.prepare(
                    blocker.name, exact, pythons=[python], location=location
                )
            except (BuildError, InvalidError) as error:
                message = f"{error.message}. {error.hint}"
                solution.failures[platform, python] = UnresolvableError(message, (platform, python))
                continue
            stem = candidate.offer.file.removesuffix("-any.whl")
            offers.append(replace(candidate.offer, file=f"{stem}-{_ANY_OF[platform]}.whl"))
    return offers


def _finished(
    solution: _Solution,
    obstacles: Mapping[Place, Sequence[Blocker]],
    foundry: SourceLocker,
    *,
    may_lack: bool,
) -> _Solution:
    """Return the solution after adding built wheels or locked sources for the packages to build.

    With `may_lack`, the lock may omit targets that cannot be resolved. Otherwise, or if no target
    is left, raise the `UnresolvableError` of the first target that cannot be resolved.
    """
    failures = {**solution.failures}
    targets = []
    for place, blockers in obstacles.items():
        standing = [b for b in blockers if b.kind != "source" or not foundry.allows(b.name)]
        if standing:
            failures[place] = UnresolvableError(explained(standing, place), place)
    for target in solution.targets:
        try:
            targets.append(foundry.finish(target))
        except BuildError as error:
            place = target.platform, target.python
            failures[place] = UnresolvableError(error.message, place)
    if failures and not (may_lack and targets):
        raise next(iter(failures.values()))
    missing = {
        " ".join(place): replace(failure.reason, target="") for place, failure in failures.items()
    }
    return solution._replace(targets=tuple(targets), missing=missing)


def _targets(
    profile: Profile,
    debs: Debs,
    before: Preferred,
    uv_of: Mapping[Place, Uv],
    contents: Contents,
    require_recent: Callable[[Place, Iterable[Found]], None],
    on_progress: Callable[[str], None],
    lacking: Mapping[types.Platform, str],
    *,
    in_project: bool,
) -> _Solution:
    """Resolve each target of a profile. In a project, also record what each package requires.

    `lacking` maps each platform that cannot be resolved to the reason.
    """

    def answer(platform: types.Platform, python: str) -> tuple[Found, ...] | UnresolvableError:
        if platform in lacking:
            return UnresolvableError(lacking[platform])
        on_progress(f"{profile.name}: resolving {platform} with Python {python}")
        uv_here = target_wheels.overriding(uv_of[platform, python], profile, platform, python)
        try:
            wheels = target_wheels.of_target(
                profile, platform, python, before(platform, python), uv_here
            )
            require_recent((platform, python), wheels)
            if in_project:
                wheels = target_wheels.with_dependencies(wheels, profile, platform, python, uv_here)
            return target_wheels.compared(wheels, platform, python, contents(wheels, python))
        except UnresolvableError as error:
            return error

    places = [*itertools.product(profile.platforms, profile.python.supported)]
    with process.pool(_AT_ONCE) as pool:
        # Each thread has its share from the beginning: none starts another uv after a failure.
        shares = [places[n::_AT_ONCE] for n in range(_AT_ONCE)]
        found = pool.map(lambda share: {place: answer(*place) for place in share}, shares)
        answers = dict(itertools.chain.from_iterable(each.items() for each in found))
    solution = _Solution((), {}, {}, {})
    for target_place in places:
        wheels = answers[target_place]
        if isinstance(wheels, UnresolvableError):
            solution.failures[target_place] = wheels
            continue
        solution.urls.update({wheel.file.sha256: wheel.url for wheel in wheels})
        files = [wheel.file for wheel in wheels]
        target = debs.of(*target_place, files if in_project else ())
        files += target.files
        files.sort(key=lambda f: (_KIND_ORDER[f.kind], f.name, f.file))
        target = replace(target, files=(*files,))
        solution = solution._replace(targets=(*solution.targets, target))
    return solution


def _tools(
    profile: Profile,
    uv: Uv,
    earlier: Iterable[Lock | None],
    on_progress: Callable[[str], None],
) -> tuple[dict[types.Platform, File], dict[str, str]]:
    """Return the uv wheels for the profile by platform, and their URLs by sha256.

    The wheels are those of the uv version that the profile specifies. They are taken from an
    earlier lock if the lock has this version. The uv in these wheels installs packages, and is
    locked because it determines the installed bytes. The uv that resolves packages is not locked.
    It depends on the machine, but its choices are recorded in the lock. A project's rules for
    packages do not apply to these wheels.
    """
    for lock in earlier:
        versions = {p: f.version for p, f in lock.tools.items()} if lock else {}
        if lock and versions == dict.fromkeys(types.PLATFORMS, profile.tools.uv):
            return lock.tools, {}
    on_progress(f"{profile.name}: resolving uv {profile.tools.uv}")
    pin = f"uv=={profile.tools.uv}"
    python = profile.python.default
    plain = replace(uv, options=())
    resolved = {p: plain.compile([pin], p, python, {})[0] for p in types.PLATFORMS}
    tools = {p: replace(w.file, kind="tool") for p, w in resolved.items()}
    return tools, {w.file.sha256: w.url for w in resolved.values()}


def _sized(
    lock: Lock,
    urls: Mapping[str, str],
    previous: Lock | None,
    measure: Measure,
    on_progress: Callable[[str], None],
) -> Lock:
    """Return the lock with sizes added to the files for which no index specified a size.

    If the previous lock has a size for the same sha256, that size is used, because the size depends
    only on the bytes, not on their location. The sizes of all other files are requested from their
    servers. Sizes that cannot be determined are left out.
    """
    before = previous.files if previous else ()
    sizes = {f.sha256: f.size for f in before if f.size is not None}
    unknown = {f.sha256 for f in lock.files if f.size is None} - sizes.keys()
    requested = {sha256: urls[sha256] for sha256 in unknown if urls.get(sha256)}
    if requested:
        on_progress(f"requesting the sizes of {len(requested)} files")
    measured = measure(requested.values()) if requested else {}
    sizes |= {sha256: measured[url] for sha256, url in requested.items() if url in measured}

    def sized(file: File) -> File:
        size = sizes.get(file.sha256) if file.size is None else file.size
        about = file.size_about if size is None else None
        return replace(file, size=size, size_about=about)

    targets = (replace(t, files=tuple(map(sized, t.files))) for t in lock.targets)
    tools = {platform: sized(tool) for platform, tool in lock.tools.items()}
    return replace(lock, tools=tools, targets=tuple(targets))


def preferred(
    basis: Lock | None, free: Collection[str], platform: str, python: str
) -> dict[str, str]:
    """Return the versions that an earlier lock has for a target, by package name.

    The packages in `free` are left out.
    """
    target = target_of(basis, platform, python)
    packages = target.packages if target else ()
    return {f.name: f.version for f in packages if types.canonical(f.name) not in free}


def _judged(lock: Lock, foreign: Iterable[str]) -> Lock:
    """Return the lock with its final state.

    The state is `claimed` if a hash was not read from an index. It is `unlocked` if the lock
    contains files for other hardware, because `check` would reject such a lock.
    """
    if others := [*foreign]:
        others.append("Use an index with upstream's own files, or another framework_version")
        obstacle = reason("the indexes have files for other hardware", others)
        return replace(lock, targets=(), tools={}, missing={}, state="unlocked", obstacle=obstacle)
    located: list[tuple[File, str]] = [(tool, platform) for platform, tool in lock.tools.items()]
    for target in lock.targets:
        target_name = f"{target.platform}, Python {target.python}"
        located += [(file, target_name) for file in target.fetched(managed=False)]
    weak = sorted({f"{f.name} {f.version} ({w})" for f, w in located if f.provenance != "read"})
    if not weak:
        return lock
    return replace(
        lock,
        state="claimed",
        reason=one_line(
            f"hashes from public lock files, to be confirmed by the download: {'; '.join(weak)}"
        ),
    )
