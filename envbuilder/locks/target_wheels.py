"""Find the wheels for one target with uv, and determine their requirements and sizes.

A package that is assigned to a named index is taken only from that index. A framework is installed
under only one of its distribution names.
"""

from __future__ import annotations

import contextlib
import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuilder.core import http, pip, process, types
from envbuilder.core.errors import escaped
from envbuilder.packages import upstream
from envbuilder.packages.python import indexes, wheel_conflicts
from envbuilder.packages.python.uv import (
    Found,
    Memory,
    Offer,
    Runner,
    UnresolvableError,
    Uv,
    started,
)
from envbuilder.profiles import frameworks, releases
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.lock import OF_NO_INDEX, PRUNED, File, Recipe
from envbuilder.profiles.profile import Profile, is_on_pypi
from envbuilder.profiles.requirements import SAME, applies, distribution, for_other_hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import requests

    from envbuilder.core.http import Session
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.releases import Build


_MOST_EXCLUDED = 20
"""Maximum number of versions from wrong indexes to exclude. If more are found, the target is
treated as unresolvable."""


_CUDAS = frozenset({"12", "13"})

_USUAL = frozenset({"opencv-python-headless"})
"""Packages to prefer among equivalent packages if the project lists none of them. They are
preferred because they need no display."""


class ClashError(UnresolvableError):
    """Raised when two wheels install different bytes at the same path."""

    def __init__(
        self,
        why: str,
        target: tuple[str, str],
        names: frozenset[str],
        preferred: Iterable[str] = (),
    ) -> None:
        super().__init__(why, target)
        family = next((f for f in map(frozenset, SAME) if names <= f), frozenset())
        self.instead = next(iter(family & _USUAL.union(preferred)), "")
        """The package to install in place of the conflicting ones. Empty if there is no such
        package."""


def left_out(profile: Profile) -> frozenset[str]:
    """Return the packages that a profile omits even if other packages require them.

    The omitted packages are for other hardware, are excluded by the project, or are equivalent to a
    package that the profile lists.
    """
    names = {*map(distribution, profile.requirements)}
    foreign = FRAMEWORKS[profile.framework].foreign(profile.accelerator)
    foreign |= for_other_hardware(profile.accelerator)
    same = (family - names for family in map(frozenset, SAME) if family & names)
    return frozenset().union(foreign - names, profile.resolution.exclude, *same)


def without(profile: Profile, names: Collection[str]) -> Profile:
    """Return a copy of a profile that omits the named packages.

    The packages are omitted even if other packages require them.
    """
    exclude = (*profile.resolution.exclude, *sorted(names))
    return msgspec.structs.replace(
        profile,
        requirements=tuple(r for r in profile.requirements if distribution(r) not in names),
        resolution=msgspec.structs.replace(profile.resolution, exclude=exclude),
    )


@contextlib.contextmanager
def resolver(
    profile: Profile,
    settings: Settings,
    offers: Iterable[Offer],
    run: Runner,
    environ: Mapping[str, str],
    memory: Memory | None = None,
) -> Iterator[Uv]:
    """Yield a `Uv` that is set up to resolve a profile and has a static index of the offers."""
    with started(settings, run, environ, offers, profile.indexes, memory) as uv:
        excludes = uv.folder / "excludes.txt"
        resolution = profile.resolution
        names = sorted(left_out(profile))
        excludes.write_text("\n".join(names), encoding="utf-8")
        options = ["--excludes", str(excludes)]
        if resolution.as_of:
            options += ["--exclude-newer", f"{resolution.as_of}T23:59:59Z"]
            # No index states when these were uploaded; their release is chosen by its own day.
            offered = {types.canonical(offer.distribution) for offer in uv.index.offers.values()}
            for name in sorted({*offered, *map(types.canonical, profile.indexes)}):
                options += ["--exclude-newer-package", f"{name}=false"]
        yield replace(uv, options=tuple(options))


def overriding(uv: Uv, profile: Profile, platform: types.Platform, python: str) -> Uv:
    """Return a copy of `uv` that uses the profile's overrides that apply to a target.

    The other overrides are not passed, because uv leaves out a package altogether if the marker of
    its override does not match.
    """
    needs = map(Requirement, profile.resolution.overrides)
    holding = [need for need in needs if applies(need.marker, platform, python)]
    if not holding:
        return uv
    for need in holding:
        need.marker = None
    path = uv.folder / f"overrides-{types.machine(platform)}-{python}.txt"
    path.write_text("\n".join(map(str, holding)), encoding="utf-8")
    return replace(uv, options=(*uv.options, "--overrides", str(path)))


def unoffered(profile: Profile, offers: Iterable[Offer]) -> dict[types.Platform, str]:
    """Return the platforms that cannot be resolved, each with a message about what is missing.

    On these platforms, an index that the profile specifies lacks a required version. The framework
    may be missing from the index on platforms for which PyPI has the same build. A companion of the
    framework must be available in the version that goes with the framework's release.
    """
    row = releases.table_of(profile.framework).get(profile.release or "")
    offered: dict[str, set[str]] = {}
    for offer in offers:
        offered.setdefault(types.canonical(offer.distribution), set()).add(offer.version)
    sources = {types.canonical(d): s for d, s in profile.indexes.items()}
    builds = FRAMEWORKS[profile.framework].builds
    lacking: dict[types.Platform, str] = {}
    for need in map(Requirement, profile.requirements):
        name = types.canonical(need.name)
        if row and name in row.companions and not need.specifier:
            need.specifier = SpecifierSet(f"=={row.companions[name]}")
        versions = need.specifier.filter(map(Version, offered.get(name, ())), prereleases=True)
        if name not in sources or any(True for _ in versions):
            continue
        for platform in profile.platforms:
            applying = applies(need.marker, platform, profile.python.default)
            if applying and not (name in builds and is_on_pypi(profile, platform)):
                lacking.setdefault(
                    platform,
                    f"{need.name}{need.specifier}: the index {sources[name]} cannot be reached or"
                    " does not have it, and no public lock contains the hashes of its wheels:"
                    f" {_elsewhere(sources[name])}",
                )
    return lacking


class Hashes:
    """A lookup of the Python versions for which the hash of a framework's wheel is known.

    Each index is read once. The hashes in an index or a public lock file are the same on all
    machines. The result depends on the machine only because not every machine can reach every
    index.
    """

    def __init__(self, settings: Settings, read: Callable[[str], bytes]) -> None:
        self._settings = settings
        self._read = read
        self._offers: dict[str, tuple[Offer, ...]] = {}

    def __call__(self, build: Build) -> tuple[str, ...]:
        """Return the Python versions for which a wheel of this build has a known hash."""
        if build.index == indexes.DEFAULT:
            return build.pythons
        if build.index not in self._offers:
            links = pip.links(pip.sources(os.environ), os.environ)
            self._offers[build.index] = upstream.offers(
                {"torch": build.index}, self._settings, links, lambda _: None, self._read
            )
        end = f"_{types.machine(build.platform)}.whl"
        version = f"{build.release}+{build.build}"
        tags = {
            offer.file.split("-")[2]
            for offer in self._offers[build.index]
            if offer.version == version and offer.file.endswith(end)
        }
        return tuple(v for v in build.pythons if f"cp{v.replace('.', '')}" in tags)


def of_target(
    profile: Profile,
    platform: types.Platform,
    python: types.PythonVersion,
    before: Mapping[str, str],
    uv: Uv,
) -> tuple[Found, ...]:
    """Return the wheels for a target, which include only one distribution of the framework.

    This is the distribution that the profile requires. Another package may require the framework
    under a different name, such as `tensorflow` if the profile has `tensorflow-cpu`. Both
    distributions contain the same modules. The other distribution is resolved to the same version,
    so that the version limits of the packages that require it apply. Then its wheel is left out.
    """
    wheels = _of_indexes(profile, platform, python, before, uv)
    present = {types.canonical(wheel.file.name): wheel.file.version for wheel in wheels}
    names = FRAMEWORKS[profile.framework].names & present.keys()
    required = [
        need.name
        for need in map(Requirement, profile.requirements)
        if types.canonical(need.name) in names and applies(need.marker, platform, python)
    ]
    others = names - {types.canonical(required[0])} if required else frozenset()
    if not others:
        return wheels
    same = (f"{name}=={present[types.canonical(required[0])]}" for name in sorted(others))
    limited = msgspec.structs.replace(profile, constraints=(*profile.constraints, *same))
    wheels = _of_indexes(limited, platform, python, before, uv)
    return tuple(wheel for wheel in wheels if types.canonical(wheel.file.name) not in others)


def compared(
    wheels: Sequence[Found],
    platform: types.Platform,
    python: types.PythonVersion,
    contents: Mapping[str, Mapping[str, str]],
) -> tuple[Found, ...]:
    """Check a target's wheels for conflicting files, and return the wheels.

    `contents` maps the sha256 of each wheel to the files in the wheel. A wheel whose contents are
    unknown is marked as unread. If stray files or programs conflict, one of the wheels gets a
    recipe that leaves these files out. Raise `ClashError` if two wheels install different bytes at
    any other path.
    """
    installed = {w.file: contents[w.file.sha256] for w in wheels if w.file.sha256 in contents}
    pruned = wheel_conflicts.prunable(installed, python)
    remaining = {
        wheel: {path: c for path, c in places.items() if path not in pruned.get(wheel, ())}
        for wheel, places in installed.items()
    }
    conflict = wheel_conflicts.clash(remaining)
    if conflict:
        sentence, edit = wheel_conflicts.explained(*conflict, [w.file for w in wheels])
        first = conflict[1].name
        second = conflict[2].name
        needed = [w.file.requires for w in wheels if frameworks.of_name(w.file.name)]
        raise ClashError(
            f"{escaped(sentence)}. {edit}",
            (platform, python),
            frozenset({first, second}),
            chain.from_iterable(needed),
        )
    wheels = [
        msgspec.structs.replace(w, file=_pruned(w.file, python, pruned[w.file]))
        if w.file in pruned
        else w
        for w in wheels
    ]
    return tuple(
        w
        if w.file.sha256 in contents or w.file.provenance != "read" or w.file.source in OF_NO_INDEX
        else msgspec.structs.replace(w, file=msgspec.structs.replace(w.file, unread=True))
        for w in wheels
    )


def _pruned(file: File, python: str, paths: Iterable[str]) -> File:
    """Return a wheel with a recipe that installs it without the given paths.

    The recipe contains the hash of the complete wheel.
    """
    site = f"lib/python{python}/site-packages/"
    recipe = Recipe(
        kind="wheel",
        location=file.basename,
        sha256=file.sha256,
        index=file.source,
        without=tuple(p.removeprefix(site) for p in paths if p.startswith(site)),
        without_programs=tuple(p.removeprefix("bin/") for p in paths if p.startswith("bin/")),
    )
    return msgspec.structs.replace(file, source=PRUNED, recipe=recipe)


def with_dependencies(
    wheels: Sequence[Found], profile: Profile, platform: types.Platform, python: str, uv: Uv
) -> tuple[Found, ...]:
    """Return the wheels for a target, each with the names of the wheels that it requires.

    If a wheel requires the framework under a name that is not in the lock, that name is replaced by
    the framework's name in the lock.
    """
    names = FRAMEWORKS[profile.framework].names
    pins = {wheel.file.name: wheel.file.version for wheel in wheels}
    locked = min(names & pins.keys(), default="")
    others = dict.fromkeys(names - pins.keys(), locked) if locked else {}
    pins |= dict.fromkeys(others, pins.get(locked, ""))
    requires: dict[str, set[str]] = {}
    constraints = _constraints(profile, platform)
    for required, _, by in uv.edges(profile.requirements, platform, python, pins, constraints):
        second = others.get(required, required)
        for first in (others.get(package, package) for package in by):
            requires.setdefault(first, set()).update({second} - {first})
    return tuple(
        replace(w, file=replace(w.file, requires=tuple(sorted(requires.get(w.file.name, ())))))
        for w in wheels
    )


def _constraints(profile: Profile, platform: types.Platform) -> tuple[str, ...]:
    """Return a profile's constraints, and further ones that exclude builds for other hardware.

    If the profile uses PyPI's build of torch, other builds of the same release are excluded.
    Otherwise, uv could choose a build such as 2.13.0+cpu from a find-links folder, because that
    build satisfies `torch==2.13.0`.
    """
    if profile.framework != "torch":
        return (*profile.constraints, *_one_cuda(profile, platform))
    if not is_on_pypi(profile, platform):
        return profile.constraints
    every = releases.every("torch")
    # Of one that no table has, any build may lie there.
    others = {b.build for b in every if b.release == profile.release} or {b.build for b in every}
    excluded = (f"torch!={profile.release}+{build}" for build in sorted(others))
    return (*profile.constraints, *excluded)


def _one_cuda(profile: Profile, platform: types.Platform) -> Iterator[str]:
    """Yield constraints that prevent torch from adding libraries for a second CUDA version.

    Otherwise, the CUDA version of torch and that of the profile's framework would both install
    cuDNN at the same path.
    """
    build = profile.build_on(platform)
    cuda = frameworks.cuda_of(build.build) if build else ""
    for other in _CUDAS - {cuda} if cuda else ():
        yield f"nvidia-cudnn-cu{other}<0"


def _of_indexes(
    profile: Profile,
    platform: types.Platform,
    python: types.PythonVersion,
    before: Mapping[str, str],
    uv: Uv,
) -> tuple[Found, ...]:
    """Return the wheels for a target, each from the index that the profile specifies for it.

    uv chooses the best version from all indexes. This version may be PyPI's build for other
    hardware. In that case, uv is run again without that version.
    """
    builds = FRAMEWORKS[profile.framework].builds
    sources = {types.canonical(d): s for d, s in profile.indexes.items()}
    if is_on_pypi(profile, platform):
        sources = {name: source for name, source in sources.items() if name not in builds}
    # Where the project names the source of a package, no index's release of its name is meant.
    source_of = profile.resolution.source_of
    offers = uv.index.offers.values()
    of_indexes = [o for o in offers if source_of(o.distribution, platform, python)]
    sources |= {offer.distribution: offer.source for offer in of_indexes}
    exact = [f"{offer.distribution}=={offer.version}" for offer in of_indexes]
    excluded: list[str] = []
    foreign: list[File] = []
    while len(excluded) <= _MOST_EXCLUDED:
        constraints = (*_constraints(profile, platform), *exact, *excluded)
        try:
            wheels = uv.compile(profile.requirements, platform, python, before, constraints)
        except UnresolvableError:
            if not foreign:
                raise
            break
        foreign = [
            w.file
            for w in wheels
            if sources.get(types.canonical(w.file.name), w.file.source) != w.file.source
        ]
        if not foreign:
            return wheels
        excluded += [f"{f.name}!={f.version}" for f in foreign]
    name = foreign[0].name
    source = sources[types.canonical(name)]
    raise UnresolvableError(
        f"{name} is required, but no index or public lock has the hash of a matching build for"
        f" this hardware (index {source}), and PyPI's builds are for other hardware:"
        f" {_elsewhere(source)}",
        (platform, python),
    )


def _elsewhere(source: str) -> str:
    """Return advice for the case that an index specified by the profile cannot be reached."""
    return (
        f"lock on a machine that can reach it, or set a mirror ({indexes.mirror_setting(source)})"
    )


PARALLEL = 6
PATIENCE = 3
"""Number of unanswered requests after which a host is no longer contacted."""


def sizes(urls: Iterable[str], session: Session | None = None) -> dict[str, int]:
    """Return the sizes in bytes of the files at the given URLs, by URL.

    This function never raises an error. URLs for which no size is clearly specified are left out. A
    guess would be worse, because the size decides whether a disk is considered to have enough
    space.
    """
    unique = sorted(set(urls))
    connected = http.open_session() if session is None else session
    silent_hosts: list[str] = []
    with contextlib.closing(connected), process.pool(PARALLEL, connected.stop) as pool:
        measured = pool.map(lambda url: _size(url, connected, silent_hosts), unique)
        return {url: size for url, size in zip(unique, measured, strict=True) if size}


def _size(url: str, session: Session, silent_hosts: list[str]) -> int | None:
    """Return a file's size in bytes, which is determined by a HEAD request or from disk.

    Return None if the size is unknown. If the host does not answer, it is added to `silent_hosts`.
    """
    import requests

    host = ""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"", "file"}:
            path = Path(unquote(parts.path))
            return path.stat().st_size if path.is_file() else None
        host = parts.netloc
        if silent_hosts.count(host) < PATIENCE:
            with http.request(session, "HEAD", url, {}, upstream.TIMEOUT) as answer:
                return _stated_size(answer)
    except (requests.ConnectionError, requests.Timeout):
        silent_hosts.append(host)
    except (requests.RequestException, ValueError, OSError):
        pass
    return None


def _stated_size(answer: requests.Response) -> int | None:
    """Return the size in bytes that a HEAD response specifies for the file.

    Return None if the response does not specify a size.
    """
    # An HTML page instead of a file comes from a proxy or portal that requires a login.
    page = answer.headers.get("Content-Type", "").lower().startswith("text/html")
    packed = answer.headers.get("Content-Encoding")
    return (
        http.length(answer) or None if answer.status_code == 200 and not (page or packed) else None
    )
