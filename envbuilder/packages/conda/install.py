"""Install locked conda packages into a prefix with py-rattler, and check what it does not.

py-rattler 0.28 does not check the hash of a local archive, follows paths out of a prefix, lets one
package overwrite another's files, and aborts the whole process on an absolute path. So archives
come hash-checked from the store, their paths are checked before the installation, and the installed
files after it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from envbuilder.core.archives import path_objection, reserved_objection
from envbuilder.core.errors import BuildError
from envbuilder.core.text import first
from envbuilder.packages.conda import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envbuilder.packages.conda.lock import Package
    from envbuilder.packages.conda.steps import InstallConda, Rehome

_SHOWN = 3
_FULL = f"(os error {errno.ENOSPC})"
"""How py-rattler reports a full disk."""


def install(step: InstallConda, note: Callable[[str], None]) -> tuple[str, ...]:
    """Install packages into the prefix, and return its host-dependent files: those that name it.

    No script of a package is run; packages that have one are reported. Nothing is cleaned up: the
    folder around it belongs to the build. Raise `BuildError` if packages conflict or cannot be
    installed.
    """
    records.require_rattler()
    for package in step.packages:
        if package.subdir not in {step.subdir, "noarch"}:
            raise BuildError(
                f"{package.file}: is a package for {package.subdir}, not for {step.subdir}"
            )
        _require_contained(package, archive(step, package), step.prefix)
    asyncio.run(_install(step))
    env = Path(step.env)
    installed = records.read(env)
    _require_apart(installed, env)
    records.write(env, installed, step.packages, step.channels)
    unrun = sorted(records.scripted(installed))
    if unrun:
        note(f"note: post-link scripts are not run, they could do anything: {first(unrun, _SHOWN)}")
    return tuple(records.placed(installed))


def archive(step: InstallConda, package: Package) -> Path:
    """Return the path of a package's archive."""
    return Path(step.folder) / package.channel / package.subdir / package.file


def rehome(step: Rehome) -> None:
    """Point a virtual environment at its interpreter in the final prefix."""
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
        package_records.append(records.record(package, url, step.channels[package.channel]))
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
            "If a package is at fault, leave it out or pin another version of it in the"
            " profile's conda.packages, and make the lock again: envbuilder lock --backend conda",
        ) from error


def _plain(text: str, step: InstallConda) -> str:
    """Return a failure in one line, without the folders of the build."""
    for folder in (step.env, step.cache, step.folder):
        text = text.replace(f"{folder}/", "")
    return re.sub(r"\s*\n\s*(Caused by: )?", ": ", text.strip())


def _require_contained(package: Package, path: Path, prefix: str) -> None:
    """Raise `BuildError` if a package has a forbidden path, or the prefix is too long for it."""
    for entry in _paths(package, path):
        relative = PurePosixPath(os.fspath(entry.relative_path))
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise BuildError(f"{package.file}: leads out of its environment: {relative}")
        stated_path = str(relative)
        if wrong := path_objection(stated_path) or reserved_objection(
            stated_path, with_python=False
        ):
            raise BuildError(f"{package.file}: {wrong}", "Leave the package out of the profile.")
        stated = entry.prefix_placeholder
        binary = stated is not None and stated.file_mode.binary
        if binary and len(os.fsencode(prefix)) > len(stated.placeholder.encode()):
            raise BuildError(
                f"{package.file}: cannot be installed in {prefix}: a path may have"
                f" {len(stated.placeholder.encode())} bytes at most in {relative}",
                "Set ENVBUILDER_DATA_DIR to a folder with a shorter path.",
            )


def _paths(package: Package, path: Path) -> Iterator[Any]:
    from rattler import PathsJson

    try:
        listing = PathsJson.from_package_archive(path)
    except Exception as error:
        raise BuildError(
            f"{package.file}: its list of paths cannot be read: {str(error).splitlines()[0]}"
        ) from error
    yield from listing.paths


def _require_apart(installed: list[records.Installed], env: Path) -> None:
    """Raise `BuildError` if two packages install different content at one path."""
    conflict = records.clash(installed, env)
    if conflict is None:
        return
    path, first, second = conflict
    raise BuildError(
        f"the conda packages {first} and {second} both install {path}, with different content",
        "Leave one of them out, or pin another version of it in the profile's conda.packages, and"
        " make the lock again: envbuilder lock --backend conda",
    )
