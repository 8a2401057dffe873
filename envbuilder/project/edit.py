"""Add packages to `envbuilder.yaml` and remove them; all else in the file stays as it is."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, settings, yaml_files
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import DEFAULT, Definition, Environment, RequirementLine
from envbuilder.core.settings import PROJECT_FILE
from envbuilder.core.text import shown
from envbuilder.profiles import frameworks
from envbuilder.project import environments
from envbuilder.project.requirement_files import requirement as requirements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from packaging.requirements import Requirement

    from envbuilder.project.environments import Read

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
        self._before, self.text, self.environment = text, text, environment
        self.lines: list[str] = []
        self._path = path
        environments.stated(self.definition, environment)  # raises if there is none

    @property
    def definition(self) -> Definition:
        return settings.decoded(self.text, self._path)[1] or Definition()

    @property
    def listed(self) -> tuple[str, ...]:
        return _part(self.definition, self.environment).requirements

    @property
    def where(self) -> str:
        """The list that is changed, for messages."""
        below = "" if self.environment == DEFAULT else f": environment '{self.environment}'"
        return f"{PROJECT_FILE}{below}"

    def change(self, edit: Callable[[tuple[str, ...]], str], line: str) -> None:
        """Make a change of the list at a path, and read the result as strictly as any file."""
        above = [] if self.environment == DEFAULT else ["environments", self.environment]
        try:
            self.text = edit((*above, "requirements"))
        except yaml_files.EditError as error:
            raise InvalidError(f"{self._path}: {error}", _BY_HAND) from error
        self.lines.append(line)

    def done(self) -> Change:
        return Change(
            before=self._before,
            text=self.text,
            definition=self.definition,
            lines=tuple(self.lines),
        )


def added(text: str, path: Path, environment: str, lines: Iterable[str]) -> Change:
    """Return a project's file with more requirements; one for a listed package replaces its line.

    Raise `InvalidError` for what a lock cannot hold, and for a framework; its companions can be
    listed, since not every project needs them.
    """
    file = _File(text, path, environment)
    for line in lines:
        name = _name(_checked(line, file.definition))
        places = _places(file.listed, name)
        if len(places) > 1:
            raise InvalidError(f"{file.where}: {name} is listed {len(places)} times", _BY_HAND)
        _put(file, line, *places)
    return file.done()


def _put(file: _File, requirement: str, place: int | None = None) -> None:
    """Add a requirement, or replace the one at a place."""
    if place is None:
        file.change(
            lambda key: yaml_files.append_item(file.text, key, requirement), f"added {requirement}"
        )
    elif file.listed[place] != requirement:
        file.change(
            lambda key: yaml_files.replace_item(file.text, key, place, requirement),
            f"{file.listed[place]} → {requirement}",
        )


def _drop(file: _File, place: int) -> None:
    file.change(
        lambda key: yaml_files.remove_item(file.text, key, place), f"removed {file.listed[place]}"
    )


def removed(
    text: str, path: Path, environment: str, names: Iterable[str], *, project: Path, read: Read
) -> Change:
    """Return a project's file without some packages.

    Raise `InvalidError` for one that is not listed there, with the place where it is, if any.
    """
    from packaging.utils import canonicalize_name

    file = _File(text, path, environment)
    for name in dict.fromkeys(map(canonicalize_name, names)):
        places = _places(file.listed, name)
        if not places:
            _refuse_missing(file, name, project, read)
        for place in reversed(places):
            _drop(file, place)
    return file.done()


def _checked(text: str, definition: Definition) -> Requirement:
    """Return what a requirement states. Raises `InvalidError` as a lock of it would."""
    requirement = requirements.parse(text, "envbuilder add")
    try:
        decoding.convert(text, RequirementLine)
    except msgspec.ValidationError as error:
        raise InvalidError(
            f"envbuilder add: {shown(text)}: not a requirement",
            "Write a package and versions, such as rich>=13.",
        ) from error
    if frameworks.of_name(_name(requirement)):
        raise InvalidError(
            f"envbuilder add: {shown(text)}: {_from_profile(_name(requirement))}",
            _without_line(_name(requirement), definition),
        )
    return requirement


def _from_profile(name: str) -> str:
    return f"{name} comes from the profile of the hardware: each has its own build and version"


def _without_line(name: str, definition: Definition) -> str:
    """Return what to do instead of listing a framework."""
    framework = frameworks.of_name(name)
    if framework == (definition.framework or frameworks.DEFAULT):
        return "Leave it out: it is in every environment. See: envbuilder profiles"
    return f"Write framework: {framework} into {PROJECT_FILE}: then it is in every environment."


def _refuse_missing(file: _File, name: str, project: Path, read: Read) -> NoReturn:
    """Raise `InvalidError` for a package to remove that the list does not have."""
    if frameworks.of_name(name) == (file.definition.framework or frameworks.DEFAULT):
        raise InvalidError(
            f"envbuilder remove: {_from_profile(name)}", "It is in every environment."
        )
    for other in environments.names(file.definition):
        if other != file.environment and _places(_part(file.definition, other).requirements, name):
            option = "" if other == DEFAULT else f" --environment {other}"
            raise InvalidError(
                f"{file.where} does not list {name}, but environment '{other}' does",
                f"Run: envbuilder remove {name}{option}",
            )
    stated = environments.stated(file.definition, file.environment)
    for source in map(environments.named_file, stated.requirements_from):
        for line in read(project, source.file, source.extras, source.groups).requirements:
            if name in _names([line.text]):
                raise InvalidError(
                    f"{name} is listed in {line.where}, not in {PROJECT_FILE}",
                    "Remove it there, then: envbuilder lock",
                )
    listed = list(_names(file.listed))
    close = get_close_matches(name, listed, n=1)
    hint = f"It lists: {', '.join(listed)}." if listed else "It lists no packages."
    hint = f"Did you mean '{close[0]}'?" if close else hint
    raise InvalidError(f"{file.where} does not list {shown(name)}", hint)


def _part(definition: Definition, environment: str) -> Environment:
    """Return what the file says of an environment itself, without what it has from above."""
    return definition if environment == DEFAULT else definition.environments[environment]


def _places(listed: Sequence[str], name: str) -> list[int]:
    return [place for place, text in enumerate(listed) if name in _names([text])]


def _names(listed: Iterable[str]) -> Iterator[str]:
    """Yield the packages of some requirements; a line that is none of them is passed over."""
    for text in listed:
        try:
            yield _name(requirements.parse(text, ""))
        except InvalidError:
            continue


def _name(requirement: Requirement) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(requirement.name)
