"""Read TOML files, and the dependencies, extras and dependency groups in pyproject.toml.

Extras are defined by PEP 621, and dependency groups by PEP 735. The file is never passed to uv,
which would run the build backend if some metadata is dynamic. The module is long because each tool
has its own tables for the same facts.
"""

from __future__ import annotations

import posixpath
import re
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.decoding import decode
from envbuilder.core.errors import InvalidError, escaped
from envbuilder.profiles import frameworks
from envbuilder.profiles.requirements import distribution
from envbuilder.project.lines import (
    LONGEST,
    MOST,
    SHOWN,
    Dropped,
    Line,
    Listed,
    joined,
    location_of,
    narrowed,
    of_uv,
    parse,
    parse_lenient,
    python_versions,
    read_text,
    sourced,
    with_marker,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from packaging.requirements import Requirement

_MOST_PARTS = 12
"""Maximum number of parts in a dotted key. The time that tomllib needs is quadratic in this
number."""
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*+(?:{_PART}\.[ \t]*+){{{_MOST_PARTS}}}", re.MULTILINE)
_TOML_PLACE = r" \(at (?:line (\d+), column \d+|end of document)\)\Z"


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raise `InvalidError`, with the line of the error, if the document is invalid.
    """
    import tomllib

    if key := _LONG_KEY.search(text):
        number = text.count("\n", 0, key.end()) + 1
        raise InvalidError(f"{escaped(file)}:{number}: the key has more than {_MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise InvalidError(f"{escaped(file)}: not valid TOML: nested too deeply") from error
    except ValueError as error:
        position = re.search(_TOML_PLACE, str(error))
        line = f":{position[1]}" if position and position[1] else ""
        problem = escaped(re.sub(_TOML_PLACE, "", str(error)), 200)
        raise InvalidError(f"{escaped(file)}{line}: not valid TOML: {problem}") from error


def _refuse_unlisted(kind: str, name: str, available: Iterable[str], file: str) -> NoReturn:
    """Raise `InvalidError` for an extra or group that a file does not contain."""
    possible = ", ".join(escaped(name, 60) for name in sorted(available)[:20])
    raise InvalidError(
        f"{escaped(file)}: no {kind} {escaped(name, 60)}",
        f"It has: {possible}." if possible else f"It has no {kind}s at all.",
    )


def chosen_names(kind: str, names: Iterable[str], available: Iterable[str], file: str) -> set[str]:
    """Return the normalized names of the chosen extras or groups.

    Raise `InvalidError` if one of them is not available.
    """
    chosen = set(map(types.canonical, names))
    possible = set(map(types.canonical, available))
    if missing := chosen - possible:
        _refuse_unlisted(kind, min(missing), possible, file)
    return chosen


def is_itself(parsed: Requirement, project: str, where: str) -> bool:
    """Return whether a requirement refers to the project itself, in order to include its extras.

    Raise `InvalidError` if such a requirement has a marker.
    """
    if not project or types.canonical(parsed.name) != project:
        return False
    if parsed.marker:
        raise InvalidError(
            f"{where}: {escaped(str(parsed), SHOWN)}: a marker on the project's own extras is not"
            " supported",
            "Put the marker on the packages that the extra lists.",
        )
    return True


# pyproject.toml

_QUOTED = r"\"([^\"]*)\"|'([^']*)'"


class _Include(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    include_group: str


class _Project(Struct, frozen=True, rename="kebab", kw_only=True):
    name: str = ""
    dynamic: tuple[str, ...] = ()
    requires_python: str = ""
    dependencies: tuple[str, ...] | None = None
    optional_dependencies: dict[str, tuple[str, ...]] = {}


class _Uv(Struct, frozen=True, rename="kebab"):
    constraint_dependencies: tuple[str, ...] = ()
    override_dependencies: tuple[str, ...] = ()
    sources: dict[str, dict[str, Any] | tuple[dict[str, Any], ...]] = {}
    workspace: dict[str, Any] = {}
    default_groups: tuple[str, ...] | str = ("dev",)


class _Setuptools(Struct, frozen=True):
    dynamic: dict[str, Any] = {}


class _Tool(Struct, frozen=True):
    uv: _Uv = _Uv()
    poetry: dict[str, Any] = {}
    pixi: dict[str, Any] = {}
    setuptools: _Setuptools = _Setuptools()
    hatch: dict[str, Any] = {}


class Pyproject(Struct, frozen=True, rename="kebab", kw_only=True):
    """The tables in a pyproject.toml that envbuilder uses."""

    project: _Project | None = None
    dependency_groups: dict[str, tuple[str | _Include, ...]] = {}
    tool: _Tool = _Tool()

    @property
    def about(self) -> _Project:
        """The table [project], or an empty table if there is none."""
        return self.project or _Project()

    @property
    def is_poetry(self) -> bool:
        """Whether the requirements are in Poetry's own tables."""
        return "dependencies" in self.tool.poetry and not self.about.dependencies

    @property
    def poetry_extras(self) -> dict[str, list[str]]:
        """The packages of each extra in Poetry's tables. Empty if [project] has dependencies."""
        extras = mapping(self.tool.poetry.get("extras")) if self.is_poetry else {}
        return {types.canonical(name): texts_of(packages) for name, packages in extras.items()}

    @property
    def poetry_groups(self) -> dict[str, dict[str, Any]]:
        """The packages of each dependency group in Poetry's tables."""
        groups = {}
        for name, group in mapping(self.tool.poetry.get("group")).items():
            groups[types.canonical(name)] = mapping(mapping(group).get("dependencies"))
        if earlier := mapping(self.tool.poetry.get("dev-dependencies")):
            groups.setdefault("dev", earlier)
        return groups

    @property
    def extras(self) -> tuple[str, ...]:
        """The names of all extras in the file."""
        return (*self.about.optional_dependencies, *self.poetry_extras)

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of all groups in the file."""
        return tuple({**self.dependency_groups, **self.poetry_groups})

    @property
    def default_groups(self) -> tuple[str, ...]:
        """The groups that uv or Poetry would install by default."""
        of_uv = self.tool.uv.default_groups
        if isinstance(of_uv, str):  # "all"
            return self.groups
        optional = {"optional": True}.items()
        tables = mapping(self.tool.poetry.get("group"))
        return (
            *of_uv,
            *(n for n, group in tables.items() if not optional <= mapping(group).items()),
        )

    def leaves_open(self, extras: Collection[str]) -> bool:
        """Return whether another file contains requirements of the project or of the extras."""
        if self.is_poetry:
            return False
        if self.project is None:
            return not self.groups
        dynamic = self.project.dynamic
        static = {*map(types.canonical, self.project.optional_dependencies)}
        return "dependencies" in dynamic or (
            "optional-dependencies" in dynamic and not {*map(types.canonical, extras)} <= static
        )


def pyproject(text: str, file: str) -> Pyproject:
    """Parse the content of a pyproject.toml; raise `InvalidError` if it is invalid."""
    return decode(parse_toml(text, file), Pyproject, escaped(file))


def read_pyproject(
    tables: Pyproject,
    project: Path,
    file: str,
    text: str,
    extras: Sequence[str],
    groups: Sequence[str],
    *,
    is_open: bool = False,
) -> Listed:
    """Read a project's requirements, including those of the chosen extras and groups.

    If `is_open` is set, the file need not contain all requirements, because the caller reads the
    remaining ones from other files. Raise `InvalidError` if the file is invalid or does not contain
    the requirements.
    """
    if not is_open:
        _require_static(tables, file, extras, groups)
    chosen_names("extra", extras, tables.extras, file)
    chosen_names("group", groups, tables.groups, file)
    requirements = []
    notes = list[str]()
    for required, note in _required(tables, project, file, text, extras, groups):
        requirements.append(required)
        notes += filter(None, [note])
        if len(requirements) > MOST:
            raise InvalidError(f"{escaped(file)}: more than {MOST} requirements")
    constraints, not_taken = of_uv("constraint", tables.tool.uv.constraint_dependencies, file)
    overrides, not_passed = of_uv("override", tables.tool.uv.override_dependencies, file)
    standard = Listed(
        requirements=tuple(requirements),
        constraints=constraints,
        overrides=overrides,
        pythons=python_versions(tables.about.requires_python, file),
        notes=(*notes, *not_taken, *not_passed),
    )
    return joined([standard, _of_poetry(tables, file, text, extras, groups)])


def _require_static(
    tables: Pyproject, file: str, extras: Sequence[str], groups: Sequence[str]
) -> None:
    """Raise `InvalidError` if the requirements are not in the file itself."""
    name = escaped(file)
    if tables.is_poetry:
        return
    if tables.project is None:
        if not groups or extras:
            raise InvalidError(
                f"{name}: there is no [project] table, so there are no dependencies",
                "List the dependencies in [project], or select dependency groups in the file.",
            )
        return
    for key in ("dependencies", "optional-dependencies"):
        if key in tables.project.dynamic and (extras or key == "dependencies"):
            raise InvalidError(
                f"{name}: project.dynamic: only a build can compute {key}, so the file does not"
                " contain them",
                f"Write them under [project] {key}, or list the file that the build reads, such"
                " as requirements.txt, instead of this one.",
            )


def _required(
    tables: Pyproject,
    project_folder: Path,
    file: str,
    text: str,
    extras: Iterable[str],
    groups: Iterable[str],
) -> Iterator[tuple[Line, str]]:
    """Yield the requirements of a project and of the chosen extras and groups, each with a note.

    A note may be empty. Each extra and each group is read only once.
    """
    folder = posixpath.dirname(file)
    members = texts_of(tables.tool.uv.workspace.get("members"))
    project = tables.about
    name = types.canonical(project.name)
    places = _lines_of(text)
    lists: dict[tuple[str, str], tuple[str, Sequence[str | _Include]]] = {
        ("", ""): ("project.dependencies", project.dependencies or ())
    }
    for key, extra in project.optional_dependencies.items():
        lists["extra", types.canonical(key)] = f"project.optional-dependencies.{key}", extra
    for key, group in tables.dependency_groups.items():
        lists["group", types.canonical(key)] = f"dependency-groups.{key}", group
    sources = {types.canonical(key): source for key, source in tables.tool.uv.sources.items()}
    asked = [*product(["extra"], extras), *product(["group"], groups)]
    # Poetry's tables may have others.
    todo = [("", ""), *(each for each in asked if (each[0], types.canonical(each[1])) in lists)]
    finished = set()
    while todo:
        kind, chosen = todo.pop(0)
        chosen = types.canonical(chosen)
        if (kind, chosen) in finished:
            continue
        finished.add((kind, chosen))
        if (kind, chosen) not in lists:
            _refuse_unlisted(kind, chosen, [name for other, name in lists if other == kind], file)
        key, items = lists[kind, chosen]
        for number, item in enumerate(items):
            if isinstance(item, _Include):
                todo.append(("group", item.include_group))
                continue
            where = f"{escaped(file)}{places.get(item) or f': {escaped(key)}[{number}]'}"
            if name and distribution(item) == name and "@" not in item:
                parsed = parse(item, where)
                if is_itself(parsed, name, where):
                    todo += product(["extra"], sorted(parsed.extras))
                    continue
            required, note = parse_lenient(item, where)
            locations = sources.get(required.name, ())
            every = locations if isinstance(locations, tuple) else (locations,)
            counting = [source for source in every if source and _is_for(source, kind, chosen)]
            if counting:
                yield from _from_sources(required, counting, where, project_folder, folder, members)
            else:
                yield required, note


def _lines_of(text: str) -> dict[str, str]:
    """Return the line number of each quoted string, formatted like `:3`.

    The number is replaced with an empty string if the quoted string occurs more than once.
    """
    lines = dict[str, str]()
    for number, content in enumerate(text.split("\n"), 1):
        for double, single in re.findall(_QUOTED, content):
            quoted = double or single
            lines[quoted] = "" if quoted in lines else f":{number}"
    return lines


def _is_for(source: dict[str, Any], kind: str, name: str) -> bool:
    """Return whether an entry of `tool.uv.sources` applies to the given extra or group.

    `kind` says whether `name` is the name of an extra or of a group.
    """
    for key in ("extra", "group"):
        if key in source and (key, types.canonical(str(source[key]))) != (kind, name):
            return False
    return True


def _from_sources(
    required: Line,
    tables: Sequence[dict[str, Any]],
    where: str,
    project: Path,
    folder: str,
    members: Sequence[str],
) -> Iterator[tuple[Line, str]]:
    """Yield a requirement once for each of its sources in `tool.uv.sources`, each time with a note.

    If no source applies to all targets, the requirement is also yielded without a source. On
    targets for which none of the markers is true, the package is then taken from an index.
    """
    everywhere = False
    for table in tables:
        location = location_of(table)
        if not location and table.get("workspace"):
            path = _member(project, folder, members, required.name)
            if not path:
                yield (
                    required,
                    f"{where}: {required.name}: the workspace has no member of this name.",
                )
                return
            location = posixpath.relpath(path, folder or ".")
        if location:
            marker = str(table.get("marker") or "")
            everywhere = everywhere or not marker
            yield sourced(narrowed(required.text, marker), location, required.text, where, folder)
    if everywhere:
        return
    note = ""
    if not frameworks.of_build(required.name) and any("index" in table for table in tables):
        note = Dropped(
            f"{where}: {required.name}: its index in tool.uv.sources is left out, since each"
            " machine's settings of pip or uv say where packages come from."
        )
    yield required, note


def _member(project: Path, folder: str, members: Sequence[str], name: str) -> str:
    """Return the folder of a workspace member, or an empty string if no member has this name."""
    for pattern in members[:_MOST_MEMBERS]:
        if not re.match(r"(?!.*(\.\.|\*\*))[A-Za-z0-9_][^\x00]{0,200}\Z", pattern):
            continue
        for path in islice((project / folder).glob(pattern), _MOST_MEMBERS):
            file = f"{path.relative_to(project).as_posix()}/pyproject.toml"
            try:
                project_table = pyproject(read_text(project, file), file).project
            except InvalidError:
                continue
            if project_table and types.canonical(project_table.name) == name:
                return posixpath.dirname(file)
    return ""


# Poetry's own tables, and Pipfile, whose requirements have the same form

_OPERATOR = r"(\^|~=|~|===|==|!=|<=|>=|<|>|=|)\s*([0-9A-Za-z.*+!_-]+)\Z"
_RELEASE = r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,5}"
_MARKERS = frozenset(
    {"os_name", "sys_platform", "platform_machine", "platform_system", "python_version",
     "python_full_version", "implementation_name"}
)  # fmt: skip
"""Marker variables that can be used as keys in a Pipfile."""


def specifier(constraint: str) -> str:
    """Convert a Poetry constraint to a version specifier as defined by PEP 440.

    If the constraint has alternatives, only the last one is used.
    """
    last = re.split(r"\|\|?", constraint[:LONGEST])[-1]
    clauses = re.split(r",|(?<=[\w*])\s+(?=[\^~<>=!0-9])", last.strip())
    return ",".join(filter(None, map(_clause, clauses)))


def _clause(text: str) -> str:
    match = re.match(_OPERATOR, text.strip())
    if match is None:
        return text.strip()
    sign, version = match.groups()
    if version == "*":
        return ""
    release = re.match(_RELEASE, version)
    if sign not in {"^", "~"} or not release:
        return f"{'==' if sign in {'', '='} else sign}{version}"
    parts = [*map(int, release[0].split("."))]
    last = len(parts) - 1
    if sign == "~":  # keeps the first part
        raised = min(1, last)
    else:  # keeps all before the first part that is not zero
        raised = next((n for n, part in enumerate(parts) if part), last)
    upper = [*parts[:raised], parts[raised] + 1]
    return f">={version.removesuffix('.*')},<{'.'.join(map(str, upper))}"


def translated(
    name: str, value: Any, where: str, folder: str = "", extra: str = ""
) -> Iterator[tuple[Line, str]]:
    """Convert an entry of another tool's table to requirements, and yield each with a note.

    If `value` is a list, each of its items results in one requirement. Relative paths are relative
    to `folder`. `extra` is a marker that is added to each requirement. Raise `InvalidError` if an
    item is neither a version constraint nor a table.
    """
    for case in value if isinstance(value, list) else [value]:
        table = {"version": case} if isinstance(case, str) else case
        if not isinstance(table, dict):
            raise InvalidError(
                f"{where}: {escaped(name, 60)}: expected versions or a table",
                "Write, for example, >=1.2",
            )
        extras = ",".join(filter(None, texts_of(table.get("extras"))))
        requirement = f"{name}[{extras}]" if extras else name
        marker = " and ".join(f"({each})" for each in (*_table_markers(table), extra) if each)
        if location := location_of(table):
            text = f"{requirement} @ {location}"
            yield sourced(with_marker(requirement, marker), location, text, where, folder)
        else:
            versions = specifier(str(table.get("version", "*")))
            yield parse_lenient(with_marker(f"{requirement}{versions}", marker), where)


def _table_markers(table: dict[str, Any]) -> Iterator[str]:
    """Yield the conditions in a requirement's table, converted to markers."""
    yield str(table.get("markers") or "")
    if platform := table.get("platform"):
        yield f'sys_platform == "{platform}"'
    for key in sorted(_MARKERS.intersection(table)):
        yield f"{key} {table[key]}"
    for clause in specifier(str(table.get("python") or "")).split(","):
        if match := re.match(_OPERATOR, clause):
            version = match[2].removesuffix(".*")
            full = "python_full_version" if version.count(".") > 1 else "python_version"
            yield f'{full} {match[1]} "{version}"'


def texts_of(value: Any) -> list[str]:
    """Return the items of a list as strings, or an empty list for any other value."""
    return [*map(str, value)] if isinstance(value, list) else []


def as_list(value: Any) -> list[Any]:
    """Return a list unchanged, or any other value as the only item of a new list."""
    return value if isinstance(value, list) else [value]


def mapping(value: Any) -> dict[str, Any]:
    """Return a table unchanged, or an empty table for any other value."""
    return value if isinstance(value, dict) else {}


_KEY = re.compile(r"^[ \t]*[\"']?([A-Za-z0-9._-]+)[\"']?[ \t]*=", re.MULTILINE)


def lines_of_keys(text: str) -> dict[str, str]:
    """Return the line number at which each key in a TOML document is first set, like `:3`."""
    lines: dict[str, str] = {}
    number = 1
    end = 0
    for match in _KEY.finditer(text):
        number += text.count("\n", end, match.start(1))
        end = match.start(1)
        lines.setdefault(match[1], f":{number}")
    return lines


class RequirementTables(Struct):
    """Collector of requirements from the tables in a file."""

    file: str
    lines: dict[str, str] = {}
    """The line that requires each package, as `:3`."""
    marker: str = ""
    """Marker to add to each collected requirement."""
    requirements: list[Line] = []
    pythons: list[Line] = []
    itself: list[str] | None = None
    notes: list[str] = []

    def take(self, key: str, table: Any, only: Collection[str] | None = None) -> None:
        """Add the requirements in a table.

        Optional requirements are skipped unless their packages are in `only`.
        """
        folder = posixpath.dirname(self.file)
        for name, value in mapping(table).items():
            where = f"{escaped(self.file)}{self.lines.get(name) or f': {escaped(key, 60)}'}"
            spec = mapping(value)
            if spec.get("optional") is True and types.canonical(name) not in (only or ()):
                continue
            if name == "python":
                self.python(str(spec.get("version", value)), where)
            elif spec.get("path") in {".", "./"}:
                self.itself = [*(self.itself or ()), *texts_of(spec.get("extras"))]
                self.notes.append(
                    f"{where}: the project itself, whose requirements are used. To make it"
                    " importable everywhere, write install_project: true."
                )
            else:
                for required, note in translated(name, value, where, folder, self.marker):
                    self.requirements.append(required)
                    self.notes += filter(None, [note])
            if len(self.requirements) > MOST:
                raise InvalidError(f"{where}: more than {MOST} requirements")

    def python(self, constraint: str, where: str) -> None:
        """Add a file's limits on the Python version.

        A constraint with alternatives is ignored, with a note.
        """
        if "|" in constraint:
            self.notes.append(
                Dropped(
                    f"{where}: python {escaped(constraint, 60)}: left out, since alternatives are"
                    " not supported."
                )
            )
        else:
            self.pythons += python_versions(specifier(constraint), where)

    def listed(self) -> Listed:
        """Return the requirements that have been collected."""
        return Listed(
            requirements=tuple(self.requirements),
            pythons=tuple(self.pythons),
            itself=None if self.itself is None else tuple(self.itself),
            notes=tuple(self.notes),
        )


def _of_poetry(
    tables: Pyproject, file: str, text: str, extras: Iterable[str], groups: Iterable[str]
) -> Listed:
    """Read the requirements in Poetry's tables, including those of the chosen extras and groups.

    If the dependencies are in [project], only Poetry's groups and its limits on Python are used.
    """
    optional = set[str]()
    for extra in tables.poetry_extras.keys() & set(map(types.canonical, extras)):
        optional.update(map(types.canonical, tables.poetry_extras[extra]))
    reader = RequirementTables(file, lines_of_keys(text))
    packages = mapping(tables.tool.poetry.get("dependencies"))
    if not tables.is_poetry:
        packages = {"python": packages["python"]} if "python" in packages else {}
    reader.take("tool.poetry.dependencies", packages, optional)
    for name in sorted(tables.poetry_groups.keys() & set(map(types.canonical, groups))):
        reader.take(f"tool.poetry.group.{name}.dependencies", tables.poetry_groups[name])
    return reader.listed()


_MOST_MEMBERS = 100
"""Maximum number of patterns for workspace members, and of folders per pattern."""
