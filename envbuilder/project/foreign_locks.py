"""Read the locks of other tools: uv.lock, pylock.toml (PEP 751), Pipfile and Pipfile.lock."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict, replace
from packaging.markers import InvalidMarker, Marker
from packaging.pylock import Package, Pylock, PylockUnsupportedVersionError, PylockValidationError

from envbuilder.core import types
from envbuilder.core.decoding import decode, strict_json
from envbuilder.core.errors import InvalidError, escaped
from envbuilder.profiles import frameworks
from envbuilder.project.lines import (
    LONGEST,
    MOST,
    Dropped,
    Line,
    Listed,
    line,
    location_of,
    narrowed,
    of_uv,
    parse,
    python_versions,
    read_text,
    sourced,
    with_marker,
)
from envbuilder.project.tables import (
    RequirementTables,
    chosen_names,
    is_itself,
    lines_of_keys,
    mapping,
    parse_toml,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from packaging.requirements import Requirement

LARGEST = 32 << 20
"""Maximum size in bytes of a lock. The locks of large projects have about 3 MB."""

# Markers


class Chosen(Struct, frozen=True):
    """The extras and dependency groups to install, under their normalized names."""

    extras: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()


def remaining(marker: str, chosen: Chosen, where: str) -> str | None:
    """Return what is left of a marker after evaluating its conditions on extras and groups.

    Return an empty string if no condition remains, and None if the marker cannot be true. Raise
    `InvalidError` if the marker is not valid.
    """
    try:
        if len(marker) <= LONGEST:
            return _remaining(marker, chosen)
        problem = f"longer than {LONGEST} characters"
    except (InvalidMarker, RecursionError):
        problem = "not a valid marker"
    raise InvalidError(
        f"{where}: {problem}: {escaped(marker, 100)}", "Write a valid marker (PEP 508)."
    )


@lru_cache(maxsize=1024)  # locks repeat few markers many times
def _remaining(marker: str, chosen: Chosen) -> str | None:
    result = _reduced(Marker(marker)._markers, chosen) if marker else True
    if isinstance(result, bool):
        return "" if result else None
    return str(Marker(result))


def _reduced(part: Any, chosen: Chosen) -> str | bool:
    """Evaluate the conditions on extras and groups in a parsed marker, and return the rest as text.

    If the extras and groups alone determine whether the marker is true, return a bool instead.

    `packaging` represents a comparison as a tuple of three items. Comparisons are combined in
    lists, with "and" or "or" between them.
    """
    if isinstance(part, tuple):
        left, operator, right = (str(each.serialize()) for each in part)
        variable, value = (right, left) if right == "extra" else (left, right)
        if variable == "extra" and operator in {"==", "!="}:
            return (types.canonical(value[1:-1]) in chosen.extras) == (operator == "==")
        sets = {"extras": chosen.extras, "dependency_groups": chosen.groups}
        if right in sets and operator in {"in", "not in"}:
            return (types.canonical(left[1:-1]) in sets[right]) == (operator == "in")
        return f"{left} {operator} {right}"
    alternatives: list[list[str | bool]] = [[]]
    for item in part:
        if item == "or":
            alternatives.append([])
        elif item != "and":
            alternatives[-1].append(_reduced(item, chosen))
    every = [_joined("and", parts, decisive=False) for parts in alternatives]
    return _joined("or", every, decisive=True)


def _joined(word: str, parts: list[str | bool], *, decisive: bool) -> str | bool:
    """Join the conditions of a marker with `word`, leaving out conditions that are already decided.

    If a condition equals `decisive`, or if all conditions are decided, return the result as a bool.
    """
    if decisive in parts:
        return decisive
    undecided = [part for part in parts if isinstance(part, str)]
    if len(undecided) < 2:
        return undecided[0] if undecided else not decisive
    return f"({f' {word} '.join(undecided)})"


# uv.lock
#
# The format's version is 1; its revisions add keys that are not needed here. The project is the
# package whose source is the lock's own folder. Its `metadata` repeats pyproject.toml;
# `dependencies` and the like name locked packages, by version if there are several of a name.

_UV_VERSION = 1
_UV_ITSELF = ({"virtual": "."}, {"editable": "."})
"""Values of `source` that refer to the project itself."""


class _Edge(Struct, frozen=True):
    """A dependency on a locked package."""

    name: str
    version: str = ""
    source: dict[str, Any] = {}
    extra: tuple[str, ...] = ()
    marker: str = ""


class _Entry(Struct, frozen=True):
    """A requirement as written in pyproject.toml.

    The last seven fields specify the source of the package, if the requirement has one.
    """

    name: str
    extras: tuple[str, ...] = ()
    specifier: str = ""
    marker: str = ""
    index: str = ""
    git: str | None = None
    url: str | None = None
    path: Any = None
    directory: Any = None
    editable: Any = None
    virtual: Any = None

    def text(self, marker: str) -> str:
        """Return the requirement with the given marker, but without its source."""
        name = f"{self.name}[{','.join(self.extras)}]" if self.extras else self.name
        return with_marker(f"{name}{self.specifier}", marker)

    @property
    def location(self) -> str:
        """The location of the package; empty if the package is taken from an index."""
        return _location(asdict(self))


class _Metadata(Struct, frozen=True, rename="kebab"):
    """The project's requirements as written in pyproject.toml.

    The markers in `requires_dist` include the conditions on extras.
    """

    requires_dist: tuple[_Entry, ...] = ()
    provides_extras: tuple[str, ...] = ()
    requires_dev: dict[str, tuple[_Entry, ...]] = {}


class _Locked(Struct, frozen=True, rename="kebab", kw_only=True):
    """A locked package, or the project itself."""

    name: str
    version: str = ""
    source: dict[str, Any] = {}
    resolution_markers: tuple[str, ...] = ()
    """Markers of the targets to which this version applies, if the lock has several versions.

    At least one of these markers must be true.
    """
    dependencies: tuple[_Edge, ...] = ()
    optional_dependencies: dict[str, tuple[_Edge, ...]] = {}
    dev_dependencies: dict[str, tuple[_Edge, ...]] = {}
    metadata: _Metadata = _Metadata()


class _Manifest(Struct, frozen=True):
    """The settings in pyproject.toml that influence uv's resolution."""

    overrides: tuple[_Entry, ...] = ()


class _UvLock(Struct, frozen=True, rename="kebab", kw_only=True):
    version: int
    requires_python: str = ""
    manifest: _Manifest = _Manifest()
    package: tuple[_Locked, ...] = ()


def read_uv_lock(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Read the project's requirements and their locked versions from a uv.lock.

    Raise `InvalidError` if the lock is invalid, or if the project is not in it.
    """
    name = escaped(file)
    data = parse_toml(read_text(project, file, LARGEST), file)
    if data.get("version") != _UV_VERSION:
        raise InvalidError(
            f"{name}: version {escaped(str(data.get('version')), 20)} of uv's lock format is not"
            f" supported (supported: {_UV_VERSION})",
            "Run uv lock with a uv that writes the supported version, or list pyproject.toml"
            " instead.",
        )
    lock = decode(data, _UvLock, name)
    if len(lock.package) > MOST:
        raise InvalidError(f"{name}: more than {MOST} packages")
    reader = _UvLockReader(lock, name, extras, groups)
    texts = []
    for override in lock.manifest.overrides:
        located = f"{override.name} @ {override.location}"
        texts.append(located if override.location else override.text(override.marker))
    overrides, notes = of_uv("override", texts, file)
    return Listed(
        requirements=tuple(reader.requirements()),
        constraints=tuple(reader.constraints()),
        pythons=python_versions(lock.requires_python, file),
        overrides=overrides,
        notes=(*notes, *reader.notes),
    )


class _UvLockReader:
    """A reader of a project's uv.lock, limited to the chosen extras and groups."""

    def __init__(
        self, lock: _UvLock, file: str, extras: Sequence[str], groups: Sequence[str]
    ) -> None:
        self._lock = lock
        self._file = file
        self.notes: list[str] = []
        self._root = root = self._project()
        of_groups = {types.canonical(name): e for name, e in root.metadata.requires_dev.items()}
        self._groups = chosen_names("group", groups, of_groups, file)
        # Before uv 0.6, `provides-extras` was not written.
        provided = (*root.metadata.provides_extras, *root.optional_dependencies)
        of_chosen = (entry for group in sorted(self._groups) for entry in of_groups[group])
        self._entries = (*root.metadata.requires_dist, *of_chosen)
        self._chosen = Chosen(frozenset(chosen_names("extra", extras, provided, file)))
        while more := self._named_extras() - self._chosen.extras:
            self._chosen = Chosen(self._chosen.extras | more)
        self._extras = self._chosen.extras
        # By these extras, uv tells conflicting versions apart.
        project = f"{len(root.name)}-{root.name}"
        marks = {f"extra-{project}-{extra}" for extra in self._extras}
        marks |= {f"group-{project}-{group}" for group in self._groups}
        self._chosen = Chosen(self._extras | marks | {f"project-{project}"})

    def _project(self) -> _Locked:
        for package in self._lock.package:
            if package.source in _UV_ITSELF:
                if package.dependencies and not package.metadata.requires_dist:
                    raise InvalidError(
                        f"{self._file} does not list what {escaped(package.name, 60)} requires",
                        "The lock was written by an old version of uv: run uv lock.",
                    )
                return package
        raise InvalidError(
            f"{self._file}: the lock does not contain the project itself (it may be a workspace"
            " root)",
            "List the packages' own pyproject.toml files instead.",
        )

    def _where(self, name: str) -> str:
        return f"{self._file}: {escaped(name, 60)}"

    def _named_extras(self) -> set[str]:
        """Return those extras of the project that its requirements on itself include."""
        extras = set[str]()
        for entry in self._entries:
            parsed = self._parsed(entry) if entry.name == self._root.name else None
            if parsed and is_itself(parsed, self._root.name, self._where(entry.name)):
                extras.update(map(types.canonical, entry.extras))
        return extras

    def _parsed(self, entry: _Entry) -> Requirement | None:
        """Parse a requirement; return None if it does not apply to the chosen extras and groups."""
        where = self._where(entry.name)
        marker = remaining(entry.marker, self._chosen, where)
        return None if marker is None else parse(entry.text(marker), where)

    def requirements(self) -> Iterator[Line]:
        """Yield the project's own requirements, followed by needed packages with a direct source.

        The latter are locked packages that are not taken from an index and that the project does
        not list itself.
        """
        locations = set[str]()
        for entry in self._entries:
            if entry.name != self._root.name and (parsed := self._parsed(entry)):
                locations.add(entry.name)
                yield from self._from(line(parsed, self._where(entry.name)), entry.location)
        for name, packages in sorted(self._forks.items()):
            if name not in locations and any(_location(package.source) for package, _ in packages):
                yield from self._from(Line(name, self._where(name)))

    def _from(self, required: Line, named_location: str = "") -> Iterator[Line]:
        """Yield a requirement once for each source from which the lock takes its package.

        `named_location` is the location in the requirement itself. A location in the lock takes
        precedence, since only the lock has the commit.
        """
        forks = self._forks.get(required.name, ())
        locations = [
            (_location(package.source) or named_location, marker) for package, marker in forks
        ]
        locations = locations or [(named_location, "")]
        if frameworks.of_build(required.name) or not any(location for location, _ in locations):
            yield required
            return
        folder = posixpath.dirname(self._file)
        for location, marker in locations:
            text = narrowed(required.text, marker)
            if location:
                located, note = sourced(text, location, required.text, required.where, folder)
                self.notes += filter(None, [note])
                yield located
            else:
                yield replace(required, text=text)

    def constraints(self) -> Iterator[Line]:
        """Yield the locked version of each package that the project needs, as a constraint."""
        for name, packages in sorted(self._forks.items()):
            where = self._where(name)
            for package, marker in packages:
                if package.version:
                    exact = with_marker(f"{name}=={package.version}", marker)
                    yield replace(line(parse(exact, where), where), locked=True)

    @cached_property
    def _forks(self) -> dict[str, list[tuple[_Locked, str]]]:
        """The locked versions of each package that the project needs, each with a marker.

        If a package has several locked versions, the marker determines which of them applies.
        """
        of_name = defaultdict[str, list[_Locked]](list)
        for package in sorted(self._reachable(), key=lambda package: package.version):
            of_name[package.name].append(package)
        locked: dict[str, list[tuple[_Locked, str]]] = {}
        for name, packages in of_name.items():
            for package in packages:
                forks = package.resolution_markers if len(packages) > 1 else ()
                parts = [remaining(marker, self._chosen, self._where(name)) for marker in forks]
                marker = " or ".join(f"({part})" for part in parts if part)
                locked.setdefault(name, []).append((package, "" if "" in parts else marker))
        return locked

    def _reachable(self) -> list[_Locked]:
        """Return the locked packages that the project needs, directly or through other packages."""
        root = self._root
        of_name = defaultdict[str, list[_Locked]](list)
        for package in self._lock.package:
            of_name[package.name].append(package)
        todo = [*root.dependencies]
        for extra in self._extras:
            todo += root.optional_dependencies.get(extra, ())
        for group in self._groups:
            todo += root.dev_dependencies.get(group, ())
        reached: dict[tuple[str, str, str, str], _Locked] = {}
        while todo:
            edge = todo.pop()
            where = self._where(edge.name)
            if remaining(edge.marker, self._chosen, where) is None:
                continue
            targets = [
                package
                for package in of_name[edge.name]
                if edge.version in {"", package.version} and edge.source in ({}, package.source)
            ]
            if not targets:
                raise InvalidError(
                    f"{where}: the lock does not contain this package, although others need it",
                    "Run uv lock.",
                )
            for target in targets:
                for extra in ("", *edge.extra):
                    key = (target.name, target.version, _location(target.source), extra)
                    if target is not root and key not in reached:
                        reached[key] = target
                        below = target.optional_dependencies.get(extra, ())
                        todo += below if extra else target.dependencies
        return [package for (*_, extra), package in reached.items() if not extra]


def _location(source: dict[str, Any]) -> str:
    """Return the location in a source table of uv.lock; empty if the source is an index."""
    git = source.get("git")
    if not isinstance(git, str):
        return location_of(source)
    address, _, commit = git.partition("#")
    address, _, query = address.partition("?")
    values = dict(field.partition("=")[::2] for field in query.split("&"))
    if commit:
        values["rev"] = commit
    return location_of({**values, "git": address})


# pylock.toml

_PYLOCK_ITSELF = frozenset({".", "./"})
"""Paths that refer to the project's own folder. The locks of uv and pip contain it, too."""


def read_pylock(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Read the packages in a pylock.toml; all packages that apply are to be installed.

    `groups` are selected in addition to the lock's default groups. Raise `InvalidError` if the lock
    is invalid.
    """
    name = escaped(file)
    data = parse_toml(read_text(project, file, LARGEST), file)
    try:
        lock = Pylock.from_dict(data)
    except PylockUnsupportedVersionError as error:
        raise InvalidError(
            f"{name}: {escaped(str(error), 100)}", "Regenerate the lock in version 1.0 (PEP 751)."
        ) from error
    except (PylockValidationError, RecursionError) as error:
        raise InvalidError(
            f"{name}: not a valid pylock.toml (PEP 751): {escaped(str(error), 200)}",
            "Regenerate the lock with the tool that created it.",
        ) from error
    if len(lock.packages) > MOST:
        raise InvalidError(f"{name}: more than {MOST} packages")
    of_groups = chosen_names("group", groups, lock.dependency_groups or (), file)
    chosen = Chosen(
        frozenset(chosen_names("extra", extras, lock.extras or (), file)),
        frozenset(of_groups.union(map(types.canonical, lock.default_groups or ()))),
    )
    notes = list[str]()
    if itself := next(filter(_is_itself, lock.packages), None):
        its = escaped(itself.name, 60)
        notes.append(Dropped(f"{name}: {its} is left out, because it is the project itself."))
    if lock.environments:
        environments = escaped(" | ".join(map(str, lock.environments)), 200)
        notes.append(f"{name}: only locked for some environments: {environments}.")
    return Listed(
        requirements=tuple(
            filter(None, (_of_pylock(p, name, chosen, notes) for p in lock.packages))
        ),
        pythons=python_versions(str(lock.requires_python or ""), file),
        notes=tuple(notes),
    )


def _of_pylock(package: Package, file: str, chosen: Chosen, notes: list[str]) -> Line | None:
    """Return a locked package as a requirement, or None if the package does not apply.

    Frameworks, their companions and their libraries are not pinned to the locked version, since
    their versions depend on the hardware. Notes for the user are appended to `notes`. Raise
    `InvalidError` if the package cannot be used, for example because its version is missing.
    """
    where = f"{file}: {escaped(package.name, 60)}"
    marker = remaining(str(package.marker or ""), chosen, where)
    if marker is None or _is_itself(package) or frameworks.is_runtime(package.name):
        return None
    if (location := _pylock_location(package)) and not frameworks.of_build(package.name):
        requirement = with_marker(package.name, marker)
        required, note = sourced(
            requirement, location, package.name, where, posixpath.dirname(file)
        )
        notes += filter(None, [note])
        return required
    if package.version is None:
        raise InvalidError(
            f"{where}: the lock contains no version of this package",
            "Write the lock with a tool that includes versions, such as uv export --format"
            " pylock.toml.",
        )
    version = "" if frameworks.of_build(package.name) else f"=={package.version}"
    return line(parse(with_marker(f"{package.name}{version}", marker), where), where)


def _pylock_location(package: Package) -> str:
    """Return the location of a package; empty if the package is taken from an index."""
    if package.vcs is not None:
        folder = f"#subdirectory={package.vcs.subdirectory}" if package.vcs.subdirectory else ""
        address = package.vcs.url or package.vcs.path or ""
        return f"{package.vcs.type}+{address}@{package.vcs.commit_id}{folder}"
    if package.directory is not None:
        return package.directory.path
    return (package.archive.url or package.archive.path or "") if package.archive else ""


def _is_itself(package: Package) -> bool:
    """Return whether a package is the project itself."""
    return package.directory is not None and package.directory.path in _PYLOCK_ITSELF


# Pipfile, Pipfile.lock


def read_pipfile(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Read the requirements in a Pipfile or Pipfile.lock.

    The only available group is `dev`. Raise `InvalidError` if the file is invalid.
    """
    chosen_names("extra", extras, (), file)
    is_lock = file.endswith(".lock")
    text = read_text(project, file, LARGEST)
    try:
        data = strict_json(text.encode()) if is_lock else parse_toml(text, file)
    except ValueError as error:
        raise InvalidError(
            f"{escaped(file)}: not valid JSON: {escaped(str(error), 200)}"
        ) from error
    reader = RequirementTables(file, {} if is_lock else lines_of_keys(text))
    table = mapping(mapping(data).get("_meta")) if is_lock else mapping(data)
    python = mapping(table.get("requires"))
    for key in ("python_version", "python_full_version"):
        if isinstance(version := python.get(key), str):
            exact = f"=={version}.*" if key == "python_version" and version != "*" else version
            reader.python(exact, escaped(file))
    keys = ["default", "develop"] if is_lock else ["packages", "dev-packages"]
    if not chosen_names("group", groups, ("dev",), file):
        keys.pop()
    for key in keys:
        packages = mapping(mapping(data).get(key))
        if is_lock:
            packages = {n: v for n, v in packages.items() if not frameworks.is_runtime(n)}
        reader.take(key, packages)
    return reader.listed()
