"""Create envbuilder's own folders with a marker, and remove them without following links.

A marker records that envbuilder created the folder that holds it. A folder that already existed
gets none, so that its content is never treated as envbuilder's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Literal

from msgspec import Struct

from envbuilder.core import files

MARKER = ".made-by-envbuilder"
_SIGNATURE = b"envbuilder made this folder\n"
_CONTENT = _SIGNATURE + (
    b"The command `envbuilder clean` removes what envbuilder put into it.\n"
    b"Remove this file, and it leaves the folder alone.\n"
)
HEX = "[0-9a-f]{64}"
"""Regular expression of a sha256."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Owned(Struct, frozen=True):
    """A folder of the cache whose content can be made again, and the names that envbuilder uses."""

    folder: str
    paths: tuple[str, ...]
    """Regular expressions of paths in the folder, part by part; a folder whose whole content is
    envbuilder's ends with a slash. Temporary files of `files.write` need none of their own."""

    def has(self, path: str, kind: Literal["file", "folder", "whole"]) -> bool:
        """Return whether a path in the folder is envbuilder's.

        `folder`: one that holds such paths; `whole`: one that holds nothing else.
        """
        *above, name = path.split("/")
        part = re.fullmatch(r"\.(.+)\.\d+\.part", name)
        parts = [*above, part[1] if part and kind == "file" else name]
        for owned in self.paths:
            patterns = owned.split("/")
            rest = patterns[len(parts) :]
            fits = {"file": not rest, "folder": bool(rest), "whole": rest == [""]}[kind]
            if fits and len(parts) <= len(patterns) and all(map(re.fullmatch, patterns, parts)):
                return True
        return False


def ensure(folder: Path, *, marked: bool = True) -> Path:
    """Return the folder, creating it if it is missing, and marking it if it was created here.

    New folders are for this user only, but one within a marked folder gets the mode of that one,
    which the user may have opened to others. The mode of an existing folder is never changed.
    Not `marked`: its content carries markers of its own. Raises `OSError` if it cannot be created.
    """
    for above in reversed([p for p in folder.parents if not p.exists()]):
        above.mkdir(mode=0o700, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return folder
    try:
        if is_marked(folder.parent):
            folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode) & ~0o022)
        if marked:
            mark(folder)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    return folder


def identity(folder: Path) -> str:
    """Return hexadecimal digits that tell folders of one name apart, the same on every call."""
    return hashlib.sha256(os.fsencode(folder)).hexdigest()


def mark(folder: Path) -> None:
    """Mark a folder that was just created. Raises `OSError` on a full disk."""
    files.write(folder / MARKER, _CONTENT)


def is_folder(path: Path) -> bool:
    """Return whether this is a folder, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def is_marked(folder: Path) -> bool:
    """Return whether envbuilder created the folder; a marker that is a link does not count."""
    try:
        descriptor = os.open(folder / MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.read(descriptor, len(_SIGNATURE)) == _SIGNATURE
    except OSError:  # the marker is a folder or a device
        return False
    finally:
        os.close(descriptor)


def remove(path: Path, root: Path, aside: str = "") -> None:
    """Remove a file, a link or a folder below `root`. Raises `OSError` if that fails.

    A folder that contains a mount point is left untouched: the mounted files belong elsewhere.

    No component below `root` may be a link: each folder on the path is opened relative to its
    parent's descriptor, so that none can be swapped for a link meanwhile. Links in the folder are
    removed, but not their targets. The marker is removed last, so that a folder left behind by a
    kill is still marked. With `aside`, the folder is first marked and renamed to `aside`, so that
    a partially removed folder is never used.
    """
    *above, name = path.relative_to(root).parts
    top = root.parent.resolve() / root.name
    with contextlib.ExitStack() as opened:
        parent = _open(str(top), None, opened)
        for part in above:
            parent = _open(part, parent, opened)
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        if mounted := mounts_below(top.joinpath(*above, name), mount_table()):
            raise OSError(errno.EBUSY, f"something is mounted at {mounted[0]}")
        folder = _open(name, parent, opened)
        if aside:
            marker = os.open(MARKER, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, dir_fd=folder)
            opened.callback(os.close, marker)
            os.write(marker, _CONTENT)
            with contextlib.suppress(OSError):  # a killed build left a folder of that name
                os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
                name = aside
        for child in sorted(os.listdir(folder), key=lambda n: n == MARKER):  # noqa: PTH208 (a descriptor)
            if stat.S_ISDIR(os.stat(child, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(child, dir_fd=folder)
            else:
                os.unlink(child, dir_fd=folder)
        os.rmdir(name, dir_fd=parent)


def mounts_below(folder: Path, table: str) -> list[str]:
    """Return the mount points below a folder; `table` has the format of `/proc/self/mountinfo`."""
    points = (line.split(" ", 5)[4] for line in table.split("\n") if line.count(" ") > 4)
    plain = (re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), p) for p in points)
    return [point for point in plain if point.startswith(f"{folder}/")]


def mount_table() -> str:
    """Return the mount table; empty if the system does not provide it."""
    with contextlib.suppress(OSError):
        return os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    return ""


def _open(name: str, within: int | None, opened: contextlib.ExitStack) -> int:
    descriptor = os.open(name, _FOLDER, dir_fd=within)
    opened.callback(os.close, descriptor)
    return descriptor
