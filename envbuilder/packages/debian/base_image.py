"""Read which Debian packages an image has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.archives import READ_LIMIT
from envbuilder.core.errors import InvalidError
from envbuilder.packages.debian import status
from envbuilder.packages.debian.suite import ARCHITECTURES

if TYPE_CHECKING:
    from envbuilder.containers.engine.interface import Engine
    from envbuilder.core import types


def of_contents(contents: dict[str, bytes], platform: types.Platform, where: str) -> dict[str, str]:
    """Return the packages (name → version) by files of an image, named `where` in messages.

    Raise `InvalidError` if it has no dpkg status.
    """
    files = {p: d for p, d in contents.items() if p.startswith(status.PATHS)}
    return _parsed(files, platform, where)


def of_engine(engine: Engine, ref: str, platform: types.Platform) -> dict[str, str] | None:
    """Return the packages (name → version) of an image in an engine.

    None if the engine cannot show them for this platform. Raise `ToolError` if the engine fails,
    `InvalidError` for an image without a dpkg status.
    """
    files = engine.files(ref, platform, status.PATHS, READ_LIMIT)
    return None if files is None else _parsed(files, platform, ref)


def _parsed(files: dict[str, bytes], platform: types.Platform, where: str) -> dict[str, str]:
    packages = status.parse(files, ARCHITECTURES[platform])
    if packages is None:
        raise InvalidError(f"{where}: not a Debian system: it has no {status.FILE}")
    return packages
