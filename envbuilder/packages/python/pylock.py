"""Read what uv resolved: pylock.toml (PEP 751) for one platform and Python."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.errors import BuildError
from envbuilder.packages.python.indexes import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.tags import Tag

MACOS = "14.0"
"""The oldest macOS that PyTorch's wheels accept."""


class Wheel(Struct, frozen=True, kw_only=True):
    """One package of uv's result."""

    name: str
    version: str
    file: str
    sha256: str
    location: str
    size: int | None = None


def parse(text: str, platform: types.Platform, python: str) -> tuple[Wheel, ...]:
    """Return the packages of a pylock.toml (PEP 751) that uv wrote for one platform and Python.

    If uv lists several wheels that fit, the one that pip would take is returned. Raise `BuildError`
    for a package without a wheel that fits, and for an invalid file.
    """
    ranks = {tag: rank for rank, tag in enumerate(_tags(platform, python))}
    try:
        packages = tomllib.loads(text).get("packages", [])
        return tuple(_wheel(p, ranks) for p in packages)
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise BuildError(f"uv wrote a lock that cannot be read: {error}") from error


def _tags(platform: types.Platform, python: str) -> tuple[Tag, ...]:
    """Return the wheel tags that a target accepts, best first."""
    from packaging import tags

    version = tuple(int(part) for part in python.split("."))
    machine = types.machine(platform)
    if types.system(platform) == "darwin":
        major, minor = (int(part) for part in MACOS.split("."))
        platforms = list(tags.mac_platforms((major, minor), machine))
    else:
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(28, 16, -1)]
        platforms.append(f"manylinux2014_{machine}")
        if machine == "x86_64":
            platforms += [f"manylinux_2_{minor}_{machine}" for minor in range(16, 4, -1)]
            platforms += [f"manylinux2010_{machine}", f"manylinux1_{machine}"]
        platforms.append(f"linux_{machine}")
    interpreter = "cp" + python.replace(".", "")
    return (
        *tags.cpython_tags(version, [interpreter], platforms),
        *tags.compatible_tags(version, interpreter, platforms),
    )


def _wheel(package: dict[str, Any], ranks: Mapping[Tag, int]) -> Wheel:
    from packaging.utils import parse_wheel_filename

    wheels = package.get("wheels", [])
    if not wheels and "archive" in package:
        wheels = [package["archive"]]  # a wheel in a find-links folder
    fitting = []
    for wheel in wheels:
        location = wheel.get("url") or wheel["path"]
        file = wheel.get("name") or unquote(urlsplit(location).path).rpartition("/")[2]
        found = [ranks[tag] for tag in parse_wheel_filename(file)[3] if tag in ranks]
        if found:
            fitting.append((min(found), file, location, wheel))
    if not fitting:
        raise ValueError(f"{package['name']}: no matching wheel")
    _, file, location, wheel = min(fitting, key=lambda item: item[:2])
    return Wheel(
        name=canonical(package["name"]),
        version=package["version"],
        file=file,
        sha256=wheel.get("hashes", {}).get("sha256", ""),
        location=location,
        size=wheel.get("size"),
    )


def preferences(preferred: Mapping[str, str]) -> str:
    """Return a pylock.toml whose versions uv should prefer."""
    lines = ['lock-version = "1.0"', 'created-by = "envbuilder"', "packages = ["]
    lines += [f'  {{name = "{n}", version = "{v}"}},' for n, v in sorted(preferred.items())]
    return "\n".join((*lines, "]", ""))
