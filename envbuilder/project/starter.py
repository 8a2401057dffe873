"""A first `envbuilder.yaml` for a folder, from the files in it that list requirements."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import Extra, ProjectPath, RequirementFile
from envbuilder.project.requirement_files import text_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_MOST_MENTIONED = 5
"""Other files, and extras or groups, that the comments name."""
_MOST_LOOKED_AT = 1000
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

    stated: RequirementFile
    """The file as it is written down, without what is optional."""
    optional: RequirementFile | None = None
    """The same with all its extras and groups; None if it has none."""


def sources(folder: Path) -> tuple[Source, ...]:
    """Return the files to take requirements from, the best one first; one is enough.

    A file that cannot be read is among them: reading its requirements says why.
    """
    names = [name for name in (*_LOCKS, _PYPROJECT, *_LISTS) if (folder / name).is_file()]
    project = _Pyproject(folder) if _PYPROJECT in names else None
    return tuple(
        _source(name, project if name in {"uv.lock", _PYPROJECT} else None)
        for name in names
        if name != _PYPROJECT or (project and project.lists_something)
    )


def others(folder: Path, chosen: Source | None) -> tuple[str, ...]:
    """Return more files that could be listed, for comments."""
    is_lock = chosen is not None and chosen.stated.file in _LOCKS
    listed = [source.stated.file for source in sources(folder)]
    listed = [name for name in listed if not (is_lock and name == _PYPROJECT)]
    for pattern in _MORE:
        paths = sorted(islice(folder.glob(pattern), _MOST_LOOKED_AT))
        listed += [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    unused = dict.fromkeys(n for n in listed if chosen is None or n != chosen.stated.file)
    return tuple(_valid(unused, ProjectPath))


def text(chosen: Source | None, others: Sequence[str]) -> str:
    """Return the text of an `envbuilder.yaml` that lists a file, with the others in comments."""
    more = others[:_MOST_MENTIONED]
    if chosen is None:
        files = f"# requirements_from: [{', '.join(more or ['requirements.txt'])}]\n"
        return _HEAD + _NO_LIST + files + _TAIL
    lines = [f"  - {_entry(chosen.stated)}"]
    if chosen.optional:
        lines.append(f"  # - {_entry(chosen.optional)}")
    lines += [f"  # - {name}" for name in more]
    return _HEAD + _LIST + "\n".join(lines) + "\n" + _TAIL


class _Pyproject:
    """What a pyproject.toml says of its lists; nothing if it cannot be read."""

    def __init__(self, folder: Path) -> None:
        try:
            content = text_file.read_text(folder, _PYPROJECT)
            data = text_file.parse_toml(content, _PYPROJECT)
        except InvalidError:
            data = None
        project = _mapping(_mapping(data).get("project"))
        poetry = _mapping(_mapping(_mapping(data).get("tool")).get("poetry"))
        self.extras = _names(_mapping(project.get("optional-dependencies")))
        self.groups = _names(_mapping(_mapping(data).get("dependency-groups")))
        self.has_project = bool(project)
        lists = data is None or "dependencies" in project or "dependencies" in poetry
        self.lists_something = lists or bool(self.extras or self.groups)


def _source(name: str, project: _Pyproject | None) -> Source:
    if project is None:
        return Source(stated=RequirementFile(file=name))
    optional = RequirementFile(file=name, extras=project.extras, groups=project.groups)
    if name == _PYPROJECT and project.groups and not project.has_project:
        # Without a table [project] there is nothing but groups.
        return Source(stated=optional)
    has_more = bool(project.extras or project.groups)
    return Source(stated=RequirementFile(file=name), optional=optional if has_more else None)


def _entry(file: RequirementFile) -> str:
    """Return a file as it is written in `requirements_from:`."""
    parts = [f"file: {file.file}"]
    parts += [f"extras: [{', '.join(file.extras)}]"] if file.extras else []
    parts += [f"groups: [{', '.join(file.groups)}]"] if file.groups else []
    return f"{{{', '.join(parts)}}}" if parts[1:] else file.file


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _names(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(islice(_valid(values, Extra), _MOST_MENTIONED))


def _valid(values: Iterable[str], kind: Any) -> Iterator[str]:
    for value in values:
        try:
            yield decoding.convert(value, kind)
        except msgspec.ValidationError:
            continue
