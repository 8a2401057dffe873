"""List the locks to create for profiles or for a project's environments, and write them.

Before a lock is written, it is parsed in the same way as by the commands that will read it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import decoding, files, types
from envbuilder.core.errors import Hint, InvalidError
from envbuilder.core.settings import LOCKS, PROJECT_FILE, Settings
from envbuilder.locks import compare
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import library, lock as profile_lock, profile as profile_files
from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Profile
from envbuilder.project import environments, variants
from envbuilder.project.lines import Line
from envbuilder.project.release import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from envbuilder.packages.conda.solve import Channels
    from envbuilder.profiles.library import Library


_Lock = TypeVar("_Lock", Lock, conda_lock.Lock)


class Entry(Struct, frozen=True, kw_only=True):
    """A lock file to be created."""

    environment: str = ""
    """The name of the project's environment; empty for a profile's own lock."""
    name: str = ""
    """The profile's name. Empty if no profile fits the environment or if the environment cannot be
    read."""
    profile: Profile | InvalidError
    """The profile to lock, or the project's variant of it. If there is no usable profile, this is
    the error that says why."""
    origin: tuple[Profile, Lock] | None = None
    """For a project's variant, the original profile and its lock. None if the original profile has
    no lock."""
    places: Mapping[str, str] = {}
    """The place that lists each of the project's requirements, such as "requirements.txt:3", by
    requirement."""
    notes: tuple[str, ...] = ()
    """Notes about requirements that were changed or left out."""
    earlier: Path | None
    """The path of the existing lock, or None if there is none."""
    path: Path
    """The path to write the new lock to."""
    shipped: Path | None = None
    """The lock shipped with envbuilder, if the new lock would take precedence over it."""
    required: bool
    """Whether the user named the profile. If so, a failure to lock it is an error."""
    decision: Decision | None = None
    """The framework release and Python version chosen for the project, if the profile offers
    several."""
    decided: profile_lock.Decided | None = None
    """The contents of `decision` in the form that the lock records, with the reasons for it."""
    limits: tuple[str, ...] = ()
    """The project's limits on the framework and its companions, as constraints that apply to any
    build."""
    pythons: tuple[Line, ...] = ()
    """The project's limits on the Python version."""

    @property
    def label(self) -> str:
        """The lock's name as used in its file name: PROFILE or ENVIRONMENT.PROFILE."""
        return ".".join(filter(None, (self.environment, self.name)))

    @property
    def release(self) -> tuple[str, ...]:
        """The framework release and the Python version of a project's lock, as text.

        The tuple is empty if the lock does not belong to a project, or if the profile does not pin
        a framework release.
        """
        if isinstance(self.profile, InvalidError) or not self.environment:
            return ()
        version = self.decision.chosen.title if self.decision else self.profile.expects.version
        return (version, f"Python {self.profile.python.default}") if version else ()


def entries(
    settings: Settings,
    name: str | None = None,
    output_dir: Path | None = None,
    choosing: variants.ReleaseOptions = variants.ANY,
) -> Iterator[Entry]:
    """Yield the locks to create for one profile or for all profiles.

    In a project, yield the locks of each of its environments.
    """
    if settings.definition is not None:
        for entry in of_project(settings, name, choosing):
            yield replace(entry, path=output_dir / entry.path.name) if output_dir else entry
        return
    folders = profile_files.search_path(settings.project, settings.config_dir)
    for profile_name in (name,) if name else profile_files.names(folders):
        profile = profile_files.load(profile_name, folders)
        path = place(profile_name, settings, output_dir)
        shipped = None if output_dir else library.matching_shipped(profile, folders)
        yield Entry(
            name=profile_name,
            profile=profile,
            earlier=profile_lock.path_for(profile_name, folders),
            path=path,
            shipped=shipped[0] if shipped and shipped[0] != path else None,
            required=bool(name),
        )


def place(name: str, settings: Settings, output_dir: Path | None) -> Path:
    """Return the path of a profile's lock.

    Raise `InvalidError` if the project's folder `profiles` or `profiles/locks` is a symbolic link.
    """
    if settings.project and output_dir is None:
        for folder_name in ("profiles", "profiles/locks"):
            files.require_unlinked(settings.project / folder_name)
    folder = output_dir or (settings.project or settings.config_dir) / "profiles" / "locks"
    return folder / f"{name}.json"


def of_project(
    settings: Settings, name: str | None = None, choosing: variants.ReleaseOptions = variants.ANY
) -> Iterator[Entry]:
    """Yield the locks to create for a project, or only those for the profile `name`.

    Opt-in profiles are skipped unless the project lists them. Profiles for a framework that the
    environment does not use are also skipped. If an environment cannot be read, or if no profile
    fits it, yield an entry that contains the error, so that the other environments can still be
    locked.

    Raise `InvalidError` outside a project, if a profile cannot be read, or if every environment
    fails.
    """
    definition = settings.definition
    folder = settings.project
    if definition is None or folder is None:
        raise InvalidError(
            "this folder is not in a project: no envbuilder.yaml lists requirements",
            Hint("Write one", ("init",)),
        )
    readable: list[variants.ProjectProfiles] = []
    frameworks = set[types.Framework]()
    failures: dict[str, InvalidError] = {}
    for environment in environments.names(definition):
        project = variants.of_project(replace(settings, environment=environment), choosing)
        assert project is not None, "there is a definition"
        try:
            project.require_readable()
            environments.require_parts(definition, environment, folder)
            readable.append(project)
            frameworks.add(project.framework[0])
        except InvalidError as error:
            failures[environment] = error
    folders = profile_files.search_path(folder, settings.config_dir)
    required = bool(name or definition.profiles)
    result: list[Entry] = []
    for project in readable:
        combined = _of_environment(project, name, folders, frameworks, required=required)
        problems = [e.profile for e in combined if isinstance(e.profile, InvalidError)]
        if problems and len(problems) == len(combined) and not required:
            message = f"{problems[0].message}, and no other profile fits"
            failures[project.environment] = InvalidError(message, problems[0].hints)
        else:
            result += combined
    for environment, failure in failures.items():
        if not result:
            raise failure
        path = folder / LOCKS / f"{environment}.json"
        result.append(
            Entry(environment=environment, profile=failure, earlier=None, path=path, required=True)
        )
    yield from result


def _of_environment(
    project: variants.ProjectProfiles,
    name: str | None,
    folders: Sequence[Path],
    frameworks: Collection[types.Framework],
    *,
    required: bool,
) -> list[Entry]:
    """Return the locks to create for one environment.

    If `name` is given, return only the lock for that profile. `frameworks` are the frameworks of
    all environments. A profile for another environment's framework is used only if no profile fits
    this environment's own framework.
    """
    names = (project.alias_of(name),) if name else project.names(folders)
    framework, _ = project.framework
    chosen = []
    of_others = []
    for origin in map(project.unadapted, names):
        if origin.framework in {*frameworks} - {framework}:
            of_others.append(origin)
        elif required or (origin.framework == framework and not origin.opt_in):
            chosen.append(origin)
    if not (chosen or name):
        chosen = of_others
    return [_entry(project, origin, folders, required=required) for origin in chosen]


def _entry(
    project: variants.ProjectProfiles, origin: Profile, folders: Sequence[Path], *, required: bool
) -> Entry:
    lock = None
    try:
        variant: Profile | InvalidError = project.of(origin)
    except InvalidError as error:
        variant = error
    try:
        lock = lock_of(origin, folders)
    except InvalidError as error:
        variant = error
        required = True
    path = project.lock_path(origin.name)
    decision = None
    decided = None
    if origin.builds and not isinstance(variant, InvalidError):
        decision = project.decision(origin)
        decided = profile_lock.Decided(
            release=decision.chosen.release,
            python=decision.python,
            limits=project.limits.stated,
            as_of=variant.resolution.as_of,
            packages=decision.packages,
            why=decision.why,
            files=project.read_files(),
            left_out=tuple(compare.left_out(variant, project.contents.places)),
        )
    return Entry(
        environment=project.environment,
        name=origin.name,
        profile=variant,
        origin=(origin, lock) if lock else None,
        places=project.contents.places,
        notes=project.contents.notes,
        earlier=path if path.is_file() else None,
        path=path,
        required=required,
        limits=project.limits.constraints,
        pythons=project.limits.pythons,
        decision=decision,
        decided=decided,
    )


def lock_of(profile: Profile, folders: Sequence[Path]) -> Lock | None:
    """Return a profile's lock, or None if the profile has no lock.

    If the user's lock is damaged or stale, return the shipped lock instead, provided that it
    matches the profile. Raise `InvalidError` if the user's lock is damaged and no shipped lock
    matches.
    """
    path = profile_lock.path_for(profile.name, folders)
    try:
        lock = profile_lock.load(path) if path else None
    except InvalidError as error:
        if shipped := library.matching_shipped(profile, folders):
            return shipped[1]
        raise InvalidError(
            error.message, "Restore or remove the file: the project's locks do not need it."
        ) from error
    if lock is None or lock.inputs == profile_lock.inputs_digest(profile):
        return lock
    shipped = library.matching_shipped(profile, folders)
    return shipped[1] if shipped else lock


def reasons(chosen: Iterable[Entry]) -> dict[str, str]:
    """Return a dictionary that maps each lock's label to the reason for its framework release.

    The dictionary is empty if all locks have the same release.
    """
    result = {}
    releases = set[str]()
    for entry in chosen:
        if entry.release:
            releases.add(re.split(r"[ +]", entry.release[0])[0])
            only = "it works with this release only"
            result[entry.label] = entry.decision.why if entry.decision else only
    return result if len(releases) > 1 else {}


def failed(locks: Iterable[tuple[bool, bool]]) -> bool:
    """Return whether locking failed as a whole.

    Each item of `locks` says whether the user named the lock's profile, and whether the lock is
    usable. Locking failed if the lock of a named profile is unusable, or if there are locks and all
    of them are unusable.
    """
    every = tuple(locks)
    unusable = [is_required for is_required, is_usable in every if not is_usable]
    return any(unusable) or len(unusable) == len(every) > 0


def read_earlier(path: Path | None, load: Callable[[Path], _Lock]) -> tuple[_Lock | None, str]:
    """Read the existing lock at `path`, and return the lock and an empty string.

    If the lock cannot be read, return None and the reason. If there is no lock, return None and an
    empty string. An unreadable lock is not an error, because a new lock will replace it.
    """
    if path is None:
        return None, ""
    try:
        return load(path), ""
    except InvalidError as error:
        return None, error.message


_FILE = re.compile(r"([^.]+)\.([^.]+)(\.conda)?\.json")


class UnusedLock(Struct, frozen=True, kw_only=True):
    """A lock file that no environment of the project uses."""

    path: Path
    why: str
    excluded: bool
    """Whether the project file excludes the lock. If it does not, the lock's profile does not exist
    on this machine. It may be a user's own profile on another machine."""


def unused_locks(settings: Settings) -> Iterator[UnusedLock]:
    """Yield the lock files in the project's folder that no environment uses."""
    if settings.project is None or settings.definition is None:
        return
    available = environments.names(settings.definition)
    supported = settings.definition.profiles
    profiles = profile_files.names(profile_files.search_path(settings.project, settings.config_dir))
    folder = settings.project / LOCKS
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _FILE.fullmatch(path.name)
        if match is None:
            continue
        environment = match[1]
        profile = match[2]
        if environment not in available:
            reason = f"{PROJECT_FILE} has no environment '{environment}'"
            excluded = True
        elif supported is not None and profile not in supported:
            reason = f"profiles: in {PROJECT_FILE} does not list '{profile}'"
            excluded = True
        elif profile not in profiles:
            reason = f"there is no profile '{profile}' on this machine"
            excluded = False
        else:
            continue
        if types.is_name(environment) and _is_lock(path, profile):
            yield UnusedLock(path=path, why=reason, excluded=excluded)


def _is_lock(path: Path, profile: str) -> bool:
    """Return whether a file is a lock for this profile, judging by its top-level keys."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        data = decoding.strict_json(files.read(path, decoding.LARGEST))
    except (OSError, ValueError):
        return False
    keys = {"schema", "profile", "inputs", "targets"}
    return isinstance(data, dict) and keys <= data.keys() and data["profile"] == profile


# Conda locks: of profiles, and of environments that need conda packages


class CondaEntry(Struct, frozen=True, kw_only=True):
    """A conda lock to be created."""

    label: str
    profile: Profile
    origin: Profile | None
    """The original profile, if `profile` is a project's variant of it; otherwise None."""
    earlier: Path | None
    """The path of the existing lock, or None if there is none."""
    path: Path
    required: bool
    """Whether the user named the profile."""


def conda_of_profiles(library: Library, name: str | None, folder: Path) -> Iterator[CondaEntry]:
    """Yield the conda locks to create in `folder`.

    If `name` is given, yield only the lock for that profile. Otherwise, yield the locks for all
    profiles that support the conda backend. Raise `InvalidError` if a profile cannot be read.
    """
    for profile_name in (name,) if name else profile_files.names(library.folders):
        profile = profile_files.load(profile_name, library.folders)
        if name or "conda" in profile.backends:
            yield CondaEntry(
                label=profile_name,
                profile=profile,
                origin=None,
                earlier=conda_lock.path_for(profile_name, library),
                path=conda_lock.beside(folder / f"{profile_name}.json"),
                required=True,
            )


def conda_of_project(
    settings: Settings, name: str | None, folder: Path | None, *, requested: bool
) -> Iterator[CondaEntry]:
    """Yield the conda locks that a project needs.

    With `requested`, also yield optional conda locks. Raise `InvalidError` if the project cannot be
    read, or if `requested` is set and a required profile is unusable.
    """
    folders = profile_files.search_path(settings.project, settings.config_dir)
    for entry in of_project(settings, name):
        variant = entry.profile
        path = conda_lock.beside(entry.path)
        if isinstance(variant, InvalidError):
            if requested and entry.required:
                raise variant
            continue
        if is_conda_needed(variant, entry.path) or (
            requested and (name or "conda" in variant.backends)
        ):
            yield CondaEntry(
                label=entry.label,
                profile=variant,
                origin=profile_files.load(entry.name, folders),
                earlier=path if path.is_file() else None,
                path=folder / path.name if folder else path,
                required=entry.required,
            )


def is_conda_needed(variant: Profile, path: Path) -> bool:
    """Return whether a project's lock at `path` needs or has a conda lock beside it."""
    return variant.backends == ("conda",) or conda_lock.beside(path).is_file()


def conda_problems(variant: Profile, path: Path) -> tuple[str, ...]:
    """Return the problems with the conda lock beside a project's lock at `path`.

    Return an empty tuple if there are no problems, or if no conda lock is needed.
    """
    if not is_conda_needed(variant, path):
        return ()
    beside = conda_lock.beside(path)
    if not beside.is_file():
        return ("its conda packages are not locked",)
    try:
        lock = conda_lock.load(beside)
    except InvalidError as error:
        return (error.message,)
    fresh = lock.inputs == conda_lock.inputs_digest(variant)
    return () if fresh else ("its list of conda packages changed after they were locked",)


def conda_solved(
    entry: CondaEntry,
    settings: Settings,
    channels: Channels,
    on_progress: Callable[[str], None],
    *,
    upgrade: bool,
    packages: Collection[str],
    again: bool,
) -> tuple[conda_lock.Lock | None, conda_lock.Lock]:
    """Return the existing conda lock and the new one.

    The existing lock is None if there is none or if it cannot be read. Versions that still fit are
    kept, except with `upgrade` and for the packages in `packages`. If the existing lock is up to
    date, it is also returned as the new one, and the channels are not read. With `again`, the lock
    is solved even if it is up to date. Raise the same errors as `solve.lock`.
    """
    from envbuilder.packages.conda import solve

    before, _ = read_earlier(entry.earlier, conda_lock.load)
    free = {*map(types.canonical, packages)}
    if before is not None and not (upgrade or again or before.missing):
        fresh = before.inputs == conda_lock.inputs_digest(entry.profile)
        if fresh and free.isdisjoint(_conda_names(before)):
            return before, before
    kept = None if upgrade or before is None else _conda_without(before, free)
    lock = solve.lock(entry.profile, settings, channels, kept, on_progress, origin=entry.origin)
    return before, lock


def conda_names(path: Path | None) -> frozenset[str]:
    """Return the normalized names of the packages in a conda lock.

    Return an empty set if there is no lock or if it cannot be read.
    """
    lock, _ = read_earlier(path, conda_lock.load)
    return _conda_names(lock) if lock else frozenset()


def _conda_names(lock: conda_lock.Lock) -> frozenset[str]:
    packages = itertools.chain.from_iterable(target.packages for target in lock.targets)
    return frozenset(types.canonical(package.name) for package in packages)


def _conda_without(lock: conda_lock.Lock, names: set[str]) -> conda_lock.Lock:
    """Return a copy of a lock without the named packages, so that the solver can update them."""
    targets = []
    for target in lock.targets:
        kept = (p for p in target.packages if types.canonical(p.name) not in names)
        targets.append(replace(target, packages=tuple(kept)))
    return replace(lock, targets=tuple(targets))


def conda_as_files(profile: Profile, lock: conda_lock.Lock | None) -> profile_lock.Lock | None:
    """Convert a conda lock to the form that `compare.changes` takes.

    Return None if there is no lock.
    """
    if lock is None:
        return None
    targets = []
    for target in lock.targets:
        files = tuple(package.as_file for package in target.packages)
        targets.append(
            profile_lock.Target(
                platform=target.platform, python=target.python, base=None, files=files
            )
        )
    return replace(profile_lock.nothing(profile), targets=tuple(targets))


# --- writing

AnyLock = Lock | conda_lock.Lock


def save(
    locks: Mapping[Path, AnyLock], hint: str | Hint, others: Mapping[Path, bytes] = {}
) -> None:
    """Write the locks and then the other files. Either all of them are written or none.

    Raise `InvalidError` if a new lock could not be read back, or if a file cannot be written. If a
    file cannot be written, the error has the given hint.
    """
    contents = {path: content(lock) for path, lock in locks.items()}
    for path, lock in locks.items():
        _require_readable(contents[path], path, lock)
    files.replace_all({**contents, **others}, hint)


def content(lock: AnyLock) -> bytes:
    """Serialize a lock to the bytes that its lock file contains."""
    if isinstance(lock, conda_lock.Lock):
        return conda_lock.dump(lock).encode()
    return profile_lock.dump(lock).encode()


def _require_readable(written: bytes, path: Path, lock: AnyLock) -> None:
    parse = conda_lock.parse if isinstance(lock, conda_lock.Lock) else profile_lock.parse
    try:
        parse(written, path)
    except InvalidError as error:
        raise InvalidError(
            f"{error.message}: the new lock would be unreadable, so nothing was written",
            "This is a bug in envbuilder: please report it with the line above.",
        ) from error
