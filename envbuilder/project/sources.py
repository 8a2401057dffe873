"""Collect where the packages of a project come from that are from no index."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.core import folders
from envbuilder.core.errors import InvalidError
from envbuilder.profiles.profile import Source
from envbuilder.project.release import TARGETS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from envbuilder.profiles.profile import Resolution
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


def with_digests(resolution: Resolution, project: Path) -> Resolution:
    """Return what a project says, with the digests of its folders as they are now."""
    sources = (replace(source, digest=_digest(project, source)) for source in resolution.sources)
    return replace(resolution, sources=tuple(sources))


def _digest(project: Path, source: Source) -> str:
    """Return the digest of a source's files; empty if it is no folder, or cannot be packed."""
    if source.location.startswith("./"):
        with suppress(InvalidError, OSError):
            folder = folders.within(project, source.location)
            return folders.pack(folder, source.location, local=True)
    return ""


def _require_apart(first: Source, second: Source) -> None:
    """Raise `InvalidError` if two sources of a package are for the same target."""
    if any(first.serves(*target) and second.serves(*target) for target in TARGETS):
        raise InvalidError(
            f"{second.where}: {second.name} is from {second.location}, but from {first.location} in"
            f" {first.where}",
            "Remove one of the two, or give each a marker, such as ; sys_platform == 'linux'.",
        )
