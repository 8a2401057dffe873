"""Builds of Python that need no installation: choose one for a lock, and unpack it.

They are python-build-standalone's, the ones that uv installs. An archive has one folder, `python`,
which works wherever it is put.
"""

from __future__ import annotations

import shutil
import stat
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from envbuilder.core import archives, types
from envbuilder.core.errors import BuildError, Hint, InvalidError
from envbuilder.core.text import escaped
from envbuilder.profiles import releases
from envbuilder.profiles.lock import File, Lock, Target, target_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.profiles.profile import Profile

SOURCE = "python-standalone"
"""Symbolic source of the archives."""
_TOP = "python"


def of_target(target: Target, previous: Lock | None) -> File | None:
    """Return a target's interpreter: that of its previous lock, else the newest build, if any."""
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
    """Return the interpreter that a target's lock has; `InvalidError` if it has none."""
    if not target.interpreter:
        raise InvalidError(
            f"the lock of '{profile.name}' has no interpreter for {target.platform} with Python"
            f" {target.python}, and python: is managed",
            Hint("There are interpreters of Python 3.8 to 3.14. Make the lock again", ("lock",)),
        )
    return target.interpreter


def program(python: types.PythonVersion) -> str:
    """Return the path of the program in the folder that `unpack` makes."""
    return f"bin/python{python}"


def unpack(file: File, path: Path, folder: Path) -> None:
    """Unpack an interpreter into a new folder, with plain modes.

    Raise `BuildError` for an archive of another form, or with a path that leads elsewhere. Links
    are made last, so that nothing is written through one.
    """
    links: dict[PurePosixPath, str] = {}
    failure = partial(_refused, file)
    with path.open("rb") as stream:
        archive = archives.Tar(stream, path.stat().st_size, failure)
        for stated, member in archives.members(archive, failure):
            name = _below(stated, failure)
            place = folder / name
            if member.issym():
                links[name] = member.linkname
                continue
            (place if member.isdir() else place.parent).mkdir(parents=True, exist_ok=True)
            if member.islnk():
                shutil.copy(folder / _below(member.linkname, failure), place)
            elif member.isreg():
                with place.open("xb") as out:
                    out.writelines(archive.pieces(member))
                place.chmod(0o755 if member.mode & 0o111 else 0o644)
    for name, target in links.items():
        follows_link = not links.keys().isdisjoint(name.parents)
        if follows_link or archives.leads_out(str(name), target):
            raise failure(f"{name} is or follows a link to {target}")
        place = folder / name
        if place.exists():
            raise failure(f"{name} is a folder and a link")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    python = folder / program(file.version.rpartition(".")[0])
    if not (python.exists() and stat.S_ISREG(python.lstat().st_mode)):
        raise failure(f"it has no {python.relative_to(folder)}")


def _refused(file: File, reason: str) -> BuildError:
    """Return the error for an archive that cannot be used as it is."""
    return BuildError(
        f"{file.basename}: refused: {escaped(reason, archives.LONGEST_REASON)}",
        "The file matches the lock. Choose another Python, or install this one and use that"
        " (without `managed`).",
    )


def _below(stated: str, failure: Callable[[str], BuildError]) -> PurePosixPath:
    """Return a path of an archive below its one folder."""
    path = PurePosixPath(stated)
    if path.parts[0] != _TOP:
        raise failure(f"{stated} is not in the folder {_TOP}")
    return path.relative_to(_TOP)
