"""The locks of a project: one for each of its environments on each profile that it supports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core.errors import InvalidError
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import profile as profile_files
from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Profile
from envbuilder.project import catalog, environments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.core.settings import Settings


class Entry(Struct, frozen=True, kw_only=True):
    """An environment of a project on one profile."""

    environment: str
    origin: Profile
    """The profile itself."""
    origin_lock: Lock | None
    variant: Profile | None
    problem: InvalidError | None
    """Why there is no variant; None if there is one."""
    path: Path
    """Where its lock is, or would be."""
    required: bool
    """Whether the user named the profile."""

    @property
    def label(self) -> str:
        """ENVIRONMENT.PROFILE, as the lock's file is named."""
        return f"{self.environment}.{self.origin.name}"


def of_project(settings: Settings, name: str | None = None) -> Iterator[Entry]:
    """Yield what a project has to lock, or only what concerns one profile.

    Opt-in profiles count only if the project lists them. Raise `InvalidError` outside of a project,
    for profiles or files that cannot be read, and for an environment that fits none of the profiles
    if the project lists none.
    """
    definition = settings.definition
    if definition is None:
        raise InvalidError(
            "this is no project: there is no envbuilder.yaml that lists requirements",
            "Write one: envbuilder init",
        )
    folders = profile_files.search_path(settings.project, settings.config_dir)
    for environment in environments.names(definition):
        variants = catalog.variants(replace(settings, environment=environment))
        assert variants is not None, "there is a definition"
        variants.require_readable()
        names = (name,) if name else variants.names(folders)
        required = bool(name or definition.profiles)
        combined = [_entry(variants, each, folders, required=required) for each in names]
        combined = [entry for entry in combined if required or not entry.origin.opt_in]
        problems = [entry.problem for entry in combined if entry.problem is not None]
        if len(problems) == len(combined) and not required:
            raise InvalidError(
                f"{problems[0].message}; nor does any other profile fit", problems[0].hint
            )
        yield from combined


def _entry(
    variants: catalog.ProjectProfiles, name: str, folders: Sequence[Path], *, required: bool
) -> Entry:
    origin = profile_files.load(name, folders)
    variant, problem = None, None
    try:
        variant = variants.of(origin)
    except InvalidError as error:
        problem = error
    shipped = profile_lock.path_for(name, folders)
    return Entry(
        environment=variants.environment,
        origin=origin,
        origin_lock=profile_lock.load(shipped) if shipped else None,
        variant=variant,
        problem=problem,
        path=variants.lock_path(name),
        required=required,
    )
