"""Read pyproject.toml: dependencies, extras (PEP 621) and dependency groups (PEP 735)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import decode
from envbuilder.core.text import escaped
from envbuilder.profiles.frameworks import of_build
from envbuilder.project.requirement_files import requirement, text_file
from envbuilder.project.requirement_files.listed import Line, Listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from packaging.requirements import Requirement

_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_DIRECT = ("git", "url", "path", "workspace")
"""Keys of `tool.uv.sources` for packages that come from no index."""


class _Include(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    include_group: str


class _Project(Struct, frozen=True, rename="kebab", kw_only=True):
    name: str = ""
    dynamic: tuple[str, ...] = ()
    requires_python: str = ""
    dependencies: tuple[str, ...] = ()
    optional_dependencies: dict[str, tuple[str, ...]] = {}


class _Uv(Struct, frozen=True):
    sources: dict[str, dict[str, Any] | tuple[dict[str, Any], ...]] = {}


class _Tool(Struct, frozen=True):
    uv: _Uv = _Uv()
    poetry: dict[str, Any] = {}


class _Pyproject(Struct, frozen=True, rename="kebab", kw_only=True):
    project: _Project | None = None
    dependency_groups: dict[str, tuple[str | _Include, ...]] = {}
    tool: _Tool = _Tool()


def read(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Return what a project requires with some extras and groups. Raises `InvalidError`."""
    text = text_file.read_text(project, file)
    data = decode(text_file.parse_toml(text, file), _Pyproject, escaped(file))
    _require_static(data, file, extras, groups)
    reader = _Reader(data, file, text)
    reader.take(extras, groups)
    return Listed(
        requirements=tuple(reader.lines),
        python=python_versions(data.project.requires_python if data.project else "", file),
    )


def python_versions(specifier: str, file: str) -> str:
    """Return a `requires-python` in its normalised form; raise `InvalidError` if it is invalid."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return str(SpecifierSet(specifier))
    except InvalidSpecifier as error:
        raise InvalidError(
            f"{escaped(file)}: requires-python: {escaped(specifier, requirement.SHOWN)!r} is not a"
            " range of versions",
            "Write it like this: >=3.10",
        ) from error


def normalised(names: Mapping[str, Any] | Iterable[str]) -> dict[str, str]:
    """Return the names of extras or groups by their normalised form."""
    from packaging.utils import canonicalize_name

    return {canonicalize_name(name): name for name in names}


def require_listed(kind: str, name: str, names: Iterable[str], file: str) -> None:
    """Raise `InvalidError` unless a normalised name of an extra or group is among `names`."""
    available = sorted(names)
    if name not in available:
        possible = ", ".join(escaped(n, 60) for n in available[:20])
        raise InvalidError(
            f"{escaped(file)}: no {kind} {escaped(name, 60)}",
            f"It has: {possible}." if available else f"It has no {kind}s at all.",
        )


def _require_static(
    data: _Pyproject, file: str, extras: Sequence[str], groups: Sequence[str]
) -> None:
    """Raise `InvalidError` if the file does not state its requirements itself."""
    name = escaped(file)
    if data.project is None:
        if "dependencies" in data.tool.poetry:
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
    for key in sorted(dynamic.intersection(data.project.dynamic)):
        raise InvalidError(
            f"{name}: project.dynamic: a build computes {key}, so the file does not state them",
            f"Write them under [project] {key}, or list the file that they are read from, such as"
            " requirements.txt, instead of this one.",
        )


class _Reader:
    """Collects the requirements of a project; each extra and group counts once."""

    def __init__(self, data: _Pyproject, file: str, text: str) -> None:
        from packaging.utils import canonicalize_name

        self._data, self._file = data, file
        self._quoted: dict[str, list[int]] = {}
        for number, line in enumerate(text.split("\n"), 1):
            for double, single in _QUOTED.findall(line):
                self._quoted.setdefault(double or single, []).append(number)
        self._project = data.project or _Project()
        self._name = canonicalize_name(self._project.name)
        self._extras = normalised(self._project.optional_dependencies)
        self._groups = normalised(data.dependency_groups)
        self._sources: dict[str, tuple[dict[str, Any], ...]] = {
            canonicalize_name(name): source if isinstance(source, tuple) else (source,)
            for name, source in data.tool.uv.sources.items()
        }
        self._todo: list[tuple[str, str]] = []
        self.lines: list[Line] = []

    def take(self, extras: Iterable[str], groups: Iterable[str]) -> None:
        self._requirements(self._project.dependencies, "project.dependencies")
        self._todo += [("extra", extra) for extra in normalised(extras)]
        self._todo += [("group", group) for group in normalised(groups)]
        finished = set()
        while self._todo:
            kind, name = item = self._todo.pop(0)
            if item in finished:
                continue
            finished.add(item)
            if kind == "extra":
                require_listed(kind, name, self._extras, self._file)
                key = self._extras[name]
                self._requirements(
                    self._project.optional_dependencies[key], f"project.optional-dependencies.{key}"
                )
            else:
                require_listed(kind, name, self._groups, self._file)
                key = self._groups[name]
                self._requirements(self._data.dependency_groups[key], f"dependency-groups.{key}")

    def _requirements(self, items: Iterable[str | _Include], key: str) -> None:
        for number, item in enumerate(items):
            if isinstance(item, _Include):
                self._todo += [("group", name) for name in normalised([item.include_group])]
                continue
            where = self._place(item, f"{key}[{number}]")
            parsed = requirement.parse(item, where)
            line = requirement.line(parsed, where)
            if is_itself(parsed, self._name, where):
                self._todo += [("extra", name) for name in normalised(sorted(parsed.extras))]
                continue
            if len(self.lines) >= requirement.MOST:
                raise InvalidError(f"{where}: more than {requirement.MOST} requirements")
            self._require_index(line, where)
            self.lines.append(line)

    def _place(self, item: str, key: str) -> str:
        """Return the line of a requirement if its text occurs once, else its key."""
        lines = self._quoted.get(item, ())
        line = f":{lines[0]}" if len(lines) == 1 else f": {escaped(key)}"
        return f"{escaped(self._file)}{line}"

    def _require_index(self, line: Line, where: str) -> None:
        """Raise `InvalidError` if `tool.uv.sources` names another place for a package."""
        name = requirement.name(line)
        for source in self._sources.get(name, ()):
            kind = next((kind for kind in (*_DIRECT, "index") if source.get(kind)), "")
            if kind and not of_build(name):
                refuse_source(name, kind, where, "tool.uv.sources")


def is_itself(parsed: Requirement, project: str, where: str) -> bool:
    """Return whether a requirement names the project itself, for extras of its own."""
    from packaging.utils import canonicalize_name

    if not project or canonicalize_name(parsed.name) != project:
        return False
    if parsed.marker:
        raise InvalidError(
            f"{where}: {escaped(str(parsed), requirement.SHOWN)}: a marker on the project's own"
            " extras is not supported",
            "Put the marker on the packages that the extra lists.",
        )
    return True


def refuse_source(name: str, kind: str, where: str, key: str) -> NoReturn:
    """Raise `InvalidError` for a package of another source; `key` is what states it."""
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
