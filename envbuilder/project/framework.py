"""Which framework a project is for: what it states, or what its requirements show. Pure."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from envbuilder.core import types
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import PROJECT_FILE
from envbuilder.profiles.frameworks import DEFAULT, FRAMEWORKS, of_name, of_user
from envbuilder.profiles.requirements import applies
from envbuilder.project.requirement_files.requirement import name, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from envbuilder.core.project_file import Definition
    from envbuilder.project.requirement_files.listed import Line

    RowOf = Callable[[str], types.Framework | None]

_TARGETS = tuple(product(types.PLATFORMS, (f"3.{minor}" for minor in range(10, 16))))
"""What profiles may be for: a package that is for none of these shows nothing."""


def of(definition: Definition, lines: Sequence[Line]) -> tuple[types.Framework, str]:
    """Return the framework, and what says so; the default and "" if nothing does.

    A framework that is required counts before packages that are made for one. Raise `InvalidError`
    if several are required and none is stated: with one stated, the others are ordinary packages.
    """
    if definition.framework:
        return definition.framework, f"{PROJECT_FILE} says so"
    for row_of in (of_name, of_user):
        shown = _first_lines(row_of, lines)
        if len(shown) > 1:
            (chosen, first), (other, second) = [*shown.items()][:2]
            raise InvalidError(
                f"the project requires {FRAMEWORKS[chosen].title} ({_at(first)}) and"
                f" {FRAMEWORKS[other].title} ({_at(second)}), and a profile has one framework",
                f"Write framework: {chosen} or framework: {other} into {PROJECT_FILE}; what is left"
                " is then an ordinary package from the index. Or list each in an environment of its"
                " own (environments:).",
            )
        for framework, line in shown.items():
            return framework, f"{line.where} requires {name(line)}"
    return DEFAULT, ""


def _first_lines(row_of: RowOf, lines: Iterable[Line]) -> dict[types.Framework, Line]:
    """Return the first line that shows each framework."""
    result: dict[types.Framework, Line] = {}
    for line in lines:
        framework = row_of(name(line))
        if framework and any(applies(parse(line.text, line.where).marker, *t) for t in _TARGETS):
            result.setdefault(framework, line)
    return result


def _at(line: Line) -> str:
    return f"{name(line)}, {line.where}"
