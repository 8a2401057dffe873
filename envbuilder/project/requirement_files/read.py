"""Placeholder until the readers are merged."""

from collections.abc import Sequence
from pathlib import Path

from envbuilder.project.requirement_files.listed import Line, Listed


def read(
    project: Path, file: str, extras: Sequence[str] = (), groups: Sequence[str] = ()
) -> Listed:
    text = (project / file).read_text().splitlines()
    return Listed(
        requirements=tuple(
            Line(l.strip(), f"{file}:{n}")
            for n, l in enumerate(text, 1)
            if l.strip() and not l.startswith("#")
        )
    )
