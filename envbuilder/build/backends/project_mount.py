"""Decide where a container sees the project, and as which user a command can write it."""

from __future__ import annotations

from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.build import access, conventions
from envbuilder.core import process
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from envbuilder.containers.engine.container import Volume

_SOCKETS = tuple(map(Path, ("/run/docker.sock", "/run/podman/podman.sock", "/run/user")))
_ROOTS_HOME = PurePosixPath("/root")


class ProjectMount(Struct, frozen=True, kw_only=True):
    """A folder of this machine and its path in a container."""

    folder: Path
    target: PurePosixPath
    workdir: PurePosixPath
    """The path in the container of the folder in which the command was given."""
    reason: str = ""
    """Why it is not at its own path; empty if it is."""

    def inside(self, path: PurePath) -> PurePosixPath:
        """Return the path in the container of a path below the folder."""
        return self.target / path.relative_to(self.folder)


def root(project: Path | None, cwd: Path) -> Path:
    """Return the folder that a command sees: the project's, else the one where it was given.

    A project that is the home folder, which holds more than a project, does not count.
    """
    inside = project is not None and cwd.is_relative_to(project) and not _is_home(project)
    return project if project and inside else cwd


def _is_home(folder: Path) -> bool:
    try:
        return folder.samefile(Path.home())
    except (OSError, RuntimeError):  # RuntimeError: this user has none
        return False


def placed(folder: Path, cwd: Path, uid: int) -> ProjectMount:
    """Return where a user's container sees a folder: at its own path, unless it cannot be there.

    `cwd` is the folder below it in which the command was given.
    """
    target, reason = PurePosixPath(folder), ""
    if hidden := access.covered(target):
        reason = f"at its own path it would cover {hidden}"
    elif target.is_relative_to(_ROOTS_HOME) and uid != 0:
        reason = f"in the image only root can enter {_ROOTS_HOME}"
    elif not str(folder).isprintable():
        reason = "its path has characters that cannot be printed"
    if reason:
        target = PurePosixPath(conventions.WORK)
    workdir = target / cwd.relative_to(folder)
    return ProjectMount(folder=folder, target=target, workdir=workdir, reason=reason)


def user(folder: os.stat_result, uid: int, gid: int) -> tuple[int, int]:
    """Return the user for a command in a folder: this one, but instead of root the folder's owner.

    A folder that root owns can only be written as root, who has no capability in a container.
    """
    return (uid, gid) if uid else (folder.st_uid, folder.st_gid)


def groups(folder: os.stat_result, user: tuple[int, int], groups: Sequence[int]) -> tuple[int, ...]:
    """Return the folder's group if only as its member this user can write the folder."""
    uid, gid = user
    shared = uid not in {0, folder.st_uid} and folder.st_gid != gid and folder.st_gid in groups
    return (folder.st_gid,) if shared else ()


def require_project(folder: Path, socket: Path | None) -> None:
    """Raise `InvalidError` for a folder through which a container could use an engine itself."""
    if _holds_socket(folder, socket):
        raise InvalidError(
            f"{folder} holds a container engine's socket, and cannot be the project",
            "Change to your project's folder, and run it again.",
        )


def require_apart(volume: Volume, project: ProjectMount, socket: Path | None) -> None:
    """Raise `InvalidError` for a volume that holds an engine's socket or covers the project."""
    if volume.is_folder and _holds_socket(Path(volume.source), socket):
        raise InvalidError(
            f"{volume.source} holds a container engine's socket, and cannot be a volume",
            "Name the folder that the command needs.",
        )
    target = PurePosixPath(volume.target)
    if project.target.is_relative_to(target):
        raise InvalidError(
            f"{volume.target} would cover the project, which is at {project.target} in the"
            " container",
            "Choose a path of its own, such as /data.",
        )
    below = target.relative_to(project.target) if target.is_relative_to(project.target) else None
    if below and not (project.folder / below).is_dir():
        # The engine would create it in the project, as root.
        raise InvalidError(
            f"{volume.target}: there is no such folder in the project",
            f"Create it first: mkdir -p {process.quoted([str(project.folder / below)])}",
        )


def _holds_socket(folder: Path, socket: Path | None) -> bool:
    sockets = (*_SOCKETS, *((socket.resolve(),) if socket else ()))
    return any(path.is_relative_to(folder) for path in sockets)
