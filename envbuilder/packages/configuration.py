"""Load the settings of a command, and reject unknown names in them."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.core import settings
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import DEFAULT
from envbuilder.packages import configured_names
from envbuilder.profiles.profile import search_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def load(
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    note: Callable[[str], object] | None = None,
    environment: str = DEFAULT,
) -> settings.Settings:
    """Return the settings from folders, files and environment variables, as `settings.read` does.

    `environment`: which of a project's environments they are for. Raise `InvalidError` for an
    unknown index, base image or registry.
    """
    environ = os.environ if environ is None else environ
    read, files = settings.read(environ, cwd, note)
    folders = search_path(read.project, read.config_dir)
    configured_names.require(files, environ, folders, partial(_channels, read))
    return replace(read, environment=environment)


def _channels(read: settings.Settings) -> set[str]:
    """Return the conda channels that a project's files name; passes over what cannot be read."""
    from envbuilder.project import environments
    from envbuilder.project.requirement_files import read as requirement_files

    channels: set[str] = set()
    if read.definition is not None and read.project is not None:
        for name in environments.names(read.definition):
            with contextlib.suppress(InvalidError):
                contents = environments.contents(
                    read.definition, name, read.project, requirement_files.read
                )
                channels.update(contents.channels)
    return channels
