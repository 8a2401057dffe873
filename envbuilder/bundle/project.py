"""The environment of a project in a bundle: its files and locks, compared with those of a clone.

They are below `project/` under their paths in the project. `unbundle` uses them to check the rest
of the bundle, and never writes them anywhere: a project's files come with the project.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.bundle import contents
from envbuilder.bundle.format import LARGEST_TEXT
from envbuilder.core import settings
from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import place, read_text
from envbuilder.core.settings import LOCKS, PROJECT_FILE
from envbuilder.core.text import is_public
from envbuilder.packages.conda import lock as conda_lock
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import profile as profiles
from envbuilder.project.catalog import ProjectProfiles
from envbuilder.project.requirement_files import text_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from envbuilder.bundle.contents import Part, Selection
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.library import Library

FOLDER = "project"
"""Folder of a bundle."""


class Difference(Struct, frozen=True, kw_only=True):
    """A lock of a project that is not the one in a bundle."""

    path: str
    """In the project."""
    state: str
    """`missing` or `different`."""


def texts(
    selections: Iterable[Selection], library: Library, variants: ProjectProfiles, folder: Path
) -> tuple[Part, ...]:
    """Return parts for the profiles, the project's files that are read, and all their locks.

    Raises `InvalidError` if the project's file holds credentials.
    """
    _require_public(folder / PROJECT_FILE)
    parts: list[Part] = []
    for selection in selections:
        name = selection.profile.name
        parts += contents.of_profile(name, library.folders)
        parts += contents.of_locks(_locks_of_profile(name, library), library.folders)
        locks = [variants.lock_path(name)]
        locks += [conda_lock.beside(variants.lock_path(name))] if selection.conda else []
        below = f"{FOLDER}/{LOCKS}"
        parts += contents.of_locks(locks, library.folders, below, "project")
    for file in (PROJECT_FILE, *variants.contents.read_from):
        content = text_file.read_bytes(folder, file, LARGEST_TEXT)
        parts.append(contents.of_bytes(f"{FOLDER}/{file}", content, "project", "project's file"))
    return tuple({part.member.path: part for part in parts}.values())


def _locks_of_profile(name: str, library: Library) -> Iterator[Path]:
    """Yield the fresh lock of the profile itself, to which `check` compares that of the project."""
    with contextlib.suppress(InvalidError):
        profile_lock.usable(profiles.load(name, library.folders), library.folders)
        path = profile_lock.path_for(name, library.folders)
        assert path is not None, "it is usable"
        yield path


def _require_public(path: Path) -> None:
    """Raise `InvalidError` if a project's file has a URL that should not be passed on."""
    text = read_text(path)
    configuration, _ = settings.decoded(text, path)
    for name, url in configuration.indexes.items():
        if not is_public(url):
            raise InvalidError(
                f"{place(PROJECT_FILE, text, ['indexes', name])}: indexes.{name}: the URL holds"
                " credentials, and a bundle would pass them on",
                "Move it to config.yaml in your configuration folder, or to your ~/.netrc.",
            )


def unpacked(folder: Path, environment: str) -> ProjectProfiles:
    """Return the profiles of a bundled project whose files are in a folder. Raises `InvalidError`.

    What its file configures has no effect.
    """
    path = folder / PROJECT_FILE
    _, definition = settings.decoded(read_text(path), path)
    if definition is None:
        raise InvalidError(f"{path}: lists no requirements")
    return ProjectProfiles(definition, environment, folder)


def members(variants: ProjectProfiles) -> frozenset[str]:
    """Return the paths in a bundle that a project's files have, without locks."""
    return frozenset(f"{FOLDER}/{file}" for file in (PROJECT_FILE, *variants.contents.read_from))


def differences(texts: Mapping[str, bytes], settings: Settings) -> tuple[Difference, ...]:
    """Return the bundle's locks that the project of the working folder lacks, or has otherwise.

    Builds use the project's. Empty outside of a project.
    """
    if settings.project is None or settings.definition is None:
        return ()
    result = []
    for path, content in texts.items():
        relative = path.removeprefix(f"{FOLDER}/")
        if path.startswith(f"{FOLDER}/{LOCKS}/") and path.endswith(".json"):
            try:
                present = text_file.read_bytes(settings.project, relative, LARGEST_TEXT)
            except InvalidError:
                result.append(Difference(path=relative, state="missing"))
                continue
            if present != content:
                result.append(Difference(path=relative, state="different"))
    return tuple(result)
