"""Read TOML, and pyproject.toml: dependencies, extras (PEP 621), dependency groups (PEP 735).

uv never gets the file: it would run the build backend of one with dynamic metadata.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.decoding import decode
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped
from envbuilder.profiles import frameworks
from envbuilder.project.lines import MOST, SHOWN, Line, Listed, line, parse, read_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from packaging.requirements import Requirement

_MOST_PARTS = 12
"""Maximum number of parts of a dotted key: tomllib takes time quadratic in it."""
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*+(?:{_PART}\.[ \t]*+){{{_MOST_PARTS}}}", re.MULTILINE)
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)\Z")


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Return the data of a TOML document; raise `InvalidError` with the line of a mistake."""
    import tomllib

    if key := _LONG_KEY.search(text):
        number = text.count("\n", 0, key.end()) + 1
        raise InvalidError(f"{escaped(file)}:{number}: a key of more than {_MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise InvalidError(f"{escaped(file)}: not valid TOML: nested too deeply") from error
    except ValueError as error:
        place = _TOML_PLACE.search(str(error))
        line = f":{place[1]}" if place and place[1] else ""
        problem = escaped(_TOML_PLACE.sub("", str(error)), 200)
        raise InvalidError(f"{escaped(file)}{line}: not valid TOML: {problem}") from error


def _refuse_unlisted(kind: str, name: str, available: Iterable[str], file: str) -> NoReturn:
    """Raise `InvalidError` for an extra or group that a file does not have."""
    possible = ", ".join(escaped(each, 60) for each in sorted(available)[:20])
    raise InvalidError(
        f"{escaped(file)}: no {kind} {escaped(name, 60)}",
        f"It has: {possible}." if possible else f"It has no {kind}s at all.",
    )


def chosen_names(kind: str, names: Iterable[str], available: Iterable[str], file: str) -> set[str]:
    """Return the normalised names of extras or groups; all must be available."""
    chosen, possible = set(map(types.canonical, names)), set(map(types.canonical, available))
    for name in sorted(chosen - possible):
        _refuse_unlisted(kind, name, possible, file)
    return chosen


def python_versions(specifier: str, file: str) -> tuple[Line, ...]:
    """Return a `requires-python`, if there is one; raise `InvalidError` if it is invalid."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return (Line(str(SpecifierSet(specifier)), escaped(file)),) if specifier else ()
    except InvalidSpecifier as error:
        raise InvalidError(
            f"{escaped(file)}: requires-python: {escaped(specifier, SHOWN)!r} is not a range of"
            " versions",
            "Write it like this: >=3.10",
        ) from error


def refuse_source(name: str, kind: str, where: str, key: str) -> NoReturn:
    """Raise `InvalidError` for a package that comes from no index; `key` names its source."""
    shown = f"{where}: {escaped(name, 60)}: {key} states"
    if kind == "index":
        raise InvalidError(
            f"{shown} an index for it, which is not the project's to say",
            "Delete that entry of tool.uv.sources, and set the index up for pip or uv on each"
            " machine.",
        )
    raise InvalidError(
        f"{shown} another source for it ({escaped(kind, 40)}); only packages from an index can be"
        " locked",
        "Name a released version; for code in the project, list what that requires.",
    )


def is_itself(parsed: Requirement, project: str, where: str) -> bool:
    """Return whether a requirement names the project itself, for extras of its own."""
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

_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_DIRECT = ("git", "url", "path", "workspace")
"""Keys of `tool.uv.sources` for packages that come from no index."""


class _Include(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    include_group: str


class _Project(Struct, frozen=True, rename="kebab", kw_only=True):
    name: str = ""
    dynamic: tuple[str, ...] = ()
    requires_python: str = ""
    dependencies: tuple[str, ...] | None = None
    optional_dependencies: dict[str, tuple[str, ...]] = {}


class _Uv(Struct, frozen=True):
    sources: dict[str, dict[str, Any] | tuple[dict[str, Any], ...]] = {}


class _Setuptools(Struct, frozen=True):
    dynamic: dict[str, Any] = {}


class _Tool(Struct, frozen=True):
    uv: _Uv = _Uv()
    poetry: dict[str, Any] = {}
    pixi: dict[str, Any] = {}
    setuptools: _Setuptools = _Setuptools()
    hatch: dict[str, Any] = {}


class Pyproject(Struct, frozen=True, rename="kebab", kw_only=True):
    """The tables of a pyproject.toml that are read."""

    project: _Project | None = None
    dependency_groups: dict[str, tuple[str | _Include, ...]] = {}
    tool: _Tool = _Tool()

    def leaves_open(self, extras: Collection[str]) -> bool:
        """Return whether another file states what it requires."""
        if "dependencies" in self.tool.poetry:
            return False
        if self.project is None:
            return not self.dependency_groups
        dynamic = self.project.dynamic
        static = {*map(types.canonical, self.project.optional_dependencies)}
        return "dependencies" in dynamic or (
            "optional-dependencies" in dynamic and not {*map(types.canonical, extras)} <= static
        )


def pyproject(text: str, file: str) -> Pyproject:
    """Return what a pyproject.toml states. Raises `InvalidError`."""
    return decode(parse_toml(text, file), Pyproject, escaped(file))


def read_pyproject(
    project: Path,
    file: str,
    extras: Sequence[str],
    groups: Sequence[str],
    *,
    is_open: bool = False,
) -> Listed:
    """Return what a project requires with some extras and groups. Raises `InvalidError`.

    `is_open`: whether other files state the rest.
    """
    text = read_text(project, file)
    tables = pyproject(text, file)
    if not is_open:
        _require_static(tables, file, extras, groups)
    lines = tuple(islice(_required(tables, file, text, extras, groups), MOST + 1))
    if len(lines) > MOST:
        raise InvalidError(f"{escaped(file)}: more than {MOST} requirements")
    return Listed(
        requirements=lines,
        pythons=python_versions(tables.project.requires_python if tables.project else "", file),
    )


def _require_static(
    tables: Pyproject, file: str, extras: Sequence[str], groups: Sequence[str]
) -> None:
    """Raise `InvalidError` if the file does not state its requirements itself."""
    name = escaped(file)
    if tables.project is None:
        if "dependencies" in tables.tool.poetry:
            raise InvalidError(
                f"{name}: tool.poetry.dependencies: Poetry's own form, which no other tool reads",
                "Move them to [project] dependencies (PEP 621), which Poetry 2 reads, too.",
            )
        if not groups or extras:
            raise InvalidError(
                f"{name}: no table [project], so no dependencies",
                "List them under [project] dependencies, or name dependency groups of the file.",
            )
        return
    dynamic = {"dependencies"} | ({"optional-dependencies"} if extras else set())
    for key in sorted(dynamic.intersection(tables.project.dynamic)):
        raise InvalidError(
            f"{name}: project.dynamic: a build computes {key}, so the file does not state them",
            f"Write them under [project] {key}, or list the file that they are read from, such as"
            " requirements.txt, instead of this one.",
        )


def _required(
    tables: Pyproject, file: str, text: str, extras: Iterable[str], groups: Iterable[str]
) -> Iterator[Line]:
    """Yield the requirements of a project; each extra and group counts once."""
    project = tables.project or _Project()
    name, places = types.canonical(project.name), _lines_of(text)
    lists: dict[tuple[str, str], tuple[str, Sequence[str | _Include]]] = {
        ("", ""): ("project.dependencies", project.dependencies or ())
    }
    for key, extra in project.optional_dependencies.items():
        lists["extra", types.canonical(key)] = f"project.optional-dependencies.{key}", extra
    for key, group in tables.dependency_groups.items():
        lists["group", types.canonical(key)] = f"dependency-groups.{key}", group
    sources = {types.canonical(key): source for key, source in tables.tool.uv.sources.items()}
    todo = [("", ""), *(("extra", extra) for extra in extras), *(("group", g) for g in groups)]
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
            parsed = parse(item, where)
            if is_itself(parsed, name, where):
                todo += [("extra", extra) for extra in sorted(parsed.extras)]
                continue
            required = line(parsed, where)
            _require_index(required.name, sources.get(required.name, ()), where)
            yield required


def _lines_of(text: str) -> dict[str, str]:
    """Return the quoted texts that occur once → their line, as `:3`."""
    lines: dict[str, list[int]] = {}
    for number, content in enumerate(text.split("\n"), 1):
        for double, single in _QUOTED.findall(content):
            lines.setdefault(double or single, []).append(number)
    return {quoted: f":{numbers[0]}" for quoted, numbers in lines.items() if len(numbers) == 1}


def _require_index(
    name: str, sources: dict[str, Any] | tuple[dict[str, Any], ...], where: str
) -> None:
    """Raise `InvalidError` if `tool.uv.sources` names another place for a package."""
    for source in (sources,) if isinstance(sources, dict) else sources:
        kind = next((kind for kind in (*_DIRECT, "index") if source.get(kind)), "")
        if kind and not frameworks.of_build(name):
            refuse_source(name, kind, where, "tool.uv.sources")
