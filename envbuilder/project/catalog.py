"""The profiles and locks that a command uses: the project's variants of them, if it defines any."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import DEFAULT
from envbuilder.core.schema import dotted, place, read_text
from envbuilder.core.settings import LOCKS, PROJECT_FILE
from envbuilder.core.text import shown
from envbuilder.profiles import profile as profile_files
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.library import Library, OtherFrameworkError
from envbuilder.profiles.profile import suggestion
from envbuilder.project import environments, framework
from envbuilder.project.adapt import adapt
from envbuilder.project.requirement_files import read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from envbuilder.core import types
    from envbuilder.core.project_file import Definition
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile
    from envbuilder.project.environments import Contents


class ProjectProfiles:
    """One environment of a project, on each of the profiles that the project supports."""

    def __init__(self, definition: Definition, environment: str, project: Path) -> None:
        environments.stated(definition, environment)  # raises, before anything is done, if missing
        self.environment = environment
        self._definition, self._project = definition, project

    def names(self, folders: Sequence[Path]) -> tuple[str, ...]:
        """Return the profiles that the project lists, else all."""
        listed = self._definition.profiles
        return profile_files.names(folders) if listed is None else tuple(sorted(listed))

    def of(self, profile: Profile) -> Profile:
        """Return the environment on a profile.

        Raise `InvalidError` if the profile is not listed, brings another framework than the project
        is for, or cannot be combined with a line of it.
        """
        listed = self._definition.profiles
        if listed is not None and profile.name not in listed:
            raise InvalidError(
                f"the project does not support profile '{profile.name}'",
                f"Add it to profiles: in {PROJECT_FILE}, which has {', '.join(listed)}.",
            )
        name, says_so = self.framework
        if profile.framework != name:
            because = f" ({says_so})" if says_so else ""
            raise OtherFrameworkError(
                f"profile '{profile.name}' has {FRAMEWORKS[profile.framework].title}, and the"
                f" project is for {FRAMEWORKS[name].title}{because}",
                f"Name another profile, or write framework: {profile.framework} into"
                f" {PROJECT_FILE}.",
            )
        return adapt(profile, self.contents)

    @cached_property
    def framework(self) -> tuple[types.Framework, str]:
        """The framework that the project is for, and what says so; "" if nothing does."""
        return framework.of(self._definition, self.contents.requirements)

    def lock_path(self, name: str) -> Path:
        """Return the path of the environment's lock for a profile."""
        return self._project / LOCKS / f"{self.environment}.{name}.json"

    def require_readable(self) -> None:
        """Raise `InvalidError` for what is wrong with the project's files on any hardware."""
        self.contents  # noqa: B018 (read now, and kept)

    @cached_property
    def contents(self) -> Contents:
        """What the environment requires; its files are read at most once."""
        return environments.contents(self._definition, self.environment, self._project, read.read)


def library(settings: Settings) -> Library:
    """Return the profiles of a project, a user, and envbuilder itself, in this order.

    In a project that defines environments, they are variants for the one in the settings. Raise
    `InvalidError` if there is no such environment.
    """
    folders = profile_files.search_path(settings.project, settings.config_dir)
    trusted = settings.configuration.signatures.locks
    return Library(folders, trusted, variants(settings))


def variants(settings: Settings) -> ProjectProfiles | None:
    """Return what the project makes of profiles; None outside of a project that defines any."""
    if settings.project is None or settings.definition is None:
        if settings.environment != DEFAULT:
            raise InvalidError(
                f"there is no environment '{settings.environment}'",
                f"Environments are defined in {PROJECT_FILE}; this folder has none.",
            )
        return None
    _require_known(settings.definition, settings.project, settings.config_dir)
    return ProjectProfiles(settings.definition, settings.environment, settings.project)


def _require_known(definition: Definition, project: Path, config_dir: Path) -> None:
    """Raise `InvalidError` for a listed profile that does not exist."""
    available = profile_files.names(profile_files.search_path(project, config_dir))
    for number, name in enumerate(definition.profiles or ()):
        if name not in available:
            path = ["profiles", str(number)]
            where = place(PROJECT_FILE, read_text(project / PROJECT_FILE), path)
            raise InvalidError(
                f"{where}: {dotted(path)}unknown profile {shown(name)}", suggestion(name, available)
            )
