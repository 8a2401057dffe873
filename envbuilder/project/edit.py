"""Change the list of packages in `envbuilder.yaml`."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from envbuilder.core import settings, types, yaml_files
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import DEFAULT, Definition, Environment
from envbuilder.core.settings import PROJECT_FILE
from envbuilder.core.text import shown
from envbuilder.profiles import frameworks
from envbuilder.profiles.requirements import distribution
from envbuilder.project import environments
from envbuilder.project.lines import parse

_BY_HAND = "Edit the file by hand, then: envbuilder lock"


class Change(Struct, frozen=True, kw_only=True):
    """A project's file with other requirements."""

    before: str
    """The text that it was made from."""
    text: str
    definition: Definition
    lines: tuple[str, ...]
    """What changed, for users; empty if nothing did."""


class _File:
    """A project's file while it is changed, one requirement after the other."""

    def __init__(self, text: str, path: Path, environment: str) -> None:
        self._before, self._text, self.environment = text, text, environment
        self._path = path
        self._changes: list[str] = []
        environments.merged(self.definition, environment)  # raises if there is none

    @property
    def definition(self) -> Definition:
        return settings.decoded(self._text, self._path)[1] or Definition()

    @property
    def listed(self) -> tuple[str, ...]:
        return _part(self.definition, self.environment).requirements

    @property
    def where(self) -> str:
        """The list that is changed, for messages."""
        below = "" if self.environment == DEFAULT else f": environment '{self.environment}'"
        return f"{PROJECT_FILE}{below}"

    def places(self, name: str) -> list[int]:
        return [number for number, text in enumerate(self.listed) if _name(text) == name]

    def change(self, change: str, value: str | None, place: int | None = None) -> None:
        """Change the list, and read the result as strictly as any file; `change` says what changed.

        `value` comes at a place of the list, last without one; None removes what is there.
        """
        above = () if self.environment == DEFAULT else ("environments", self.environment)
        try:
            self._text = yaml_files.edit_list(self._text, (*above, "requirements"), value, place)
        except yaml_files.EditError as error:
            raise InvalidError(f"{self._path}: {error}", _BY_HAND) from error
        self._changes.append(change)

    def done(self) -> Change:
        changes, definition = tuple(self._changes), self.definition
        return Change(before=self._before, text=self._text, definition=definition, lines=changes)


def added(text: str, path: Path, environment: str, lines: Iterable[str]) -> Change:
    """Return a project's file with more requirements; one for a listed package replaces its line.

    Raise `InvalidError` for what a lock cannot hold, and for a framework; its companions can be
    listed, since not every project needs them.
    """
    file = _File(text, path, environment)
    for line in lines:
        name = _checked(line, file.definition)
        places = file.places(name)
        if len(places) > 1:
            raise InvalidError(f"{file.where}: {name} is listed {len(places)} times", _BY_HAND)
        if not places:
            file.change(f"added {line}", line)
        elif (before := file.listed[places[0]]) != line:
            file.change(f"{before} → {line}", line, places[0])
    return file.done()


def removed(
    text: str, path: Path, environment: str, names: Iterable[str], *, project: Path
) -> Change:
    """Return a project's file without some packages.

    Raise `InvalidError` for one that is not listed there, with the place where it is, if any.
    """
    file = _File(text, path, environment)
    for name in dict.fromkeys(map(types.canonical, names)):
        places = file.places(name)
        if not places:
            _refuse_missing(file, name, project)
        for place in reversed(places):
            file.change(f"removed {file.listed[place]}", None, place)
    return file.done()


def _checked(text: str, definition: Definition) -> str:
    """Return the package that a requirement names. Raises `InvalidError` as a lock of it would."""
    name = types.canonical(parse(text, "envbuilder add").name)
    if framework := frameworks.of_name(name):
        hint = f"Write framework: {framework} into {PROJECT_FILE}: then it is in every environment."
        if framework == (definition.framework or frameworks.DEFAULT):
            hint = "Leave it out: it is in every environment. See: envbuilder profiles"
        raise InvalidError(f"envbuilder add: {shown(text)}: {_from_profile(name)}", hint)
    return name


def _from_profile(name: str) -> str:
    return f"{name} comes from the profile of the hardware: each has its own build"


def _refuse_missing(file: _File, name: str, project: Path) -> NoReturn:
    """Raise `InvalidError` for a package to remove that the list does not have."""
    if frameworks.of_name(name) == (file.definition.framework or frameworks.DEFAULT):
        raise InvalidError(
            f"envbuilder remove: {_from_profile(name)}", "It is in every environment."
        )
    for other in environments.names(file.definition):
        if name in map(_name, _part(file.definition, other).requirements):
            option = "" if other == DEFAULT else f" --environment {other}"
            raise InvalidError(
                f"{file.where} does not list {name}, but environment '{other}' does",
                f"Run: envbuilder remove {name}{option}",
            )
    environment = environments.merged(file.definition, file.environment)
    for source in map(environments.named_file, environment.requirements_from):
        read = environments.read(project, source.file, source.extras, source.groups)
        for line in read.requirements:
            if line.name == name:
                raise InvalidError(
                    f"{name} is listed in {line.where}, not in {PROJECT_FILE}",
                    "Remove it there, then: envbuilder lock",
                )
    listed = [*filter(None, map(_name, file.listed))]
    hint = f"It lists: {', '.join(listed)}." if listed else "It lists no packages."
    if close := get_close_matches(name, listed, n=1):
        hint = f"Did you mean '{close[0]}'?"
    raise InvalidError(f"{file.where} does not list {shown(name)}", hint)


def _part(definition: Definition, environment: str) -> Environment:
    """Return what the file says of an environment itself, without what it has from above."""
    return definition if environment == DEFAULT else definition.environments[environment]


def _name(text: str) -> str:
    """Return the package that a line of the file requires; empty if it is no requirement."""
    try:
        parse(text, "")
    except InvalidError:
        return ""
    return distribution(text)
