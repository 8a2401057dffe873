"""Read uv.lock: what the project itself requires, and the versions that uv locked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.core.errors import InvalidError
from envbuilder.core.schema import decode
from envbuilder.core.text import escaped
from envbuilder.profiles.frameworks import of_build
from envbuilder.project.requirement_files import markers, pyproject, requirement, text_file
from envbuilder.project.requirement_files.listed import Line, Listed
from envbuilder.project.requirement_files.uv_lock_format import (
    VERSION,
    Dependency,
    Entry,
    Lock,
    Package,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from packaging.requirements import Requirement

_ITSELF = ({"virtual": "."}, {"editable": "."})
"""Sources of the project itself."""
_FROM_INDEX = "registry"
"""The source of packages from an index."""
_SOURCES = ("git", "url", "path", "directory", "editable", "virtual")
"""Keys of a requirement for packages that come from no index."""


def read(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Return what the project of a lock requires, and its versions. Raises `InvalidError`."""
    text = text_file.read_text(project, file, text_file.LARGEST_LOCK)
    data = text_file.parse_toml(text, file)
    if data.get("version") != VERSION:
        raise InvalidError(
            f"{escaped(file)}: version {escaped(str(data.get('version')), 20)} of uv's lock format"
            f" is not supported; {VERSION} is",
            "Run uv lock with a uv that writes this version, or list pyproject.toml instead.",
        )
    lock = decode(data, Lock, escaped(file))
    if len(lock.package) > requirement.MOST:
        raise InvalidError(f"{escaped(file)}: more than {requirement.MOST} packages")
    return _Reader(lock, escaped(file), extras, groups).listed()


class _Reader:
    """A lock from the point of view of its project, with some extras and groups."""

    def __init__(self, lock: Lock, file: str, extras: Sequence[str], groups: Sequence[str]) -> None:
        self._lock, self._file = lock, file
        self._packages: dict[str, list[Package]] = {}
        for package in lock.package:
            self._packages.setdefault(package.name, []).append(package)
        self._root = self._project()
        self._groups = self._listed("group", groups, self._root.metadata.requires_dev)
        self._extras = self._with_references(self._listed("extra", extras, self._provided()))
        self._require_no_conflict()
        self._chosen = markers.Chosen(frozenset((*self._extras, *self._as_conflicts())))

    def listed(self) -> Listed:
        return Listed(
            requirements=tuple(self._requirements()),
            constraints=tuple(self._constraints()),
            python=pyproject.python_versions(self._lock.requires_python, self._file),
            notes=tuple(self._notes()),
        )

    def _project(self) -> Package:
        for package in self._lock.package:
            if package.source in _ITSELF:
                if package.dependencies and not package.metadata.requires_dist:
                    raise InvalidError(
                        f"{self._file}: does not state what {escaped(package.name, 60)} requires",
                        "An old uv wrote it: run uv lock.",
                    )
                return package
        raise InvalidError(
            f"{self._file}: no package is the project itself, as in a workspace without one",
            "List the pyproject.toml of the packages to use instead.",
        )

    def _listed(self, kind: str, names: Iterable[str], available: Iterable[str]) -> set[str]:
        chosen = set(pyproject.normalised(names))
        for name in sorted(chosen):
            pyproject.require_listed(kind, name, pyproject.normalised(available), self._file)
        return chosen

    def _provided(self) -> tuple[str, ...]:
        # Before uv 0.6, `provides-extras` was not written.
        return (*self._root.metadata.provides_extras, *self._root.optional_dependencies)

    def _with_references(self, extras: set[str]) -> set[str]:
        """Return extras together with those of the project that they name themselves."""
        references = [e for e in self._entries() if e.name == self._root.name]
        # Each round but the last adds an extra.
        for _ in range(len(references)):
            chosen = markers.Chosen(frozenset(extras))
            added = {
                name
                for entry in references
                if (parsed := self._parsed(entry, chosen))
                and pyproject.is_itself(parsed[0], self._root.name, parsed[1])
                for name in pyproject.normalised(entry.extras)
            }
            if added <= extras:
                break
            extras = extras | added
        return extras

    def _require_no_conflict(self) -> None:
        for conflict in self._lock.conflicts:
            both = [
                escaped(item.extra or item.group, 60)
                for item in conflict
                if item.package == self._root.name
                and (item.extra in self._extras or item.group in self._groups)
            ]
            if len(both) > 1:
                raise InvalidError(
                    f"{self._file}: {' and '.join(both)} exclude each other (tool.uv.conflicts)",
                    "Choose one of them in an environment.",
                )

    def _as_conflicts(self) -> Iterator[str]:
        """Yield what is chosen as the extras by which uv tells conflicting versions apart."""
        project = f"{len(self._root.name)}-{self._root.name}"
        yield f"project-{project}"
        yield from (f"extra-{project}-{extra}" for extra in self._extras)
        yield from (f"group-{project}-{group}" for group in self._groups)

    def _entries(self) -> Iterator[Entry]:
        yield from self._root.metadata.requires_dist
        for group in sorted(self._groups):
            yield from next(
                entries
                for name, entries in self._root.metadata.requires_dev.items()
                if group in pyproject.normalised([name])
            )

    def _requirements(self) -> Iterator[Line]:
        for entry in self._entries():
            if entry.name == self._root.name:
                continue
            parsed = self._parsed(entry, self._chosen)
            if parsed:
                line = requirement.line(*parsed)
                self._require_index(entry, requirement.name(line))
                yield line

    def _parsed(self, entry: Entry, chosen: markers.Chosen) -> tuple[Requirement, str] | None:
        """Return a requirement and its place; None if it does not apply."""
        where = f"{self._file}: {escaped(entry.name, 60)}"
        marker = markers.remaining(entry.marker, chosen, where)
        if marker is None:
            return None
        extras = f"[{','.join(entry.extras)}]" if entry.extras else ""
        end = f"; {marker}" if marker else ""
        return requirement.parse(f"{entry.name}{extras}{entry.specifier}{end}", where), where

    def _require_index(self, entry: Entry, name: str) -> None:
        source = {key: value for key in _SOURCES if (value := getattr(entry, key))}
        if not of_build(name) and (source or entry.index):
            pyproject.refuse_source(name, next(iter(source), "index"), self._file, "pyproject.toml")

    def _constraints(self) -> Iterator[Line]:
        """Yield the locked version of each package that the project needs."""
        versions: dict[str, list[Package]] = {}
        for package in self._reachable():
            if package.version:
                versions.setdefault(package.name, []).append(package)
        for name, packages in sorted(versions.items()):
            where = f"{self._file}: {escaped(name, 60)}"
            for package in sorted(packages, key=lambda package: package.version):
                marker = self._fork(package, where) if len(packages) > 1 else ""
                end = f"; {marker}" if marker else ""
                text = f"{name}=={package.version}{end}"
                line = requirement.line(requirement.parse(text, where), where)
                yield replace(line, locked=True)

    def _fork(self, package: Package, where: str) -> str:
        """Return the marker of one version among several; empty if it is used everywhere."""
        parts = [
            markers.remaining(marker, self._chosen, where) for marker in package.resolution_markers
        ]
        applicable = [f"({part})" for part in parts if part]
        return "" if "" in parts else " or ".join(applicable)

    def _reachable(self) -> Iterator[Package]:
        """Yield the packages that the project needs, each once; refuse those from no index."""
        todo = [
            *self._root.dependencies,
            *(d for e in self._extras for d in self._root.optional_dependencies.get(e, ())),
            *(d for g in self._groups for d in self._root.dev_dependencies.get(g, ())),
        ]
        finished = set()
        while todo:
            edge = todo.pop()
            for package in self._targets(edge):
                for extra in ("", *edge.extra):
                    item = (package.name, package.version, extra)
                    if item in finished:
                        continue
                    if (package.name, package.version, "") not in finished:
                        self._require_index_source(package)
                        yield package
                    finished.add(item)
                    todo += (
                        package.optional_dependencies.get(extra, ())
                        if extra
                        else package.dependencies
                    )

    def _targets(self, edge: Dependency) -> list[Package]:
        """Return the packages that a dependency leads to; none if its marker excludes them."""
        where = f"{self._file}: {escaped(edge.name, 60)}"
        if markers.remaining(edge.marker, self._chosen, where) is None:
            return []
        packages = [
            package
            for package in self._packages.get(edge.name, [])
            if edge.version in {"", package.version}
        ]
        if not packages:
            raise InvalidError(
                f"{where}: packages depend on it, but the lock does not hold it", "Run uv lock."
            )
        return [package for package in packages if package is not self._root]

    def _require_index_source(self, package: Package) -> None:
        kind = next(iter(package.source), "")
        if kind != _FROM_INDEX and not of_build(package.name):
            pyproject.refuse_source(package.name, kind, self._file, "the lock")

    def _notes(self) -> Iterator[str]:
        names = sorted({o.name for o in self._lock.manifest.overrides if not of_build(o.name)})
        if names:
            yield (
                f"{self._file}: tool.uv.override-dependencies is not passed on: for"
                f" {escaped(', '.join(names), requirement.SHOWN)}, what packages require holds."
            )
