"""Create conda prefixes with py-rattler: install locked packages, and write records and scripts.

conda reads the records in a prefix. py-rattler writes paths that were used during the build into
these records. The paths are removed, because they differ between builds, refer to folders that no
longer exist, and reveal where the archives came from, including any tokens.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import re
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from envbuilder.core import decoding, files, resources, types
from envbuilder.core.archives import path_objection, reserved_objection
from envbuilder.core.errors import BuildError, Hint, ToolError, first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rattler import RepoDataRecord

    from envbuilder.packages.conda.lock import InstallConda, Package, Rehome, WriteActivation


def require_rattler() -> str:
    """Return the version of py-rattler.

    Raise `ToolError` (exit 4) if py-rattler is not installed.
    """
    from importlib import metadata

    try:
        return metadata.version("py-rattler")
    except metadata.PackageNotFoundError:
        raise ToolError(
            "conda packages need py-rattler, which is not installed",
            "Run: pip install 'envbuilder-ml[conda]'",
        ) from None


def record(package: Package, url: str, channel: str) -> RepoDataRecord:
    """Return py-rattler's record for a locked package whose archive is at `url`."""
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
    """Return a solved record as the unvalidated fields of a locked package.

    The caller must validate them.
    """
    noarch = ""
    if solved.noarch.python:
        noarch = "python"
    elif solved.noarch.generic:
        noarch = "generic"
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
        "noarch": noarch,
        "timestamp": round(solved.timestamp.timestamp() * 1000) if solved.timestamp else None,
        "license": solved.license or "",
    }


FOLDER = "conda-meta"
LARGEST = 32 << 20
"""Maximum size in bytes of a package's own record, which takes about 250 bytes per installed
file."""
_OF_THE_BUILD = ("extracted_package_dir", "package_tarball_full_path", "link")
_ENTRY_POINT = "unix_python_entry_point"


class Installed(Struct, frozen=True):
    """A package in a prefix, read from its record."""

    file: str
    """The file name of the record."""
    data: dict[str, Any]

    @property
    def name(self) -> str:
        """The package's name."""
        return str(self.data.get("name"))

    @property
    def paths(self) -> Iterator[dict[str, Any]]:
        """The record's entries for the installed paths."""
        data = self.data.get("paths_data")
        paths = data.get("paths") if isinstance(data, dict) else None
        if isinstance(paths, list):
            yield from (p for p in paths if isinstance(p, dict))


def read(prefix: Path) -> list[Installed]:
    """Return the records in a prefix, sorted by file name.

    Raise `BuildError` if a record cannot be read.
    """
    records = []
    for path in sorted((prefix / FOLDER).glob("*.json")):
        try:
            content = files.read(path, LARGEST)
            decoding.require_few_values(content)
            data = json.loads(content)
        except (OSError, ValueError, RecursionError) as error:
            raise BuildError(f"{path}: cannot be read: {error}") from error
        if not isinstance(data, dict):
            raise BuildError(f"{path} is not a package record")
        records.append(Installed(path.name, data))
    return records


def clash(installed: Sequence[Installed], prefix: Path) -> tuple[str, str, str] | None:
    """Return a path at which the files of two packages differ, and the names of both packages.

    The first name is that of the package whose file is installed at the path. py-rattler moves the
    other file aside and records its original path. Return None if there is no such path.
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
        return first.is_symlink() and second.is_symlink() and first.readlink() == second.readlink()
    return first.is_file() and second.is_file() and first.read_bytes() == second.read_bytes()


def placed(installed: Iterable[Installed]) -> Iterator[str]:
    """Yield the paths of the files that contain the prefix's path.

    The records that contain hashes of these files are included.
    """
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
    """Yield the names of packages with a script that conda would run after installation."""
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
    """Rewrite the records with everything that conda reads, but without traces of the build.

    `channels` maps the channels' symbolic names to their public URLs. The user's own URLs are not
    used, because they may contain a token.
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


# Installing. py-rattler 0.28 does not check the hash of a local archive, follows paths out of a
# prefix, lets one package overwrite another's files, and aborts the whole process on an absolute
# path. So archives come hash-checked from the store, their paths are checked before the
# installation, and the installed files after it.


_SHOWN = 3
_FULL = f"(os error {errno.ENOSPC})"
"""The part of py-rattler's error message that indicates a full disk."""


def install(step: InstallConda, note: Callable[[str], None]) -> tuple[str, ...]:
    """Install packages into the prefix, and return the files that depend on the prefix's path.

    The packages' scripts are not run. Instead, `note` is called with a message about them. Nothing
    is cleaned up after an error, since the folder around the prefix belongs to the build. Raise
    `BuildError` if packages conflict or cannot be installed.
    """
    require_rattler()
    for package in step.packages:
        if package.subdir not in {step.subdir, "noarch"}:
            raise BuildError(
                f"{package.file} is a package for {package.subdir}, not for {step.subdir}"
            )
        _require_contained(package, archive(step, package), step.prefix)
    asyncio.run(_install(step))
    env = Path(step.env)
    installed = read(env)
    if conflict := clash(installed, env):
        path, winner, loser = conflict
        raise BuildError(
            f"the conda packages {winner} and {loser} both install {path}, with different content",
            Hint(
                "Remove one of them, or pin another version in the profile's conda.packages. Then"
                " make the lock again",
                ("lock", "--backend", "conda"),
            ),
        )
    write(env, installed, step.packages, step.channels)
    unrun = sorted(scripted(installed))
    if unrun:
        note(
            "note: post-link scripts are not run, because they could do anything:"
            f" {first(unrun, _SHOWN)}"
        )
    return tuple(placed(installed))


def archive(step: InstallConda, package: Package) -> Path:
    """Return the path of a package's archive."""
    return Path(step.folder) / package.channel / package.subdir / package.file


def rehome(step: Rehome) -> None:
    """Make a virtual environment use its interpreter in the final prefix."""
    env = Path(step.env)
    text = "".join(f"{key} = {value}\n" for key, value in step.settings.items())
    (env / "pyvenv.cfg").write_text(text)
    python = env / "bin" / "python"
    python.unlink()
    python.symlink_to(step.python)


async def _install(step: InstallConda) -> None:
    import rattler

    package_records = []
    for package in step.packages:
        url = archive(step, package).as_uri()
        package_records.append(record(package, url, step.channels[package.channel]))
    try:
        await rattler.install(
            package_records,
            step.env,
            cache_dir=Path(step.cache),
            platform=rattler.Subdir(step.subdir),
            execute_link_scripts=False,
            show_progress=False,
            alternative_target_prefix=step.prefix,
        )
    except OSError:
        raise
    except Exception as error:
        if _FULL in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), step.env) from error
        raise BuildError(
            f"conda packages cannot be installed: {_plain(str(error), step)}",
            Hint(
                "If a package causes this, remove it or pin another version in the profile's"
                " conda.packages. Then make the lock again",
                ("lock", "--backend", "conda"),
            ),
        ) from error


def _plain(text: str, step: InstallConda) -> str:
    """Return an error message as a single line, without the paths of the build's folders."""
    for folder in (step.env, step.cache, step.folder):
        text = text.replace(f"{folder}/", "")
    return re.sub(r"\s*\n\s*(Caused by: )?", ": ", text.strip())


def _require_contained(package: Package, path: Path, prefix: str) -> None:
    """Raise `BuildError` if a package cannot be installed into `prefix`.

    This is the case if the package's list of paths cannot be read or contains a forbidden path, or
    if `prefix` is too long for the package.
    """
    from rattler import PathsJson

    try:
        listing = PathsJson.from_package_archive(path)
    except Exception as error:
        raise BuildError(
            f"{package.file}: its list of paths cannot be read: {str(error).splitlines()[0]}"
        ) from error
    for entry in listing.paths:
        relative = PurePosixPath(os.fspath(entry.relative_path))
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise BuildError(f"{package.file}: the path {relative} leads outside its environment")
        plain = str(relative)
        if wrong := path_objection(plain) or reserved_objection(plain, with_python=False):
            raise BuildError(f"{package.file}: {wrong}", "Remove the package from the profile.")
        if entry.prefix_placeholder is None or not entry.prefix_placeholder.file_mode.binary:
            continue
        longest = len(entry.prefix_placeholder.placeholder.encode())
        if len(os.fsencode(prefix)) > longest:
            raise BuildError(
                f"{package.file}: cannot be installed in {prefix}: {relative} limits the length of"
                f" this path to {longest} bytes",
                "Set ENVBUILDER_DATA_DIR to a folder with a shorter path.",
            )


# Activating. conda, mamba and micromamba source the files in `etc/conda/activate.d`, and so do
# envbuilder's own script, so that every way to activate has the same effect. py-rattler could write
# such a script, too, but with the PATH of the build in it, and without a way to undo it.


SCRIPT = f"{resources.OWN}/activate.sh"
"""The path, relative to a prefix, of the script that bash users source."""
SCRIPTS = {
    "etc/conda/activate.d/envbuilder.sh": "conda/activate-d.sh.j2",
    "etc/conda/deactivate.d/envbuilder.sh": "conda/deactivate-d.sh.j2",
    SCRIPT: "conda/activate.sh.j2",
}
"""Path relative to a prefix → the template for the script at this path."""
_PACKAGE_VARIABLES = "etc/conda/env_vars.d"
_LARGEST = 1 << 20
"""Maximum size in bytes of a file in which a package lists environment variables."""


_Value = Annotated[str, Meta(pattern=r"^[^\x00]*\Z", description="text without null characters")]


def templates_sha256() -> str:
    """Return the sha256 of all templates from which the activation scripts are made."""
    found = sorted((resources.folder("templates") / "conda").glob("*.sh.j2"))
    texts = [[path.name, path.read_text(encoding="utf-8")] for path in found]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def write_activation(step: WriteActivation) -> tuple[str, ...]:
    """Write the activation scripts, and return their paths relative to the prefix.

    The content of these files depends on the prefix's path. Raise `BuildError` if a package sets
    invalid variables.
    """
    env = Path(step.env)
    variables = {**step.variables, "VIRTUAL_ENV": step.venv}
    conda = {"CONDA_PREFIX": step.prefix, "CONDA_DEFAULT_ENV": step.prefix, "CONDA_SHLVL": "1"}
    context: dict[str, Any] = {
        "mark": resources.MARK,
        "prefix": shlex.quote(step.prefix),
        "variables": _pairs(variables),
        "programs": shlex.quote(f"{step.venv}/bin"),
        "prefix_programs": shlex.quote(f"{step.prefix}/bin"),
        "preload": [*map(shlex.quote, step.preload)],
        "package_variables": _pairs({**conda, **package_variables(env)}),
    }
    for path, template in SCRIPTS.items():
        target = env / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(resources.filled(template, context), encoding="utf-8")
    return tuple(SCRIPTS)


def _pairs(variables: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, shlex.quote(value)) for name, value in sorted(variables.items())]


def package_variables(env: Path) -> dict[str, str]:
    """Return the environment variables that the packages in a prefix set.

    If several files set the same variable, the last file takes precedence, as in conda. Raise
    `BuildError` if a file is invalid.
    """
    variables: dict[str, str] = {}
    for path in sorted((env / _PACKAGE_VARIABLES).glob("*.json")):
        try:
            declared = json.loads(files.read(path, _LARGEST))
            variables |= decoding.convert(declared, dict[types.Variable, _Value])
        except (OSError, ValueError, RecursionError) as error:
            raise BuildError(f"{path.name}: sets invalid variables: {error}") from error
    return variables
