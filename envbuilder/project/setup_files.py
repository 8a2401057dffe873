"""Read setup.cfg, and setup.py by its syntax tree: nothing of a project runs.

Of setup.py, that counts which it states literally, and the requirements files that it reads. The
user has to write down what else it computes.
"""

from __future__ import annotations

import ast
import configparser
import posixpath
import shlex
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped
from envbuilder.project.conda import read_pixi
from envbuilder.project.lines import Listed, Needed, joined, python_versions, read_text
from envbuilder.project.literals import (
    REST,
    FileReference,
    StaticReader,
    Text,
    as_list,
    text_of,
)
from envbuilder.project.requirements_txt import read_lines
from envbuilder.project.tables import (
    Pyproject,
    chosen_names,
    mapping,
    pyproject,
    read_pyproject,
)

_LARGEST = 256 << 10
"""Maximum size in bytes of a setup.py; the parser takes a hundred times as much memory."""


class _Stated(Struct):
    """What a package states; each list holds lines for pip, with their places."""

    requires: list[tuple[str, str]] | None = None
    extras: dict[str, list[tuple[str, str]]] = {}
    python: str = ""
    notes: list[str] = []


def read_setup(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Return what a setup.cfg or setup.py requires, with some extras.

    What setup.py leaves to the setup.cfg beside it is read there. Raises `InvalidError`.
    """
    chosen_names("group", groups, (), file)
    is_python = file.endswith(".py")
    stated = _of_python(project, file, extras) if is_python else _of_cfg(project, file)
    beside = posixpath.join(posixpath.dirname(file), "setup.cfg")
    other = _Stated()
    if is_python and (project / beside).is_file():
        other = _of_cfg(project, beside)
        if stated.requires is None:
            stated.requires = other.requires
        stated.extras = stated.extras or other.extras
        stated.python = stated.python or other.python
    of_extra = {types.canonical(name): lines for name, lines in stated.extras.items()}
    lines = list(stated.requires or ())
    for name in sorted(chosen_names("extra", extras, of_extra, file)):
        lines += of_extra[name]
    about = Listed(pythons=python_versions(stated.python, file), notes=tuple(stated.notes))
    return replace(joined([about, read_lines(project, file, lines)]), itself=None)


def read_project(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Return what a pyproject.toml requires, with what it leaves to other files.

    Those are requirements files that it names, else setup.py or setup.cfg. Raises `InvalidError`.
    """
    tables = pyproject(read_text(project, file), file)
    if tables.tool.pixi and not (tables.project and tables.project.dependencies is not None):
        return read_pixi(project, file, extras, groups)
    if not tables.leaves_open(extras):
        return read_pyproject(project, file, extras, groups)
    of_extras = {*map(types.canonical, tables.about.optional_dependencies)}
    static = [each for each in extras if types.canonical(each) in of_extras]
    others = [each for each in extras if each not in static]
    lines = list(_dynamic_lines(tables, file, others))
    if lines:
        open_parts = read_lines(project, file, lines)
    elif setup := _setup_beside(project, file):
        open_parts = read_setup(project, setup, others, ())
        open_parts = replace(open_parts, read_from=(*open_parts.read_from, setup))
    else:
        return read_pyproject(project, file, extras, groups)
    static_parts = read_pyproject(project, file, static, groups, is_open=True)
    return replace(joined([static_parts, open_parts]), itself=None)


def _dynamic_lines(
    tables: Pyproject, file: str, extras: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield lines that include the requirements files that a pyproject.toml names."""
    dynamic = tables.tool.setuptools.dynamic
    hooks = mapping(mapping(tables.tool.hatch.get("metadata")).get("hooks"))
    hook = mapping(hooks.get("requirements_txt"))
    sources = {
        "dependencies": mapping(dynamic.get("dependencies")).get("file"),
        "tool.hatch.metadata.hooks.requirements_txt": hook.get("files"),
    }
    of_extras = {**mapping(hook.get("optional-dependencies"))}
    for name, source in mapping(dynamic.get("optional-dependencies")).items():
        of_extras.setdefault(name, mapping(source).get("file"))
    for name, files in of_extras.items():
        if types.canonical(name) in map(types.canonical, extras):
            sources[f"optional-dependencies.{name}"] = files
    for key, files in sources.items():
        for each in as_list(files or []):
            yield f"{escaped(file)}: {escaped(key, 80)}", f"-r {shlex.quote(str(each))}"


def _setup_beside(project: Path, file: str) -> str:
    """Return the file of setuptools beside a pyproject.toml; empty if there is none."""
    for name in ("setup.py", "setup.cfg"):
        path = posixpath.join(posixpath.dirname(file), name)
        if (project / path).is_file():
            return path
    return ""


# setup.cfg


def cfg_sections(project: Path, file: str) -> dict[str, dict[str, str]]:
    """Return the sections of a setup.cfg, in whose keys an underscore stands for each hyphen."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(read_text(project, file), escaped(file))
    except configparser.Error as error:
        problem = escaped(str(error).partition("\n")[0], 200)
        raise InvalidError(f"{escaped(file)}: cannot be read: {problem}") from error
    sections = dict[str, dict[str, str]]()
    for name, section in parser.items():
        sections[name] = {key.replace("-", "_"): value for key, value in section.items()}
    return sections


def _of_cfg(project: Path, file: str) -> _Stated:
    sections = cfg_sections(project, file)
    options = sections.get("options", {})
    requires = options.get("install_requires")
    return _Stated(
        requires=None if requires is None else _cfg_lines(requires, file, "install_requires"),
        extras={
            name: _cfg_lines(value, file, f"extras_require {name}")
            for name, value in sections.get("options.extras_require", {}).items()
        },
        python=options.get("python_requires", "").strip(),
    )


def _cfg_lines(value: str, file: str, key: str) -> list[tuple[str, str]]:
    where = f"{escaped(file)}: {escaped(key, 60)}"
    if value.strip().startswith("file:"):
        files = value.strip().removeprefix("file:").replace("\n", ",").split(",")
        return [(where, f"-r {shlex.quote(each.strip())}") for each in files if each.strip()]
    items = value.splitlines() if "\n" in value.strip() else value.split(";\n")
    return [(where, item) for item in items]


# setup.py


def read_python(project: Path, file: str) -> StaticReader:
    """Read a Python file of a project. Raise `InvalidError` if that cannot be done."""
    text = read_text(project, file, _LARGEST)
    reader = StaticReader(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        reader.read_module(tree)
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise InvalidError(f"{escaped(file)}{line}: not valid Python 3") from error
    except (ValueError, MemoryError, RecursionError) as error:
        raise InvalidError(f"{escaped(file)}: cannot be parsed") from error
    return reader


def _of_python(project: Path, file: str, extras: Sequence[str]) -> _Stated:
    """Return what a setup.py states; of its extras, the requirements of the chosen ones."""
    reader = read_python(project, file)
    keywords = reader.setup
    if keywords is None:
        reader.refuse(1, "no call of setup() is found")
    rest = keywords.get(REST)
    requires = keywords.get("install_requires", rest)
    of_extras = keywords.get("extras_require", rest or {})
    if not isinstance(of_extras, dict):
        of_extras = {REST: of_extras}
    stated = _Stated(python=text_of(keywords.get("python_requires")))
    if requires is not None:
        stated.requires = _python_lines(reader, requires, "install_requires", stated.notes)
    chosen = {"", *map(types.canonical, extras)}
    computed = of_extras.pop(REST, None)
    for key, value in of_extras.items():
        # `:marker` stands for what everybody needs where the marker is true.
        name, _, marker = key.partition(":")
        lines = stated.extras.setdefault(name, [])
        if types.canonical(name) in chosen:
            what = f"extras_require {escaped(key, 60)}"
            for where, text in _python_lines(reader, value, what, stated.notes):
                lines.append((where, "; ".join(filter(None, (text, marker)))))
    if computed is not None and chosen - {"", *map(types.canonical, stated.extras)}:
        reader.refuse(getattr(computed, "line", 1), "extras_require is computed while it runs")
    if everywhere := stated.extras.pop("", None):
        stated.requires = [*(stated.requires or ()), *everywhere]
    return stated


def _python_lines(
    reader: StaticReader, value: Any, key: str, notes: list[str]
) -> list[tuple[str, str]]:
    """Return requirements as lines for pip, with their places; add notes on unknown ones."""
    if not isinstance(value, Text | FileReference | list):
        reader.refuse(getattr(value, "line", 1), f"{key} is computed while it runs")
    lines = []
    for item in as_list(value):
        where = f"{escaped(reader.file)}:{getattr(item, 'line', f' {key}')}"
        if isinstance(item, FileReference):
            lines.append((where, f"-r {shlex.quote(item.path)}"))
        elif isinstance(item, Text):
            lines += [(where, text) for text in item.text.splitlines()]
        else:
            notes.append(
                Needed(
                    f"{where}: a requirement that is computed while it runs is left out. Write it"
                    " under requirements: in envbuilder.yaml."
                )
            )
    return lines
