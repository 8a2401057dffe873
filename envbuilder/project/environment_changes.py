"""Edit the packages and `as_of` in an `envbuilder.yaml`, leaving everything else unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import types, yaml_files
from envbuilder.core.errors import Hint, InvalidError, shown
from envbuilder.core.files import read_text
from envbuilder.core.settings import DEFAULT, PROJECT_FILE, Definition, Environment, decoded
from envbuilder.profiles import frameworks
from envbuilder.profiles.requirements import distribution
from envbuilder.project.environments import merged, named_file, names
from envbuilder.project.lines import parse, parse_lenient, unquoted
from envbuilder.project.names import mistaken

if TYPE_CHECKING:
    from datetime import date

_ADD = "envbuilder add"
_BY_HAND = Hint("Edit the file yourself, then lock", ("lock",))


class Change(Struct, frozen=True, kw_only=True):
    """An edit to a project file that has not been written yet."""

    path: Path
    before: str
    """The content of the file before the edit."""
    text: str
    definition: Definition
    lines: tuple[str, ...]
    """Descriptions of the changes, to be shown to the user. Empty if nothing changes."""
    notes: tuple[str, ...] = ()
    """Notes on requirements that were changed or skipped."""


class _File:
    """A project file whose requirements are being edited one by one."""

    def __init__(self, text: str, path: Path, environment: str) -> None:
        self._before = text
        self._text = text
        self.environment = environment
        self._path = path
        self._changes: list[str] = []
        merged(self.definition, environment)  # raises if there is none

    @property
    def definition(self) -> Definition:
        return decoded(self._text, self._path)[1] or Definition()

    @property
    def listed(self) -> tuple[str, ...]:
        return _part(self.definition, self.environment).requirements

    @property
    def where(self) -> str:
        """The file and environment whose list is being edited, for use in messages."""
        below = "" if self.environment == DEFAULT else f": environment '{self.environment}'"
        return f"{PROJECT_FILE}{below}"

    def places(self, name: str) -> list[int]:
        return [number for number, text in enumerate(self.listed) if _name(text) == name]

    def change(self, change: str, value: str | None, index: int | None = None) -> None:
        """Edit the list of requirements, and record the edit.

        `value` replaces the item at `index`, or is appended if `index` is None. If `value` is None,
        the item at `index` is removed. `change` describes the edit to users. Raise `InvalidError`
        if the file cannot be edited.
        """
        above = () if self.environment == DEFAULT else ("environments", self.environment)
        try:
            self._text = yaml_files.edit_list(self._text, (*above, "requirements"), value, index)
        except yaml_files.EditError as error:
            raise InvalidError(f"{self._path}: {error}", _BY_HAND) from error
        self._changes.append(change)

    def done(self) -> Change:
        return Change(
            path=self._path,
            before=self._before,
            text=self._text,
            definition=self.definition,
            lines=tuple(self._changes),
        )


def added(
    text: str, path: Path, environment: str, lines: Iterable[str], *, exact: bool = False
) -> Change:
    """Return the change that adds requirements to a project file.

    If a package is already listed, its line is replaced. The framework is skipped, since every
    environment has it. The framework's companions can be listed, since not every project needs
    them.

    Raise `InvalidError` for a requirement that cannot be locked and, unless `exact` is set, for a
    name that is probably misspelled.
    """
    file = _File(text, path, environment)
    notes = []
    for requirement in lines:
        line, note = _written(requirement, exact=exact)
        name = distribution(line)
        notes += [*filter(None, [note, _of_profile(name, line, file.definition)])]
        if frameworks.of_name(name):
            continue
        if name == "python":
            version = re.search(r"3\.[0-9]+", line)
            raise InvalidError(
                f"{_ADD}: {shown(requirement)}: Python cannot be listed as a package",
                f'Write python: "{version[0] if version else "3.12"}" into {PROJECT_FILE}.',
            )
        places = file.places(name)
        if len(places) > 1:
            raise InvalidError(f"{file.where}: {name} is listed {len(places)} times", _BY_HAND)
        if not places:
            if not exact and (other := mistaken(name)):
                raise InvalidError(
                    f"{_ADD}: {name}: this is probably a misspelling of {other}, a popular package",
                    (
                        Hint("Run", ("add", other)),
                        Hint(f"If you really mean {name}", ("add", "--exact", name)),
                    ),
                )
            file.change(f"added {line}", line)
        elif (before := file.listed[places[0]]) != line:
            file.change(f"{before} → {line}", line, places[0])
    return replace(file.done(), notes=(*notes,))


def dated(text: str, path: Path, day: date) -> Change:
    """Return the change that sets `as_of` in a project file.

    Raise `InvalidError` if the file cannot be changed.
    """
    before = decoded(text, path)[1] or Definition()
    try:
        after = yaml_files.edit_value(text, "as_of", day.isoformat())
    except yaml_files.EditError as error:
        raise InvalidError(f"{path}: {error}", _BY_HAND) from error
    lines = () if before.as_of == day else (f"as_of: {day}",)
    definition = replace(before, as_of=day)
    return Change(path=path, before=text, text=after, definition=definition, lines=lines)


def changed_file(change: Change) -> dict[Path, bytes]:
    """Return the path of the file to write and its new content.

    Links in the path are resolved, so that a link to the file remains a link. Raise `InvalidError`
    if the file was edited after the change was prepared.
    """
    path = change.path
    if read_text(path) != change.before:
        raise InvalidError(
            f"{path} was edited while this command ran, so nothing was written",
            "Run the same command again.",
        )
    return {path.resolve(): change.text.encode()}


def _written(text: str, *, exact: bool) -> tuple[str, str]:
    """Return the text of a requirement as written to the file, and a note on any change to it.

    The note is empty if nothing was changed. Raise `InvalidError` if the requirement cannot be
    locked.
    """
    if exact or "@" in text:  # locations are refused
        parse(text, _ADD)
        return text, ""
    line, note = parse_lenient(text, _ADD)
    return (line.text, note.removeprefix(f"{_ADD}: ")) if note else (unquoted(text), "")


def _of_profile(name: str, line: str, definition: Definition) -> str:
    """Return a note if the profile determines the version of a package, else an empty string.

    The profile determines the versions of packages that belong to a framework. `line` is the
    requirement to add. Raise `InvalidError` if this requirement names a framework other than the
    project's, or sets the framework's version.
    """
    key = frameworks.of_user(name) if (row := frameworks.of_build(name)) else None
    if row is None or key is None:
        return ""
    if name not in row.names:
        return (
            f"{name}: each kind of hardware has its own build, whose release follows {row.title}'s"
        )
    if key != (definition.framework or frameworks.DEFAULT):
        raise InvalidError(
            f"{_ADD}: {shown(line)}: {_from_profile(name)}",
            f"Write framework: {key} into {PROJECT_FILE}, so that every environment contains it.",
        )
    choose = f"To choose its release, set framework_version: in {PROJECT_FILE}"
    if line == name:
        return f"{_from_profile(name)}, and every environment contains it. {choose}"
    hint = f"Remove it, since every environment contains it. {choose}"
    if version := re.search(r"[0-9]+\.[0-9]+(\.[0-9]+)?", line):
        hint = f'Write framework_version: "{version[0]}" into {PROJECT_FILE} instead.'
    raise InvalidError(f"{_ADD}: {shown(line)}: {_from_profile(name)}", hint)


def removed(
    text: str, path: Path, environment: str, names: Iterable[str], *, project: Path
) -> Change:
    """Return the change that removes packages from a project file.

    Raise `InvalidError` if the edited list lacks one of the packages. The error says where that
    package is listed instead, if it is listed at all.
    """
    file = _File(text, path, environment)
    for name in dict.fromkeys(map(types.canonical, names)):
        places = file.places(name)
        if not places:
            _refuse_missing(file, name, project)
        for number in reversed(places):
            file.change(f"removed {file.listed[number]}", None, number)
    return file.done()


def _from_profile(name: str) -> str:
    return f"{name} comes from the profile, since each kind of hardware has its own build"


def _refuse_missing(file: _File, name: str, project: Path) -> NoReturn:
    """Raise `InvalidError` for a package that is not in the edited list.

    If another place lists or provides the package, the error names that place.
    """
    if frameworks.of_name(name) == (file.definition.framework or frameworks.DEFAULT):
        raise InvalidError(
            f"envbuilder remove: {_from_profile(name)}",
            "It cannot be removed, since every environment contains it.",
        )
    for other in names(file.definition):
        if name in map(_name, _part(file.definition, other).requirements):
            option = () if other == DEFAULT else ("--environment", other)
            raise InvalidError(
                f"{file.where} does not list {name}, but environment '{other}' does",
                Hint("Run", ("remove", *option, name)),
            )
    from envbuilder.project import forms

    for source in map(named_file, merged(file.definition, file.environment).requirements_from):
        read = forms.read(project, source.file, source.extras, source.groups)
        for line in (*read.requirements, *read.conda):
            if line.name == name:
                raise InvalidError(
                    f"{name} is listed in {line.where}, not in {PROJECT_FILE}",
                    Hint("Remove it there, then lock", ("lock",)),
                )
    packages = [*filter(None, map(_name, file.listed))]
    hint = f"It lists: {', '.join(packages)}." if packages else "No file of the project lists it."
    raise InvalidError(f"{file.where} does not list {shown(name)}", hint)


def _part(definition: Definition, environment: str) -> Environment:
    """Return the settings of one environment in the file, without inherited keys."""
    return definition if environment == DEFAULT else definition.environments[environment]


def _name(text: str) -> str:
    """Return the name of the package in a requirement; empty if the text is not a requirement."""
    try:
        parse(text, "")
    except InvalidError:
        return ""
    return distribution(text)
