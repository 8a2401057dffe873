"""Python builds that need no installation: choose one for a lock, and unpack it.

The builds come from python-build-standalone, which uv uses as well. An archive contains a single
folder, `python`, which works at any path.
"""

from __future__ import annotations

import os
import stat
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.core.errors import BuildError, Hint, InvalidError, escaped
from envbuilder.profiles import releases
from envbuilder.profiles.lock import File, Lock, Target, target_of

if TYPE_CHECKING:
    from envbuilder.core import types
    from envbuilder.profiles.profile import Profile

SOURCE = "python-standalone"
"""Symbolic name of the source of the archives."""
_TOP = "python"


def of_target(target: Target, previous: Lock | None) -> File | None:
    """Return the interpreter from a target's previous lock or, if there is none, the newest build.

    Return None if there is no build for the target.
    """
    before = target_of(previous, target.platform, target.python)
    if before and before.interpreter:
        return before.interpreter
    build = releases.python_builds().get((target.platform, target.python))
    if build is None:
        return None
    return File(
        kind="python",
        name="cpython",
        version=build.python,
        file=build.file,
        sha256=build.sha256,
        size=None,
        source=SOURCE,
        provenance="claim",
        by=build.source,
    )


def require_interpreter(profile: Profile, target: Target) -> File:
    """Return the interpreter in a target's lock; raise `InvalidError` if the lock has none."""
    if not target.interpreter:
        raise InvalidError(
            f"the lock of '{profile.name}' has no interpreter for {target.platform} with Python"
            f" {target.python}, but the project sets python: managed",
            Hint("Interpreters exist for Python 3.8 to 3.14. Make the lock again", ("lock",)),
        )
    return target.interpreter


def program(python: types.PythonVersion) -> str:
    """Return the path of the Python executable, relative to a folder made by `unpack`."""
    return f"bin/python{python}"


def unpack(file: File, path: Path, folder: Path) -> None:
    """Unpack an interpreter into a new folder, with normalized file modes.

    Raise `BuildError` if the archive has an unexpected layout or an unsafe path.
    """
    from envbuilder.core import archives

    with tempfile.TemporaryDirectory(prefix="envbuilder-python-", dir=folder.parent) as name:
        unpacked = Path(name)
        archives.unpack(path, unpacked, partial(_refused, file))
        if [p.name for p in unpacked.iterdir()] != [_TOP]:
            raise _refused(file, f"it contains more than the folder {_TOP}")
        (unpacked / _TOP).rename(folder)
    root = folder.resolve()
    for link in filter(Path.is_symlink, root.rglob("*")):
        if not Path(os.path.realpath(link)).is_relative_to(root):
            raise _refused(file, f"{link.relative_to(root)} links to a path outside the archive")
    python = folder / program(file.version.rpartition(".")[0])
    if not (python.exists() and stat.S_ISREG(python.lstat().st_mode)):
        raise _refused(file, f"it has no {python.relative_to(folder)}")


def _refused(file: File, reason: str) -> BuildError:
    """Return the error for an interpreter archive that cannot be used."""
    from envbuilder.core import archives

    return BuildError(
        f"{file.basename}: refused: {escaped(reason, archives.LONGEST_REASON)}",
        "The file matches the lock, so the archive itself is at fault. Choose another Python, or"
        " install this version and write python: without `managed`.",
    )
