"""Write `envbuilder.yaml`: a first one for a folder, and changes of its list of packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, files, settings, types, yaml_files
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import (
    DEFAULT,
    Definition,
    Environment,
    Extra,
    ProjectPath,
    RequirementFile,
)
from envbuilder.core.settings import PROJECT_FILE
from envbuilder.core.text import shown
from envbuilder.profiles import frameworks
from envbuilder.profiles.requirements import distribution
from envbuilder.project import environments
from envbuilder.project.lines import parse, read_text
from envbuilder.project.tables import Pyproject, pyproject

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


# A first file

_MOST_MENTIONED = 5
"""Other files, and extras or groups, that the comments name."""
_MOST_ENTRIES = 1000
"""Entries of a folder that are looked at."""
_PYPROJECT = "pyproject.toml"
_LOCKS = ("uv.lock", "pylock.toml")
"""Files that keep versions, so that they come before what they were made from."""
_LISTS = ("requirements.txt", "environment.yml", "environment.yaml")
_MORE = ("requirements*.txt", "requirements/*.txt")

_HEAD = """\
# What this project needs on any hardware. The framework comes from the profile of each machine.
# To add packages: envbuilder add NAME. After other changes: envbuilder lock
"""
_LIST = """\
requirements_from:
"""
_NO_LIST = """\
requirements: []  # such as [einops, "rich>=13"]
"""
_TAIL = """\
# framework: jax  # or tensorflow; by default what the packages require, else torch
# profiles: [cpu, cuda]  # the hardware to support; without it, all
# python: "3.12"
"""


class Source(Struct, frozen=True, kw_only=True):
    """A file that lists what a project requires."""

    main: RequirementFile
    """The file as it is written down, without what is optional."""
    optional: RequirementFile | None = None
    """The same with all its extras and groups; None if it has none."""


def sources(folder: Path) -> tuple[Source, ...]:
    """Return the files to take requirements from, the best one first; one is enough.

    A file that cannot be read is among them: reading its requirements says why.
    """
    names = [name for name in (*_LOCKS, _PYPROJECT, *_LISTS) if (folder / name).is_file()]
    try:
        tables = pyproject(read_text(folder, _PYPROJECT), _PYPROJECT)
    except InvalidError:
        tables = None
    return tuple(
        _source(name, tables if name in {"uv.lock", _PYPROJECT} else None)
        for name in names
        if name != _PYPROJECT or tables is None or _lists_something(tables)
    )


def _lists_something(tables: Pyproject) -> bool:
    project = tables.project
    of_project = project and (project.dependencies is not None or project.optional_dependencies)
    return bool(of_project or tables.dependency_groups or "dependencies" in tables.tool.poetry)


def _source(name: str, tables: Pyproject | None) -> Source:
    main = RequirementFile(file=name)
    if tables is None:
        return Source(main=main)
    extras = _names(tables.project.optional_dependencies if tables.project else ())
    groups = _names(tables.dependency_groups)
    optional = RequirementFile(file=name, extras=extras, groups=groups)
    if name == _PYPROJECT and groups and not tables.project:
        # Without a table [project] there is nothing but groups.
        return Source(main=optional)
    return Source(main=main, optional=optional if extras or groups else None)


def others(folder: Path, chosen: Source | None) -> tuple[str, ...]:
    """Return more files that could be listed, for comments."""
    is_lock = chosen is not None and chosen.main.file in _LOCKS
    listed = [source.main.file for source in sources(folder)]
    listed = [name for name in listed if not (is_lock and name == _PYPROJECT)]
    for pattern in _MORE:
        paths = sorted(islice(folder.glob(pattern), _MOST_ENTRIES))
        listed += [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    unused = dict.fromkeys(n for n in listed if chosen is None or n != chosen.main.file)
    return tuple(_valid(unused, ProjectPath))


def first_text(chosen: Source | None, others: Sequence[str]) -> str:
    """Return the text of an `envbuilder.yaml` that lists a file, with the others in comments."""
    more = others[:_MOST_MENTIONED]
    if chosen is None:
        files = f"# requirements_from: [{', '.join(more or ['requirements.txt'])}]\n"
        return _HEAD + _NO_LIST + files + _TAIL
    lines = [f"  - {_entry(chosen.main)}"]
    if chosen.optional:
        lines.append(f"  # - {_entry(chosen.optional)}")
    lines += [f"  # - {name}" for name in more]
    return _HEAD + _LIST + "\n".join(lines) + "\n" + _TAIL


def _entry(file: RequirementFile) -> str:
    """Return a file as it is written in `requirements_from:`."""
    parts = [f"file: {file.file}"]
    parts += [f"extras: [{', '.join(file.extras)}]"] if file.extras else []
    parts += [f"groups: [{', '.join(file.groups)}]"] if file.groups else []
    return f"{{{', '.join(parts)}}}" if parts[1:] else file.file


def _names(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(islice(_valid(values, Extra), _MOST_MENTIONED))


def _valid(values: Iterable[str], kind: Any) -> Iterator[str]:
    for value in values:
        try:
            yield decoding.convert(value, kind)
        except msgspec.ValidationError:
            continue


# The program of a folder

_GUARD = re.compile(rb"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)
_NEVER = re.compile(r"(setup|conftest|noxfile|tasks|test_.*|.*_test)\.py")
_MOST_SCRIPTS = 200
_LARGEST_SCRIPT = 1 << 20


def program_arguments(folder: Path) -> tuple[str, ...]:
    """Return what follows `python` to run the one program in a folder; empty if it is unclear.

    A script that is meant to be run says so; if none does, any script may be it.
    """
    entries = sorted(islice(folder.iterdir(), _MOST_SCRIPTS))
    packages = [
        ("-m", path.name)
        for path in entries
        if path.name.isidentifier() and (path / "__main__.py").is_file()
    ]
    scripts = [
        path
        for path in entries
        if path.suffix == ".py" and not _NEVER.fullmatch(path.name) and path.is_file()
    ]
    meant = [path for path in scripts if _is_program(path)]
    candidates = [*packages, *((path.name,) for path in meant or (() if packages else scripts))]
    return candidates[0] if len(candidates) == 1 else ()


def _is_program(path: Path) -> bool:
    try:
        return _GUARD.search(files.read(path, _LARGEST_SCRIPT)) is not None
    except OSError:
        return False
