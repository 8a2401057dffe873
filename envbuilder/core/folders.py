"""Pack a folder as a reproducible tar archive.

The entries are sorted by path and contain neither times nor owners.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from envbuilder.core import archives, publishable
from envbuilder.core.errors import InvalidError, escaped, shown
from envbuilder.core.settings import LOCKS

LARGEST = 2 << 30
"""Maximum total size in bytes of the files in a folder."""
_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", ".envbuilder", ".venv", "venv", LOCKS})
"""Names of folders that are never included in an archive."""


class _Hashed:
    """Writer that hashes all data and, if it has a stream, also writes the data to the stream."""

    def __init__(self, stream: BinaryIO | None) -> None:
        self.sha256 = hashlib.sha256()
        self._stream = stream

    def write(self, data: bytes) -> None:
        self.sha256.update(data)
        if self._stream:
            self._stream.write(data)


def within(project: Path, path: str) -> Path:
    """Return the folder at `path`, which is relative to the project.

    Raise `InvalidError` if the folder is missing or is outside the project.
    """
    try:
        folder = (project / path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidError(f"{escaped(path)}: no such folder in the project") from error
    if not folder.is_relative_to(project.resolve()) or not folder.is_dir():
        raise InvalidError(f"{escaped(path)}: not a folder inside the project")
    return folder


def pack(folder: Path, what: str, stream: BinaryIO | None = None, *, local: bool) -> str:
    """Pack a folder as a tar archive, write it to `stream` if given, and return its sha256.

    `what` is the name of the folder in messages. `local` means that the folder belongs to the
    user's own project and is not a fresh clone.
    """
    hashed = _Hashed(stream)
    left = LARGEST
    to = cast("BinaryIO", hashed)
    with tarfile.open(fileobj=to, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(_files(folder, what, local=local)):
            info = tarfile.TarInfo(path)
            status = (folder / path).lstat()
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(folder / path)  # noqa: PTH115 (as it is)
                if archives.leads_out(path, target):
                    raise InvalidError(f"{what}: {shown(path)} links to a path outside the folder")
                info.type = tarfile.SYMTYPE
                info.linkname = target
                info.mode = 0o777
                tar.addfile(info)
                continue
            left -= status.st_size
            if left < 0:
                raise InvalidError(f"{what}: is larger than {LARGEST >> 30} GiB")
            info.size = status.st_size
            info.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
            with (folder / path).open("rb") as content:
                tar.addfile(info, content)
    return hashed.sha256.hexdigest()


def _files(folder: Path, what: str, *, local: bool) -> Iterator[str]:
    """Yield the relative paths of the files and links to pack.

    In a `local` folder, only files that git tracks are packed, so that a clone yields the same
    files. If git tracks no files, all files are packed. Files that no image may contain, such as
    credentials, keys and caches, are skipped. Raise `InvalidError` if there are more than
    `archives.MOST_FILES` files.
    """
    tracked = publishable.tracked(folder) if local else frozenset[str]()
    count = 0
    for above, folders, names in os.walk(folder):
        inside = Path(above).relative_to(folder)
        links = [name for name in folders if (Path(above) / name).is_symlink()]
        folders[:] = [n for n in folders if n not in {*_SKIPPED, *links} and ".egg-info" not in n]
        if local:
            folders[:] = [n for n in folders if not publishable.is_litter(Path(above) / n)]
        for name in (*names, *links):
            path = Path(above) / name
            regular = stat.S_ISREG(path.lstat().st_mode) or path.is_symlink()
            if name == ".git" or name.endswith(".pyc") or not regular:
                continue
            relative = (inside / name).as_posix()
            if local and (publishable.is_litter(path) or (tracked and relative not in tracked)):
                continue
            count += 1
            if count > archives.MOST_FILES:
                raise InvalidError(f"{what}: has more than {archives.MOST_FILES} files")
            yield relative
