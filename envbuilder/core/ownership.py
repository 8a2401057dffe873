"""Decide which files are trusted: the user's own and root's, as with git's `safe.directory`.

A project file names package indexes, base images and profiles. One that another user put into a
parent of the working folder would decide what this user, or root, installs and runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped

VARIABLE = "ENVBUILDER_TRUSTED_FOLDERS"
"""Folders, separated as in PATH, whose files are trusted regardless of their owner."""


class Look(Protocol):
    """Lookup of a path's owner, mode and identity, on this machine or in a test."""

    def __call__(self, path: Path, *, follow: bool) -> os.stat_result | None:
        """Return the facts of a path, or of a link's target; None if it does not exist."""


class Trust(Struct, frozen=True, kw_only=True):
    """Users and folders whose files are trusted."""

    uids: frozenset[int]
    folders: frozenset[Path] = frozenset()
    """Trusted regardless of the owner."""


def look(path: Path, *, follow: bool) -> os.stat_result | None:
    """Return the facts of a path on this machine; None if it cannot be read."""
    try:
        return path.stat(follow_symlinks=follow)
    except (OSError, ValueError):
        return None


def trust(environ: Mapping[str, str], uid: int) -> Trust:
    """Return a user's trust: that user and root; for root under sudo, also the calling user."""
    uids = {0, uid}
    behind = environ.get("SUDO_UID", "")
    if uid == 0 and behind.isascii() and behind.isdecimal() and len(behind) < 11:
        uids.add(int(behind))
    named = (Path(f) for f in environ.get(VARIABLE, "").split(os.pathsep))
    return Trust(uids=frozenset(uids), folders=frozenset(f for f in named if f.is_absolute()))


def current_trust(environ: Mapping[str, str] | None = None) -> Trust:
    """Return the trust of this process's user."""
    return trust(os.environ if environ is None else environ, os.geteuid())


def folders_above(start: Path, home: Path | None, look: Look = look) -> Iterator[Path]:
    """Yield a folder and its parents, up to the home folder or the file system's root."""
    at_home = look(home, follow=True) if home else None
    device = None
    for folder in (start, *start.parents):
        facts = look(folder, follow=True)
        if facts is None or device not in {None, facts.st_dev}:
            return
        device = facts.st_dev
        yield folder
        if at_home and (facts.st_dev, facts.st_ino) == (at_home.st_dev, at_home.st_ino):
            return


def objection(path: Path, trusted: Trust, look: Look = look) -> str:
    """Return why another user decides what a path holds; empty if none does.

    Judges the path and the folder that it is in, whose owner can exchange it; of links, the target,
    too. A group is not considered, because somebody chose its members.
    """
    if not trusted.folders.isdisjoint((path, path.parent)):
        return ""
    modes = _keeps_modes(path, look)
    above = _objection(path.parent, trusted, look, modes=modes, sticky=True)
    return above or _objection(path, trusted, look, modes=modes)


def require_own(path: Path, trusted: Trust | None = None) -> None:
    """Raise `InvalidError` if another user decides what a path, or anything below it, holds.

    A path that does not exist is accepted.
    """
    path = path.absolute()
    trusted = trusted or current_trust()
    if not os.path.lexists(path) or not trusted.folders.isdisjoint((path, *path.parents)):
        return
    modes = _keeps_modes(path, look)
    below = (_objection(entry, trusted, look, modes=modes) for entry in path.rglob("*"))
    if why := objection(path, trusted, look) or next(filter(None, below), ""):
        raise InvalidError(
            f"{path} is not used: {why}",
            "Make it your own, or move it away. To use it as it is:"
            f" {VARIABLE}={path if path.is_dir() else path.parent}",
        )


def require_unlinked(folder: Path) -> None:
    """Raise `InvalidError` for a link: what is written there would land somewhere else."""
    if folder.is_symlink():
        raise InvalidError(
            f"{folder} is a link, and locks are written into folders of the project alone",
            "Replace it by a folder.",
        )


def exposure(folder: Path, trusted: Trust, look: Look = look) -> str:
    """Return how others can put files into one of envbuilder's folders; empty if they cannot."""
    if not trusted.folders.isdisjoint(folder.parents) or not _keeps_modes(folder, look):
        return ""
    return objection(folder, trusted, look)


def _keeps_modes(path: Path, look: Look) -> bool:
    """Return whether the file system of a folder, or of the folder with a file, stores file modes.

    Windows drives in WSL, FAT and some shared folders show every path, including their own root,
    as world-writable: there the mode means nothing.
    """
    device = None
    root = None
    itself = look(path, follow=False)
    is_folder = itself is not None and stat.S_ISDIR(itself.st_mode)
    for above in (path, *path.parents) if is_folder else path.parents:
        facts = look(above, follow=True)
        if facts is None or device not in {None, facts.st_dev}:
            break
        device = facts.st_dev
        root = facts
    return root is None or not _open_to_all(root)


def _open_to_all(facts: os.stat_result, *, sticky: bool = True) -> bool:
    sticky_folder = sticky and stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
    return bool(facts.st_mode & stat.S_IWOTH and not sticky_folder)


def _objection(path: Path, trusted: Trust, look: Look, *, modes: bool, sticky: bool = False) -> str:
    """Return why a path is not trusted; a link is trusted only if both it and its target are.

    `sticky`: accept a folder where every user can add files, but only replace their own.
    """
    itself = look(path, follow=False)
    if itself is None:
        return ""
    linked = look(path, follow=True) if stat.S_ISLNK(itself.st_mode) else itself
    for facts in filter(None, (itself, linked)):
        if facts.st_uid not in trusted.uids:
            return f"{path} belongs to {_user(facts.st_uid)}, who is neither you nor root"
    if modes and linked is not None and _open_to_all(linked, sticky=sticky):
        return f"{path} can be written by every user"
    return ""


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except (KeyError, OverflowError):
        return f"uid {uid}"


def ignored(folder: Path, why: str) -> str:
    """Return the message about a project's folder whose files are ignored."""
    text = f"ignored the settings and profiles in {folder}: {why}. To use them: {VARIABLE}={folder}"
    return escaped(text)
