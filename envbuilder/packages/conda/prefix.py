"""Read and rewrite the package records of a prefix: `conda-meta/NAME-VERSION-BUILD.json`.

conda reads these records. py-rattler writes paths of the build into them, which are removed: they
would differ from build to build, name folders that no longer exist, and reveal where archives came
from, including tokens.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core import decoding, files
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from envbuilder.packages.conda.lock import Package

FOLDER = "conda-meta"
LARGEST = 32 << 20
"""Maximum bytes of a record or another description of a package: 250 for each of its files."""
_OF_THE_BUILD = ("extracted_package_dir", "package_tarball_full_path", "link")
_ENTRY_POINT = "unix_python_entry_point"


class Installed(Struct, frozen=True):
    """One package of a prefix, from its record."""

    file: str
    """The file name of the record."""
    data: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the package's name."""
        return str(self.data.get("name"))

    @property
    def paths(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of the paths that it installed."""
        stated = self.data.get("paths_data")
        paths = stated.get("paths") if isinstance(stated, dict) else None
        yield from (p for p in paths if isinstance(p, dict)) if isinstance(paths, list) else ()


def read(prefix: Path) -> list[Installed]:
    """Return the records of a prefix, sorted by name; raise `BuildError` if one is unreadable."""
    records = []
    for path in sorted((prefix / FOLDER).glob("*.json")):
        try:
            content = files.read(path, LARGEST)
            decoding.require_few_values(content)
            data = json.loads(content)
        except (OSError, ValueError, RecursionError) as error:
            raise BuildError(f"{path}: cannot be read: {error}") from error
        if not isinstance(data, dict):
            raise BuildError(f"{path}: is not the record of a package")
        records.append(Installed(path.name, data))
    return records


def clash(installed: Sequence[Installed], prefix: Path) -> tuple[str, str, str] | None:
    """Return a path that two packages install with different content, and the two; else None.

    py-rattler moves the losing file aside, and records its original path.
    """
    owners = {p["_path"]: i.name for i in installed for p in i.paths}
    for package in installed:
        for entry in package.paths:
            wanted = entry.get("original_path")
            if wanted and not _same(prefix / wanted, prefix / entry["_path"]):
                return wanted, owners.get(wanted, "another"), package.name
    return None


def _same(first: Path, second: Path) -> bool:
    if first.is_symlink() or second.is_symlink():
        links = first.is_symlink() and second.is_symlink()
        return links and first.readlink() == second.readlink()
    return first.is_file() and second.is_file() and first.read_bytes() == second.read_bytes()


def placed(installed: Iterable[Installed]) -> Iterator[str]:
    """Yield the files that name the prefix, and the records that hold their hashes."""
    for package in installed:
        paths = [
            entry["_path"]
            for entry in package.paths
            if entry.get("prefix_placeholder") or entry.get("path_type") == _ENTRY_POINT
        ]
        yield from paths
        if paths:
            yield f"{FOLDER}/{package.file}"


def scripted(installed: Iterable[Installed]) -> Iterator[str]:
    """Yield the packages with a script that conda would run after their installation."""
    for package in installed:
        script = f"bin/.{package.name}-post-link.sh"
        if any(entry.get("_path") == script for entry in package.paths):
            yield package.name


def write(
    prefix: Path,
    installed: Iterable[Installed],
    packages: Iterable[Package],
    channels: Mapping[str, str],
) -> None:
    """Rewrite the records: what conda reads, without anything of the build.

    `channels` are public URLs by symbolic name: the user's own may hold a token.
    """
    locked = {p.name: p for p in packages}
    for package in installed:
        data = {k: v for k, v in package.data.items() if k not in _OF_THE_BUILD}
        known = locked[package.name]
        root = channels[known.channel]
        data |= {"fn": known.file, "url": f"{root}/{known.as_file.file}", "channel": f"{root}/"}
        path = prefix / FOLDER / package.file
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        path.chmod(0o644)


def owner(prefix: Path, path: str) -> str:
    """Return the package that a path of a prefix belongs to; empty if no record lists it."""
    try:
        installed = read(prefix)
    except BuildError:
        return ""
    for package in installed:
        if any(entry.get("_path") == path for entry in package.paths):
            return package.name
    return ""
