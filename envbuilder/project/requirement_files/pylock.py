"""Read pylock.toml (PEP 751), whose packages are all that is to be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped
from envbuilder.profiles import frameworks
from envbuilder.project.requirement_files import markers, pyproject, requirement, text_file
from envbuilder.project.requirement_files.listed import Line, Listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from packaging.pylock import Package, Pylock

_ITSELF = frozenset({".", "./"})
"""Paths of the project's own folder, which locks of uv and pip list, too."""


def read(project: Path, file: str, extras: Sequence[str], groups: Sequence[str]) -> Listed:
    """Return the packages of a lock; `groups` are added to its default ones.

    Raises `InvalidError`.
    """
    from packaging.pylock import Pylock, PylockUnsupportedVersionError, PylockValidationError

    name = escaped(file)
    data = text_file.parse_toml(text_file.read_text(project, file, text_file.LARGEST_LOCK), file)
    try:
        lock = Pylock.from_dict(data)
    except PylockUnsupportedVersionError as error:
        raise InvalidError(
            f"{name}: {escaped(str(error), 100)}", "Write it in version 1.0 (PEP 751)."
        ) from error
    except (PylockValidationError, RecursionError) as error:
        raise InvalidError(
            f"{name}: not a valid pylock.toml (PEP 751): {escaped(str(error), 200)}",
            "Write it again with the tool that wrote it.",
        ) from error
    chosen = _chosen(lock, name, extras, groups)
    lines: list[Line] = []
    for package in lock.packages:
        if len(lines) >= requirement.MOST:
            raise InvalidError(f"{name}: more than {requirement.MOST} packages")
        if line := _line(package, name, chosen):
            lines.append(line)
    return Listed(
        requirements=tuple(lines),
        python=str(lock.requires_python or ""),
        notes=tuple(_notes(lock, name)),
    )


def _chosen(
    lock: Pylock, file: str, extras: Sequence[str], groups: Sequence[str]
) -> markers.Chosen:
    for kind, names, available in (
        ("extra", extras, lock.extras),
        ("group", groups, lock.dependency_groups),
    ):
        for name in pyproject.normalised(names):
            pyproject.require_listed(kind, name, pyproject.normalised(available or ()), file)
    return markers.Chosen(
        frozenset(pyproject.normalised(extras)),
        frozenset(pyproject.normalised((*(lock.default_groups or ()), *groups))),
    )


def _line(package: Package, file: str, chosen: markers.Chosen) -> Line | None:
    """Return a package as a requirement of its version; None if it does not apply.

    Of frameworks and their companions, the hardware decides the version, and what libraries they
    need.
    """
    where = f"{file}: {escaped(package.name, 60)}"
    marker = markers.remaining(str(package.marker or ""), chosen, where)
    if marker is None or _is_itself(package) or frameworks.is_runtime(package.name):
        return None
    for kind in ("vcs", "directory", "archive"):
        if getattr(package, kind) is not None:
            pyproject.refuse_source(package.name, kind, file, "the lock")
    if package.version is None:
        raise InvalidError(
            f"{where}: the lock does not state its version",
            "Write the lock with a tool that does, such as uv export --format pylock.toml.",
        )
    version = "" if frameworks.of_build(package.name) else f"=={package.version}"
    text = f"{package.name}{version}{f'; {marker}' if marker else ''}"
    return requirement.line(requirement.parse(text, where), where)


def _is_itself(package: Package) -> bool:
    return package.directory is not None and package.directory.path in _ITSELF


def _notes(lock: Pylock, file: str) -> Iterator[str]:
    names = [escaped(package.name, 60) for package in lock.packages if _is_itself(package)]
    if names:
        yield f"{file}: {names[0]} is left out: it is the project itself."
    if lock.environments:
        environments = escaped(" | ".join(map(str, lock.environments)), 200)
        yield f"{file}: locked for some environments only: {environments}."
