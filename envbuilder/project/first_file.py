"""Write a first `envbuilder.yaml` for a folder, from the files that it has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, files
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import Extra, ProjectPath, RequirementFile
from envbuilder.project.lines import read_text
from envbuilder.project.tables import Pyproject, pyproject

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
