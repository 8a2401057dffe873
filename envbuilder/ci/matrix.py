"""The matrix of a project: what CI can build and verify, one row each. Pure: data in, rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.locks.entries import Entry, entries
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.packages.conda.lock import Lock as CondaLock
from envbuilder.packages.store import unpacked
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.backends import makes_image
from envbuilder.profiles.library import Library
from envbuilder.profiles.profile import Profile, search_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from envbuilder.core.settings import Settings


def profiles(
    settings: Settings, names: Sequence[str], repository: Path
) -> Iterator[LockedProfile | Omission]:
    """Yield the named profiles, or all that are not opt-in, with their locks.

    What cannot be used is left out, unless it is named or the project lists it: then `InvalidError`
    is raised.
    """
    library = Library(search_path(settings.project, settings.config_dir))
    for name in names or (None,):
        for entry in entries(settings, name):
            if isinstance(entry.profile, Profile) and entry.profile.opt_in and not entry.required:
                continue
            try:
                yield _locked(entry, library, repository)
            except InvalidError as error:
                if entry.required:
                    raise
                yield Omission(label=entry.label, why=error.message)


def _locked(entry: Entry, library: Library, repository: Path) -> LockedProfile:
    """Return a profile with its locks; raise `InvalidError` if it has none that can be used."""
    if isinstance(entry.profile, InvalidError):
        raise entry.profile
    lock = profile_lock.load(entry.earlier) if entry.earlier else None
    usable = profile_lock.require_usable(entry.profile, lock, of_project=bool(entry.environment))
    path = conda_lock.path_for(entry.name, library)
    if entry.environment:
        beside = conda_lock.beside(entry.path)
        path = beside if beside.is_file() else None
    of_conda = conda_lock.load(path) if path else None
    if path or entry.profile.backends == ("conda",):
        of_conda = conda_lock.require_usable(entry.profile, of_conda)
    return LockedProfile(
        environment=entry.environment,
        profile=entry.profile,
        lock=usable,
        path=_inside(entry.earlier, repository),
        conda_lock=of_conda,
        conda_path=_inside(path, repository),
    )


def _inside(path: Path | None, repository: Path) -> str:
    """Return a path relative to the repository; empty if it is none, or elsewhere."""
    root = repository.resolve()
    if path is None or not path.resolve().is_relative_to(root):
        return ""
    return path.resolve().relative_to(root).as_posix()


BACKENDS: tuple[types.Backend, ...] = ("venv", "docker", "conda")
"""Backends that rows may have, the default one first. conda takes a lock of the user's own."""
_DIGITS = 16
"""Digits of a lock's digest in a cache key."""


class LockedProfile(Struct, frozen=True, kw_only=True):
    """A profile, or an environment of a project on one, with its usable lock."""

    environment: str
    """Of the project; empty for a profile itself."""
    profile: Profile
    lock: profile_lock.Lock
    path: str
    """The lock's path in the repository; empty if it came with envbuilder."""
    conda_lock: CondaLock | None = None
    """The lock of its conda packages, if it has one."""
    conda_path: str = ""
    """That lock's path in the repository; empty if it is elsewhere."""

    @property
    def backends(self) -> tuple[types.Backend, ...]:
        """The backends that are locked, the default one first."""
        return tuple(
            each
            for each in BACKENDS
            if each in self.profile.backends and (each != "conda" or self.conda_lock is not None)
        )


class Row(Struct, frozen=True, kw_only=True):
    """One job: an environment on one platform, with one Python and one backend."""

    id: str
    """Unique in the matrix; fit for the names of files, jobs and artifacts."""
    what: Literal["verify", "build"]
    """`build` where the runner lacks the accelerator, or is not known to have it."""
    environment: str
    profile: str
    framework: types.Framework
    accelerator: types.Accelerator
    platform: types.Platform
    python: types.PythonVersion
    backend: types.Backend
    runner: str
    """Label of the runner."""
    cpu_flags: tuple[str, ...]
    """What the runner's processor must have; otherwise `verify` exits with 3."""
    lock: str
    """The lock's path in the repository; empty if it came with envbuilder."""
    conda_lock: str = ""
    """The same for the lock of the conda packages; empty for other backends."""
    cache_key: str
    """Changes whenever other files are needed."""
    disk_bytes: int
    """A lower bound of what downloads and environment take; a base image is not included."""


class Omission(Struct, frozen=True, kw_only=True):
    """What has no row, and why."""

    label: str
    why: str


class Selection(Struct, frozen=True, kw_only=True):
    """Which rows are asked for; empty fields restrict nothing."""

    platforms: tuple[types.Platform, ...] = ()
    pythons: tuple[types.PythonVersion, ...] = ()
    """Without them, each profile's default."""
    backends: tuple[types.Backend, ...] = ()
    """Without them, the first of `BACKENDS` that a profile has."""


def rows(
    profiles: Iterable[LockedProfile],
    selection: Selection,
    hosted: Mapping[types.Platform, str],
    accelerated: Mapping[str, str],
) -> Iterator[Row | Omission]:
    """Yield the rows of each profile, and why there is none.

    `hosted`: platform → label of a runner without accelerators. `accelerated`: labels of runners
    where profiles are verified, by what `_runner` looks for.
    """
    for locked in profiles:
        label = _label(locked.environment, locked.profile.name)
        jobs = [*_jobs(locked, selection)]
        if not jobs:
            yield Omission(label=label, why=_why_none(locked, selection))
        for platform, python, backend in jobs:
            row = _row(locked, platform, python, backend, hosted, accelerated)
            if not row.runner:
                yield Omission(label=row.id, why=f"no hosted runner is {platform}; {hint(row)}")
            else:
                yield row


def hint(row: Row) -> str:
    """Return how to name a runner of the user's own for a job."""
    return f"name a runner of yours: --runner {row.profile}@{row.platform}=LABEL"


def _label(environment: str, profile: str) -> str:
    return ".".join(filter(None, (environment, profile)))


def _why_none(locked: LockedProfile, selection: Selection) -> str:
    possible = {*locked.profile.backends} & {*(selection.backends or BACKENDS)}
    if possible == {"conda"} and locked.conda_lock is None:
        return "its conda packages are not locked: `envbuilder lock --backend conda`"
    if not possible:
        return f"its backends are {', '.join(locked.profile.backends)}"
    return "its lock has nothing for these platforms, Pythons and backends"


def _jobs(
    locked: LockedProfile, selection: Selection
) -> Iterator[tuple[types.Platform, types.PythonVersion, types.Backend]]:
    profile = locked.profile
    backends = [each for each in locked.backends if each in selection.backends]
    if not selection.backends:
        backends = [*locked.backends[:1]]
    for platform in selection.platforms or types.PLATFORMS:
        for backend in backends:
            possible = _pythons(locked, platform, backend)
            default = profile.image_python if makes_image(backend) else profile.python.default
            preferred = (default,) if default in possible else possible[:1]
            for python in selection.pythons or preferred:
                if python in possible:
                    yield platform, python, backend


def _pythons(
    locked: LockedProfile, platform: types.Platform, backend: types.Backend
) -> tuple[types.PythonVersion, ...]:
    """Return the Pythons that the locks cover on a platform and, of an image, that have a base."""
    image = makes_image(backend)
    if image and types.system(platform) != "linux":
        return ()
    targets = (t for t in locked.lock.targets if t.platform == platform)
    pythons = tuple(t.python for t in targets if not image or t.base is not None)
    if backend != "conda" or locked.conda_lock is None:
        return pythons
    of_conda = {t.python for t in locked.conda_lock.targets if t.platform == platform}
    return tuple(python for python in pythons if python in of_conda)


def _row(
    locked: LockedProfile,
    platform: types.Platform,
    python: types.PythonVersion,
    backend: types.Backend,
    hosted: Mapping[types.Platform, str],
    accelerated: Mapping[str, str],
) -> Row:
    profile = locked.profile
    label = _label(locked.environment, profile.name)
    name = f"{label}-{platform.replace('/', '-')}-py{python}-{backend}"
    runner = _runner(profile, platform, accelerated)
    proves = profile.accelerator == "cpu" or runner is not None
    files = tuple(_files(locked, platform, python, backend))
    taken = (locked.lock, *((locked.conda_lock,) if backend == "conda" else ()))
    digests = (profile_lock.lock_digest(lock)[:_DIGITS] for lock in taken if lock is not None)
    x86 = types.machine(platform) == "x86_64"
    return Row(
        id=name,
        what="verify" if proves else "build",
        environment=locked.environment,
        profile=profile.name,
        framework=profile.framework,
        accelerator=profile.accelerator,
        platform=platform,
        python=python,
        backend=backend,
        runner=runner or hosted.get(platform, ""),
        cpu_flags=profile.requires.cpu_flags if x86 else (),
        lock=locked.path,
        conda_lock=locked.conda_path if backend == "conda" else "",
        cache_key="-".join((name, *digests)),
        disk_bytes=sum(file.room for file in files) + unpacked(files),
    )


def _files(
    locked: LockedProfile,
    platform: types.Platform,
    python: types.PythonVersion,
    backend: types.Backend,
) -> Iterator[profile_lock.File]:
    """Yield what a job downloads, apart from a base image and single libraries."""
    target = profile_lock.select(locked.lock, platform, python)
    if locked.profile.framework_from_wheels(backend):
        yield locked.lock.tool(platform)
        yield from (f for f in target.files if f.kind != "deb" or makes_image(backend))
    if backend == "conda" and locked.conda_lock is not None:
        packages = conda_lock.select(locked.conda_lock, platform, python).packages
        yield from (package.as_file for package in packages)


def _runner(
    profile: Profile, platform: types.Platform, accelerated: Mapping[str, str]
) -> str | None:
    """Return the label of a runner with the accelerator: by `cuda` or, of one platform, `cuda@…`.

    A name alone is for the profile's first platform: no machine is of two.
    """
    for name in (profile.name, profile.accelerator):
        label = accelerated.get(f"{name}@{platform}")
        if label is None and platform == profile.platforms[0]:
            label = accelerated.get(name)
        if label is not None:
            return label
    return None
