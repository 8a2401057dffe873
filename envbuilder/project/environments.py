"""The environments of a project: what `envbuilder.yaml` says, and the files that it names."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import DEFAULT, Definition, Environment, RequirementFile
from envbuilder.core.schema import place, read_text
from envbuilder.core.settings import PROJECT_FILE
from envbuilder.core.text import shown
from envbuilder.project.requirement_files import requirement
from envbuilder.project.requirement_files.listed import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from envbuilder.core.settings import Settings
    from envbuilder.project.requirement_files.listed import Listed

    Read = Callable[[Path, str, Sequence[str], Sequence[str]], Listed]


class Contents(Struct, frozen=True, kw_only=True):
    """All that an environment holds in addition to the profile of the hardware."""

    stated: Environment
    requirements: tuple[Line, ...]
    constraints: tuple[Line, ...]
    """Of whatever is installed."""
    pythons: tuple[Line, ...]
    """The versions of Python that `python:` allows, if it is stated, and that each file does."""
    conda: tuple[Line, ...]
    channels: tuple[str, ...]
    notes: tuple[str, ...]
    read_from: tuple[str, ...] = ()
    """The files that all of this was read from, by their paths in the project."""

    @property
    def places(self) -> dict[str, str]:
        """Requirement, spelt as in an adapted profile → where it stands."""
        lines = (*self.constraints, *self.requirements)
        return {str(requirement.parse(line.text, line.where)): line.where for line in lines}


def names(definition: Definition) -> tuple[str, ...]:
    """Return the names of a project's environments, `default` first."""
    return (DEFAULT, *definition.environments)


def stated(definition: Definition, name: str) -> Environment:
    """Return an environment: the top-level keys, and of another one its own in addition.

    Raise `InvalidError` if there is none of this name.
    """
    if name == DEFAULT:
        return definition
    more = definition.environments.get(name)
    if more is None:
        raise InvalidError(
            f"{PROJECT_FILE} has no environment {shown(name)}",
            f"It has: {', '.join(names(definition))}.",
        )
    return Environment(
        requirements=(*definition.requirements, *more.requirements),
        requirements_from=(*definition.requirements_from, *more.requirements_from),
        python=more.python or definition.python,
        system_packages=tuple(dict.fromkeys((*definition.system_packages, *more.system_packages))),
        environment={**definition.environment, **more.environment},
        python_path=tuple(dict.fromkeys((*definition.python_path, *more.python_path))),
        files=tuple(dict.fromkeys((*definition.files, *more.files))),
        command=more.command or definition.command,
        ports=tuple(dict.fromkeys((*definition.ports, *more.ports))),
        volumes={**definition.volumes, **more.volumes},
    )


def of(settings: Settings) -> Environment:
    """Return the environment in the settings; an empty one outside of a project."""
    if settings.definition is None:
        return Environment()
    return stated(settings.definition, settings.environment)


def contents(definition: Definition, name: str, project: Path, read: Read) -> Contents:
    """Return all that an environment of a project requires. Raise `InvalidError` as `read` does."""
    stated_files = entries(definition, name, project, "requirements_from")
    named = [(named_file(item), where) for item, where in stated_files]
    files = [(f.file, _read(read, project, f, where)) for f, where in named]
    every = [listed for _, listed in files]
    lines = (*_lines(definition, name, project), *(line for f in every for line in f.requirements))
    return Contents(
        stated=stated(definition, name),
        requirements=lines,
        constraints=tuple(line for f in every for line in f.constraints),
        pythons=(
            # Of two, the environment's own, which comes last.
            *(
                Line(f"=={v}.*", where)
                for v, where in [*entries(definition, name, project, "python")][-1:]
            ),
            *(Line(f.python, where) for where, f in files if f.python),
        ),
        conda=tuple(line for f in every for line in f.conda),
        channels=tuple(dict.fromkeys(c for f in every for c in f.channels)),
        notes=tuple(dict.fromkeys(n for f in every for n in f.notes)),
        read_from=_read_from((f.file for f, _ in named), every),
    )


def _read_from(named: Iterable[str], listed: Iterable[Listed]) -> tuple[str, ...]:
    """Return the files that an environment names and those that they include, each once."""
    every = (*named, *(file for each in listed for file in each.included))
    return tuple(sorted({posixpath.normpath(file) for file in every}))


def _lines(definition: Definition, name: str, project: Path) -> Iterator[Line]:
    """Yield the requirements in the project's own file, with their places."""
    for text, where in entries(definition, name, project, "requirements"):
        requirement.parse(text, where)
        yield Line(text, where)


def entries(
    definition: Definition, name: str, project: Path, key: str
) -> Iterator[tuple[Any, str]]:
    """Yield what a key holds at the top level and in an environment, with places.

    Of a list or mapping each item; of another value, if it is stated, that alone.
    """
    parts: list[tuple[list[str], Environment]] = [([], definition)]
    if name != DEFAULT:
        parts.append((["environments", name], definition.environments[name]))
    path = project / PROJECT_FILE  # which `init` has not written yet
    stated = path.is_file() and any(getattr(part, key) for _, part in parts)
    text = read_text(path) if stated else ""
    for above, part in parts:
        value = getattr(part, key)
        value = value if isinstance(value, tuple | dict) else tuple(filter(None, [value]))
        for number, item in enumerate(value.items() if isinstance(value, dict) else value):
            below = item[0] if isinstance(value, dict) else str(number)
            yield item, place(PROJECT_FILE, text, [*above, key, below])


def named_file(item: str | RequirementFile) -> RequirementFile:
    """Return an entry of `requirements_from`, which may be a path alone."""
    return RequirementFile(file=item) if isinstance(item, str) else item


def _read(read: Read, project: Path, entry: RequirementFile, where: str) -> Listed:
    """Read a file; what is wrong with no line of it is wrong with the place that names it."""
    try:
        return read(project, entry.file, entry.extras, entry.groups)
    except InvalidError as error:
        if re.match(rf"{re.escape(entry.file)}:\d", error.message):
            raise
        raise InvalidError(f"{where}: {error.message}", error.hint) from error
