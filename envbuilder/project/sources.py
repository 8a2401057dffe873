"""Collect where the packages of a project come from that are from no index."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.profiles.profile import Source
from envbuilder.project.release import TARGETS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from envbuilder.project.lines import Line


def of_lines(lines: Iterable[Line], excluded: Collection[str]) -> Iterator[Source]:
    """Yield the source of each line that names one, without repeating any.

    Raise `InvalidError` if a package would come from two places on one target.
    """
    of_name = defaultdict[str, dict[tuple[str, str], Source]](dict)
    for line in lines:
        if not line.source or line.name in excluded:
            continue
        marker = line.text.partition(";")[2].strip()
        source = Source(name=line.name, location=line.source, marker=marker, where=line.where)
        others = of_name[line.name]
        for other in others.values():
            if other.location != source.location:
                _require_apart(other, source)
        if others.setdefault((source.location, marker), source) is source:
            yield source


def _require_apart(first: Source, second: Source) -> None:
    """Raise `InvalidError` if two sources of a package are for the same target."""
    if any(first.serves(*target) and second.serves(*target) for target in TARGETS):
        raise InvalidError(
            f"{second.where}: {second.name} is from {second.location}, but from {first.location} in"
            f" {first.where}",
            "Remove one of the two, or give each a marker, such as ; sys_platform == 'linux'.",
        )
