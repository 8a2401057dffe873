"""A folder tree as a digest: what lies in it, not when or by whom it was written, or how stored.

Bytecode (`__pycache__`) is left out: interpreters write it as they go.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from envbuilder.core.files import file_sha256

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

Kind = Literal["file", "executable", "link", "folder", "other"]


class Entry(Struct, frozen=True, array_like=True, order=True):
    """One thing in a tree; `content` is a file's sha256, or where a link points."""

    path: str
    """Below the root, with slashes."""
    kind: Kind
    content: str = ""


def read(root: Path, skip: Collection[str] = ()) -> tuple[Entry, ...]:
    """What lies below a folder, sorted by path, without the paths named in `skip`.

    Links are not followed. Raises `OSError` for what cannot be read.
    """
    found = sorted(_walk(root, frozenset(skip)))
    # Hashing lets other threads run.
    with ThreadPoolExecutor() as pool:
        hashes = pool.map(file_sha256, [root / e.path for e in found if _is_file(e)])
        return tuple(Entry(e.path, e.kind, next(hashes)) if _is_file(e) else e for e in found)


def _is_file(entry: Entry) -> bool:
    return entry.kind in {"file", "executable"}


def _walk(root: Path, skip: frozenset[str], below: str = "") -> Iterator[Entry]:
    with os.scandir(root / below) as entries:
        for entry in entries:
            path = f"{below}{entry.name}"
            if path in skip or entry.name == "__pycache__":
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                yield Entry(path, "link", str(Path(entry.path).readlink()))
            elif stat.S_ISDIR(mode):
                yield Entry(path, "folder")
                yield from _walk(root, skip, f"{path}/")
            elif stat.S_ISREG(mode):
                yield Entry(path, "executable" if mode & stat.S_IXUSR else "file")
            else:
                yield Entry(path, "other")


def dump(entries: Iterable[Entry]) -> str:
    """Entries as text, one JSON array a line; names that are no UTF-8 are escaped."""
    return "".join(json.dumps([e.path, e.kind, e.content]) + "\n" for e in entries)


def parse(text: str) -> tuple[Entry, ...]:
    """The entries of `dump`; `ValueError` for anything else."""
    return tuple(msgspec.convert(json.loads(line), Entry) for line in text.splitlines())


def digest(entries: Iterable[Entry]) -> str:
    """sha256 over all entries, as "sha256:…"."""
    return f"sha256:{hashlib.sha256(dump(entries).encode()).hexdigest()}"


class Difference(Struct, frozen=True):
    """A path that differs between two trees."""

    path: str
    how: Literal["changed", "added", "missing"]

    def __str__(self) -> str:
        return f"{self.path} ({self.how})"


def differences(before: Iterable[Entry], after: Iterable[Entry]) -> tuple[Difference, ...]:
    """What is not the same in two trees, sorted by path."""
    old, new = ({e.path: e for e in entries} for entries in (before, after))
    return tuple(
        Difference(
            path, "missing" if path not in new else "added" if path not in old else "changed"
        )
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    )
