"""A project's environments, as defined by `envbuilder.yaml` and the files that it lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.core.decoding import place
from envbuilder.core.errors import InvalidError, escaped, shown, with_context
from envbuilder.core.files import read_text
from envbuilder.core.settings import (
    DEFAULT,
    PROJECT_FILE,
    Definition,
    Environment,
    RequirementFile,
    Settings,
)
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.profile import Resolution
from envbuilder.profiles.requirements import SAME
from envbuilder.project import release, sources
from envbuilder.project.lines import (
    SHOWN,
    Dropped,
    Line,
    Listed,
    joined,
    parse,
    parse_lenient,
    rename,
)

Read = Callable[..., Listed]
"""Type of a function that reads the requirements in a project's file, such as `forms.read`."""


class Contents(Listed, frozen=True, kw_only=True):
    """Everything that an environment contains in addition to the hardware's profile.

    `pythons` contains the version set by `python:` or, if that key sets no version, the versions
    that each file allows. `read_from` contains the paths of all files that were read.
    """

    environment: Environment
    resolution: Resolution = Resolution()

    @property
    def places(self) -> dict[str, str]:
        """The location (file and line) of each requirement.

        The keys are requirements as spelled in a profile that was adapted to the project.
        """
        lines = (*self.constraints, *self.requirements)
        return {str(parse(line.text, line.where)): line.where for line in lines}


def names(definition: Definition) -> tuple[str, ...]:
    """Return the names of a project's environments, `default` first."""
    return (DEFAULT, *definition.environments)


def merged(definition: Definition, name: str) -> Environment:
    """Return an environment's own keys, merged with the keys at the top level of the file.

    Raise `InvalidError` if there is no environment with this name.
    """
    if name == DEFAULT:
        return definition
    more = definition.environments.get(name)
    if more is None:
        raise InvalidError(
            f"{PROJECT_FILE} has no environment {shown(name)}",
            f"It has: {', '.join(names(definition))}.",
        )
    values = dict[str, Any]()
    for key in Environment.__struct_fields__:
        above = getattr(definition, key)
        value = getattr(more, key)
        if key in {"python", "command"}:
            values[key] = value or above
        elif isinstance(value, dict):
            values[key] = {**above, **value}
        else:
            values[key] = tuple(dict.fromkeys((*above, *value)))
    return Environment(**values)


def of(settings: Settings) -> Environment:
    """Return the environment that the settings select, or an empty environment outside a project.

    If `install_project` is set, the folders that contain the project's modules are added to
    `python_path`.
    """
    if settings.definition is None:
        return Environment()
    environment = merged(settings.definition, settings.environment)
    if not settings.definition.install_project:
        return environment
    from envbuilder.project import package

    folders = (*environment.python_path, *package.of(settings).folders)
    return replace(environment, python_path=tuple(dict.fromkeys(folders)))


def contents(
    definition: Definition, name: str, project: Path, read: Read | None = None
) -> Contents:
    """Read everything that an environment requires.

    `read` reads the requirements in a file; it defaults to `forms.read`. Raise `InvalidError` if a
    file is invalid.
    """
    every = [_own_lines(definition, name, project)]
    for item, where in entries(definition, name, project, "requirements_from"):
        every.append(_read_named(project, named_file(item), where, read))
    merged_lists = joined(every)
    pythons = merged_lists.pythons
    notes = list[str]()
    for text, where in entries(definition, name, project, "python"):
        # Of two, the environment's own counts, which comes last; `managed` alone says no version.
        if version := text.removeprefix("managed").strip():
            pythons = (Line(f"=={version}.*", where),)
            notes = []
            for line in merged_lists.pythons:
                if not release.allowed([version], [line]):
                    notes.append(
                        f"{line.where} asks for Python {line.text}, but {where} takes precedence:"
                        f" {version}"
                    )
    lines = merged_lists.requirements
    replacing = _overrides(definition, project)
    overrides = {line.name: line for line in merged_lists.overrides} | replacing
    resolution = _resolution(definition, lines, overrides)
    left = tuple(_replaced(lines, overrides, resolution.exclude))
    same = _doubled(left)
    notes += [
        Dropped(f"{other} is left out, because {of} contains all of it")
        for other, of in same.items()
    ]
    return Contents(
        environment=merged(definition, name),
        resolution=resolution,
        requirements=tuple(line for line in left if line.name not in same),
        constraints=tuple(_left(merged_lists.constraints, replacing, ())),
        pythons=pythons,
        conda=merged_lists.conda,
        channels=tuple(dict.fromkeys(merged_lists.channels)),
        notes=tuple(dict.fromkeys((*notes, *_idle(overrides, lines), *merged_lists.notes))),
        read_from=tuple(sorted({*merged_lists.read_from})),
    )


def _overrides(definition: Definition, project: Path) -> dict[str, Line]:
    """Return the replacement for each overridden package, with its line in the project's file."""
    overrides = entries(definition, DEFAULT, project, "overrides")
    return {types.canonical(package): Line(text, where) for (package, text), where in overrides}


def _doubled(lines: Iterable[Line]) -> dict[str, str]:
    """Map each redundant package to the listed package that makes it redundant.

    A package is redundant if it contains the same modules as another listed package from the same
    group in `SAME`.
    """
    present = {line.name for line in lines}
    doubled = dict[str, str]()
    for family in SAME:
        names = [name for name in family if name in present]
        doubled |= dict.fromkeys(names[1:], "".join(names[:1]))
    return doubled


_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _replaced(
    lines: Iterable[Line], overrides: Mapping[str, Line], excluded: Collection[str]
) -> Iterator[Line]:
    """Yield the lines to keep, followed by the replacements for the other lines.

    Replacements with a marker apply only to certain targets.
    """
    lines = tuple(lines)
    yield from _left(lines, overrides, excluded)
    for name, line in overrides.items():
        markers = [_marker(one) for one in lines if one.name == name]
        is_other = name != line.name
        marker = _marker(line)
        if line.name in excluded or not (markers or (is_other and not marker)):
            continue
        if is_other or marker or not all(markers):
            yield line
        else:  # another version is required where the package was, and no further
            places = " or ".join(map("({})".format, dict.fromkeys(markers)))
            yield replace(line, text=f"{line.text}; {places}")


def _left(
    lines: Iterable[Line], overrides: Mapping[str, Line], excluded: Collection[str]
) -> Iterator[Line]:
    """Yield the lines that are neither excluded nor replaced.

    If a replacement applies only to certain targets, the original line is kept for all others.
    """
    for line in lines:
        instead = overrides.get(line.name)
        if line.name in excluded or (instead and not _marker(instead)):
            continue
        if marker := _marker(instead):
            from packaging.markers import Marker

            elsewhere = re.sub("[=!<>]+", lambda match: _OPPOSITE[match[0]], marker)
            need = parse(line.text, line.where)
            also = f"({need.marker}) and " if need.marker else ""
            need.marker = Marker(f"{also}{elsewhere}")
            yield replace(line, text=str(need))
        else:
            yield line


def _marker(line: Line | None) -> str:
    """Return the marker of a requirement or override; empty if it always applies."""
    return line.text.partition(";")[2].strip() if line else ""


def _idle(overrides: Mapping[str, Line], lines: Iterable[Line]) -> Iterator[str]:
    """Yield a note for each override that has a marker but no effect.

    Such an override has no effect if no file lists the package that it replaces.
    """
    for name in overrides.keys() - {line.name for line in lines}:
        if _marker(overrides[name]) and overrides[name].name != name:
            where = overrides[name].where
            yield f"{where}: no file lists {name}, so an override with a marker has no effect"


def _resolution(
    definition: Definition, lines: Sequence[Line], overrides: Mapping[str, Line]
) -> Resolution:
    """Return the project's settings for resolving its packages."""
    build = definition.build_from_source
    overriding = []
    excluded = {*map(types.canonical, definition.exclude)}
    for name, line in overrides.items():
        if line.name == name:
            overriding.append(line.text)
        elif not _marker(line):
            excluded.add(name)
    return Resolution(
        as_of=definition.as_of.isoformat() if definition.as_of else None,
        build=build if isinstance(build, bool) else tuple(sorted(map(types.canonical, build))),
        cuda_architectures=definition.cuda_architectures,
        sources=sources.of_lines(lines, excluded),
        overrides=tuple(overriding),
        exclude=tuple(sorted(excluded)),
    )


def _own_lines(definition: Definition, name: str, project: Path) -> Listed:
    """Return the requirements that the project's own file lists, each with its location."""
    lines = []
    notes = list[str]()
    for text, where in entries(definition, name, project, "requirements"):
        if "@" in text:
            required, note = parse_lenient(text, where)
            lines.append(required)
            notes += filter(None, [note])
            continue
        requirement = parse(text, where)
        required = Line(text, where)
        if changes := rename(requirement, f"{where}: {escaped(text, SHOWN)}"):
            required = replace(required, text=str(requirement))
            notes += changes
        lines.append(required)
    return Listed(requirements=tuple(lines), notes=tuple(notes))


def of_framework(
    contents: Contents, definition: Definition, project: Path, framework: types.Framework
) -> Contents:
    """Return the contents with the override for the framework applied.

    The override is applied even if no file lists the framework. Raise `InvalidError` if the project
    excludes the framework.
    """
    override = _overrides(definition, project).get(framework)
    if framework in contents.resolution.exclude:
        raise InvalidError(
            f"{place_of_exclusion(definition, project, framework)}: {framework} cannot be"
            " excluded: it comes from the profile, and every environment contains it",
            "Remove the line. To choose its release, set framework_version.",
        )
    if not override or any(line.name == framework for line in contents.requirements):
        return contents
    return replace(contents, requirements=(*contents.requirements, override))


def place_of_exclusion(definition: Definition, project: Path, package: str) -> str:
    """Return the location of the entry in `exclude:` or `overrides:` that excludes a package."""
    if override := _overrides(definition, project).get(package):
        return override.where
    excluded = entries(definition, DEFAULT, project, "exclude")
    return next(where for item, where in excluded if types.canonical(item) == package)


def without_releases(contents: Contents, framework: types.Framework) -> Contents:
    """Return the contents without version limits on the framework and its companion packages.

    For each requirement whose limit is dropped, a note is added.
    """
    row = FRAMEWORKS[framework]
    brought = row.names | row.companions
    lines = []
    notes = []
    for line in contents.requirements:
        requirement = parse(line.text, line.where)
        if (line.name in brought or row.is_library(line.name)) and requirement.specifier:
            notes.append(
                f"{line.where} asks for {line.text}, but framework_version takes precedence"
            )
            requirement.specifier = type(requirement.specifier)()
            lines.append(replace(line, text=str(requirement)))
        else:
            lines.append(line)
    return replace(
        contents,
        requirements=tuple(lines),
        constraints=tuple(line for line in contents.constraints if line.name not in brought),
        notes=(*contents.notes, *notes),
    )


def entries(
    definition: Definition, name: str, project: Path, key: str
) -> Iterator[tuple[Any, str]]:
    """Yield the values of a key at the top level of the project's file and in an environment.

    If the value is a list or a mapping, yield each item; otherwise, yield the value itself. Each
    value or item is yielded together with its location in the file.
    """
    parts: list[tuple[list[str], Environment]] = [([], definition)]
    if name != DEFAULT:
        parts.append((["environments", name], definition.environments[name]))
    path = project / PROJECT_FILE  # which `init` has not written yet
    is_used = path.is_file() and any(getattr(part, key) for _, part in parts)
    text = read_text(path) if is_used else ""
    for above, part in parts:
        value = getattr(part, key)
        if isinstance(value, dict):
            for item in value.items():
                yield item, place(PROJECT_FILE, text, [*above, key, item[0]])
        elif isinstance(value, tuple):
            for number, item in enumerate(value):
                yield item, place(PROJECT_FILE, text, [*above, key, str(number)])
        elif value:
            yield value, place(PROJECT_FILE, text, [*above, key])


def paths(definition: Definition, name: str, project: Path, key: str) -> Iterator[Path]:
    """Yield the paths that an environment lists under `key`, which is `python_path` or `files`.

    Raise `InvalidError` for the first path that does not exist. The error says where the path is
    listed.
    """
    for text, where in entries(definition, name, project, key):
        path = project / text
        if not (path.is_dir() if key == "python_path" else path.exists()):
            kind = "folder" if key == "python_path" else "file or folder"
            raise InvalidError(
                f"{where}: {key}: {shown(text)} is not a {kind} in the project",
                "Write the path relative to envbuilder.yaml, or remove the entry.",
            )
        yield path


def require_parts(definition: Definition, name: str, project: Path) -> None:
    """Raise `InvalidError` if a path in an environment's lists does not exist.

    Also raise `InvalidError` if the project itself is to be installed but is not an installable
    package.
    """
    for key in ("python_path", "files"):
        for _ in paths(definition, name, project, key):
            pass
    for _, where in entries(definition, DEFAULT, project, "install_project"):
        from envbuilder.project import package

        try:
            package.read(project)
        except InvalidError as error:
            raise with_context(error, where) from None


def named_file(item: str | RequirementFile) -> RequirementFile:
    """Convert an entry of `requirements_from`, which may be just a path, to a `RequirementFile`."""
    return RequirementFile(file=item) if isinstance(item, str) else item


def _read_named(project: Path, entry: RequirementFile, where: str, read: Read | None) -> Listed:
    """Read the requirements in a file that the project's file lists.

    If an error does not refer to a particular line, the location of the entry that lists the file
    is added to the error.
    """
    if read is None:
        from envbuilder.project import forms

        read = forms.read
    try:
        return read(project, entry.file, entry.extras, entry.groups)
    except InvalidError as error:
        if not re.match(rf"{re.escape(entry.file)}:\d", error.message):
            with_context(error, where)
        raise
