"""Digest of a folder tree: of its contents, not of times, owners or how they are stored.

Bytecode (`__pycache__`) is left out: interpreters write it as they run.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.core import decoding, parallel
from envbuilder.core.files import file_sha256

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_SHARE = 64
"""Files that a thread hashes at a time: a job for each of 15,000 files costs as much as hashing."""
_PACKAGES = ("site-packages", "dist-packages")
"""Folders in a library that hold installed packages: no virtual environment sees them."""
Kind = Literal["file", "executable", "link", "folder", "other"]


class Entry(Struct, frozen=True, array_like=True, order=True):
    """One entry of a tree; `content` is a file's sha256 or `identity`, or a link's target."""

    path: str
    """Relative to the root, with slashes; absolute for what is outside of it."""
    kind: Kind
    content: str = ""


def read(root: Path, skip: Collection[str] = ()) -> tuple[Entry, ...]:
    """Return the entries below a folder, sorted by path, without the paths in `skip`.

    Links are not followed. Raises `OSError` for what cannot be read.
    """
    return hashed(root, walk(root, skip))


def walk(root: Path, skip: Collection[str] = (), outside: Iterable[str] = ()) -> tuple[Entry, ...]:
    """Return the entries as `read` does, but with the identity of each file in place of its hash.

    `outside` are libraries and programs elsewhere, some of which may not exist: the contents of
    these folders, without installed packages, and these files. Links to files count as the files.
    """
    entries = list(_walk(root, frozenset(skip)))
    for path in map(Path, outside):
        if path.is_dir():
            packages = frozenset(str(path / name) for name in _PACKAGES)
            entries += _walk(Path("/"), packages, f"{path}/", follow=True)
        elif path.is_file():
            entries.append(_file(str(path), path.stat()))
    return tuple(sorted(entries))


def hashed(root: Path, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return the entries with each file's sha256, as `read` does."""
    files = [root / entry.path for entry in entries if _is_file(entry)]
    shares = [files[start : start + _SHARE] for start in range(0, len(files), _SHARE)]
    # Threads pay off: hashing releases the GIL.
    with parallel.pool() as pool:
        hashes = chain.from_iterable(pool.map(_hashed, shares))
        return tuple(Entry(e.path, e.kind, next(hashes)) if _is_file(e) else e for e in entries)


def _hashed(files: Iterable[Path]) -> list[str]:
    return [file_sha256(path) for path in files]


def _is_file(entry: Entry) -> bool:
    return entry.kind in {"file", "executable"}


def _file(path: str, status: os.stat_result) -> Entry:
    # A write changes the ctime, and no program can set it: unlike size and mtime it tells.
    identity = f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    return Entry(path, "executable" if status.st_mode & stat.S_IXUSR else "file", identity)


def _walk(
    root: Path, skip: frozenset[str], below: str = "", *, follow: bool = False
) -> Iterator[Entry]:
    with os.scandir(root / below) as entries:
        for entry in entries:
            path = f"{below}{entry.name}"
            if path in skip or entry.name == "__pycache__":
                continue
            status = entry.stat(follow_symlinks=follow and entry.is_file())
            mode = status.st_mode
            if stat.S_ISLNK(mode):
                yield Entry(path, "link", str(Path(entry.path).readlink()))
            elif stat.S_ISDIR(mode):
                yield Entry(path, "folder")
                yield from _walk(root, skip, f"{path}/", follow=follow)
            elif stat.S_ISREG(mode):
                yield _file(path, status)
            else:
                yield Entry(path, "other")


def dump(entries: Iterable[Entry]) -> str:
    """Return entries as text, one JSON array a line; names that are not UTF-8 are escaped."""
    return "".join(json.dumps([e.path, e.kind, e.content]) + "\n" for e in entries)


def parse(text: str) -> tuple[Entry, ...]:
    """Return the entries in a text of `dump`; raise `ValueError` for any other text."""
    try:
        return tuple(decoding.convert(json.loads(line), Entry) for line in text.splitlines())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def digest(entries: Iterable[Entry]) -> str:
    """Return the sha256 over all entries, as "sha256:…"."""
    return f"sha256:{hashlib.sha256(dump(entries).encode()).hexdigest()}"


class Difference(Struct, frozen=True):
    """A path that differs between two trees."""

    path: str
    how: Literal["changed", "added", "missing"]

    def __str__(self) -> str:
        return f"{self.path} ({self.how})"


def differences(before: Iterable[Entry], after: Iterable[Entry]) -> tuple[Difference, ...]:
    """Return the differences between two trees, sorted by path."""
    old, new = ({e.path: e for e in entries} for entries in (before, after))
    return tuple(
        Difference(
            path, "missing" if path not in new else "added" if path not in old else "changed"
        )
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    )
