"""Collect the sources of packages that a project does not take from an index, such as URLs."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.core.errors import InvalidError
from envbuilder.profiles.profile import Source
from envbuilder.project.release import TARGETS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from envbuilder.profiles.profile import Resolution
    from envbuilder.project.lines import Line


def of_lines(lines: Iterable[Line], excluded: Collection[str]) -> tuple[Source, ...]:
    """Return the direct sources that the lines specify, such as URLs, without duplicates.

    Packages in `excluded` are skipped. Raise `InvalidError` if a package has two sources on the
    same platform and Python version.
    """
    sources: dict[tuple[str, str, str], Source] = {}
    for line in lines:
        if line.source and line.name not in excluded:
            source = Source(
                name=line.name,
                location=line.source,
                marker=line.text.partition(";")[2].strip(),
                where=line.where,
            )
            sources.setdefault((source.name, source.location, source.marker), source)
    for first, second in combinations(sources.values(), 2):
        if first.name != second.name or first.location == second.location:
            continue
        if any(first.serves(*target) and second.serves(*target) for target in TARGETS):
            raise InvalidError(
                f"{second.where}: {second.name} comes from {second.location}, but in"
                f" {first.where} from {first.location}",
                "Remove one of the lines, or add markers, such as ; sys_platform == 'linux'.",
            )
    return tuple(sources.values())


def with_digests(resolution: Resolution, project: Path) -> Resolution:
    """Return a copy of a resolution with the digests of all sources that are folders added."""
    sources = (replace(source, digest=_digest(project, source)) for source in resolution.sources)
    return replace(resolution, sources=tuple(sources))


def _digest(project: Path, source: Source) -> str:
    """Return the digest of a source's files.

    The digest is empty if the source is not a folder or cannot be packed.
    """
    if source.location.startswith("./"):
        from envbuilder.core import folders  # few projects have one

        with suppress(InvalidError, OSError):
            folder = folders.within(project, source.location)
            return folders.pack(folder, source.location, local=True)
    return ""
