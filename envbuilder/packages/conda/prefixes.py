"""Records of conda packages: py-rattler's, and those of a prefix in `conda-meta`.

conda reads the records of a prefix. py-rattler writes paths of the build into them, which are
removed: they would differ from build to build, name folders that no longer exist, and reveal where
archives came from, including tokens.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.core import decoding, files
from envbuilder.core.errors import BuildError, ToolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rattler import RepoDataRecord

    from envbuilder.packages.conda.lock import Package


def require_rattler() -> str:
    """Return the version of py-rattler; raise `ToolError` (exit 4) if it is missing."""
    from importlib import metadata

    try:
        return metadata.version("py-rattler")
    except metadata.PackageNotFoundError:
        raise ToolError(
            "conda packages are solved and installed with py-rattler, which is not installed",
            "Run: pip install 'envbuilder-ml[conda]'",
        ) from None


def record(package: Package, url: str, channel: str) -> RepoDataRecord:
    """Return py-rattler's record of a locked package whose archive is at `url`."""
    from rattler import BuildString, PackageRecord, RepoDataRecord

    package_record = PackageRecord(
        package.name,
        package.version,
        BuildString(package.build),
        package.build_number,
        package.subdir,
        noarch=package.noarch or None,
        depends=list(package.depends),
        constrains=list(package.constrains),
        sha256=bytes.fromhex(package.sha256),
        size=package.size,
        license=package.license or None,
    )
    if package.timestamp is not None:
        import datetime

        package_record.timestamp = datetime.datetime.fromtimestamp(
            package.timestamp / 1000, datetime.UTC
        )
    return RepoDataRecord(package_record, package.file, url, channel)


def package(solved: Any, channel: str, sha256: str) -> dict[str, Any]:
    """Return a solved record as plain data of a locked package, which is validated later."""
    noarch = solved.noarch
    kind = "python" if noarch.python else "generic" if noarch.generic else ""
    when = solved.timestamp
    return {
        "name": solved.name.normalized,
        "version": str(solved.version),
        "build": str(solved.build),
        "build_number": solved.build_number,
        "subdir": solved.subdir,
        "file": solved.file_name,
        "channel": channel,
        "sha256": sha256,
        "size": solved.size,
        "depends": list(solved.depends),
        "constrains": list(solved.constrains),
        "noarch": kind,
        "timestamp": round(when.timestamp() * 1000) if when else None,
        "license": solved.license or "",
    }


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
