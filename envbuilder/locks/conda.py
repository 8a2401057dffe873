"""The conda locks to make: of profiles, and of environments that need conda packages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.locks import entries
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.profile import (
    Profile,
    load as load_profile,
    names as profile_names,
    search_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from envbuilder.core.settings import Settings
    from envbuilder.packages.conda.solve import Channels
    from envbuilder.profiles.library import Library


class Entry(Struct, frozen=True, kw_only=True):
    """A conda lock to make."""

    label: str
    profile: Profile
    origin: Profile | None
    """Of a project's variant, the profile itself."""
    earlier: Path | None
    """The lock so far."""
    path: Path
    required: bool
    """Whether it was requested by name."""


def of_profiles(library: Library, name: str | None, folder: Path) -> Iterator[Entry]:
    """Yield the conda lock of a profile, or of all that have the backend, to be made in a folder.

    Raises `InvalidError`.
    """
    for each in (name,) if name else profile_names(library.folders):
        profile = load_profile(each, library.folders)
        if name or "conda" in profile.backends:
            yield Entry(
                label=each,
                profile=profile,
                origin=None,
                earlier=conda_lock.path_for(each, library),
                path=conda_lock.beside(folder / f"{each}.json"),
                required=True,
            )


def of_project(
    settings: Settings, name: str | None, folder: Path | None, *, requested: bool
) -> Iterator[Entry]:
    """Yield the conda locks of a project that are needed; if `requested`, all that are possible.

    Raises `InvalidError`.
    """
    folders = search_path(settings.project, settings.config_dir)
    for entry in entries.of_project(settings, name):
        variant, path = entry.profile, conda_lock.beside(entry.path)
        if isinstance(variant, InvalidError):
            if requested and entry.required:
                raise variant
            continue
        if is_needed(variant, entry.path) or (requested and (name or "conda" in variant.backends)):
            yield Entry(
                label=entry.label,
                profile=variant,
                origin=load_profile(entry.name, folders),
                earlier=path if path.is_file() else None,
                path=folder / path.name if folder else path,
                required=entry.required,
            )


def is_needed(variant: Profile, path: Path) -> bool:
    """Return whether a project's lock in `path` needs a conda lock beside it, or has one."""
    return variant.backends == ("conda",) or conda_lock.beside(path).is_file()


def problems(variant: Profile, path: Path) -> tuple[str, ...]:
    """Return what is wrong with the conda lock beside a project's lock; empty if nothing is."""
    if not is_needed(variant, path):
        return ()
    beside = conda_lock.beside(path)
    if not beside.is_file():
        return ("its conda packages are not locked",)
    try:
        lock = conda_lock.load(beside)
    except InvalidError as error:
        return (error.message,)
    fresh = lock.inputs == conda_lock.inputs_digest(variant)
    return () if fresh else ("its conda packages changed after they were locked",)


def solved(
    entry: Entry,
    settings: Settings,
    channels: Channels,
    on_progress: Callable[[str], None],
    *,
    upgrade: bool,
    packages: Collection[str],
    again: bool,
) -> tuple[conda_lock.Lock | None, conda_lock.Lock]:
    """Return the conda lock so far, and the new one.

    Versions are kept if they still fit, unless `upgrade`, and except for `packages`. Unless
    `again`, a lock that is fresh is returned as it is, without reading the channels. Raises as
    `solve.lock` does.
    """
    from envbuilder.packages.conda import solve

    before = conda_lock.load(entry.earlier) if entry.earlier else None
    free = {types.canonical(name) for name in packages}
    if before is not None and not (upgrade or again or before.missing):
        fresh = before.inputs == conda_lock.inputs_digest(entry.profile)
        if fresh and free.isdisjoint(_names(before)):
            return before, before
    kept = None if upgrade or before is None else _without(before, free)
    lock = solve.lock(entry.profile, settings, channels, kept, on_progress, origin=entry.origin)
    return before, lock


def names(path: Path | None) -> frozenset[str]:
    """Return the packages of the conda lock in `path`, as indexes spell them."""
    return _names(conda_lock.load(path)) if path else frozenset()


def _names(lock: conda_lock.Lock) -> frozenset[str]:
    packages = (package for target in lock.targets for package in target.packages)
    return frozenset(types.canonical(package.name) for package in packages)


def _without(lock: conda_lock.Lock, names: set[str]) -> conda_lock.Lock:
    """Return a lock without some packages, so that these may move and the others are kept."""
    targets = (
        replace(t, packages=tuple(p for p in t.packages if types.canonical(p.name) not in names))
        for t in lock.targets
    )
    return replace(lock, targets=tuple(targets))


def as_files(profile: Profile, lock: conda_lock.Lock | None) -> profile_lock.Lock | None:
    """Return a conda lock in the form that changes are shown of."""
    if lock is None:
        return None
    targets = (
        profile_lock.Target(
            platform=target.platform,
            python=target.python,
            base=None,
            files=tuple(package.as_file for package in target.packages),
        )
        for target in lock.targets
    )
    return replace(profile_lock.nothing(profile), targets=tuple(targets))
