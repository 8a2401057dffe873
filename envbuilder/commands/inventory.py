"""The files that `envbuilder clean` may remove, listed before anything is removed.

A file counts as envbuilder's if it lies in a folder that envbuilder marked on creation, under a
name that envbuilder uses; environments and records identify themselves. Links are never followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from envbuilder.build.attestation import documents
from envbuilder.build.backends import integrity
from envbuilder.build.image import layer_cache, scratch
from envbuilder.containers.registry import base_images, blobs
from envbuilder.core import files
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import Owned
from envbuilder.host import interpreter_answers
from envbuilder.packages import mnist, store
from envbuilder.payload.machine.hardware import SHARED
from envbuilder.verify.report import history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.core.settings import Settings

LINK = "a symbolic link: what it leads to is left alone"
BUSY = "in use by another envbuilder"
FOREIGN = "not made by envbuilder"
UNMARKED = (
    "envbuilder did not make this folder, or a version that set no marker did: if all of it is"
    " envbuilder's, remove it yourself (rm -r)"
)


class Item(Struct, frozen=True):
    """A file or folder to remove, and the root below which no link is followed."""

    path: Path
    root: Path
    aside: str = ""
    """The name it is first renamed to, so that nothing uses it while it is being removed."""


class Kept(Struct, frozen=True):
    """An item that was examined and stays, and why."""

    name: str
    reason: str


OWNED = (
    store.OWNED,
    base_images.OWNED,
    layer_cache.OWNED,
    blobs.OWNED,
    mnist.OWNED,
    interpreter_answers.OWNED,
    # Written by several rooms: logs of builds, of verifications, and of `fleet join`.
    Owned(
        "logs",
        (r"_?[a-z0-9][a-z0-9-]*-[0-9a-f]{12}\.log", r"[\w.-]+-payload\.log", r".+-devices\.log"),
    ),
    Owned("uv-resolve", (".+", ".+/")),
    # Of earlier versions: look-ups work in a private folder now.
    Owned("locate", (r"\w+-\w+-3\.\d+-[a-z0-9_-]+\.txt",)),
)
"""Folders of the cache whose contents can be downloaded or made again."""


class Inventory:
    """What may be removed and what stays. While open, it holds the locks of what may be removed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._locks = contextlib.ExitStack()
        self.items: list[Item] = []
        self.staying: list[Kept] = []
        self.busy: set[str] = set()
        """Names of working folders that a running build has locked."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self._locks.close()

    def keep(self, path: Path, reason: str) -> None:
        """Record that something stays, and why."""
        self.staying.append(Kept(str(path), reason))

    def spare_mounts(self) -> None:
        """Keep the folders in which something is mounted: it may not be envbuilder's."""
        table = files.mount_table()
        items, self.items = self.items, []
        for item in items:
            if mounted := files.mounts_below(item.path.resolve(), table):
                self.keep(item.path, f"something is mounted at {mounted[0]}")
            else:
                self.items.append(item)

    # --- data

    def environments(self, profile: str | None) -> None:
        """List environments (of one profile) with the attestations next to them."""
        root = self.settings.data_dir
        for path in self._children(root, self.settings.envs_dir):
            if path.name.startswith("."):
                continue
            if path.is_symlink():
                self.keep(path, LINK)
            elif path.is_dir():
                marker = {} if (path / integrity.MARKER).is_symlink() else integrity.marker(path)
                if marker.get("made_by") != "envbuilder":
                    if profile is None:
                        self.keep(path, f"{FOREIGN}: it has no {integrity.MARKER} that says so")
                elif profile is not None and marker.get("profile") != profile:
                    continue
                elif not self._lock(path.with_name(f".{path.name}.partial.lock")):
                    self.keep(path, BUSY)
                else:
                    beside = (Path(f"{path}{end}") for end in documents.SUFFIXES.values())
                    files = [p for p in beside if p.is_file() and not p.is_symlink()]
                    self.items.append(Item(path, root, f".{path.name}.partial"))
                    self.items += [Item(p, root) for p in files]

    def reports(self, profile: str | None) -> None:
        """List kept verification reports (of one profile)."""
        folder = self.settings.reports_dir
        if self._is_ours(self.settings.data_dir, folder):
            try:
                entries = history.entries(folder, profile)
            except OSError as error:
                self.keep(folder, _unreadable(error))
                return
            for entry in entries:
                if files.is_marked(folder) or _is_report(entry.path):
                    self.items.append(Item(entry.path, self.settings.data_dir))
                else:
                    self.keep(entry.path, "not a report of envbuilder's, or damaged")

    # --- working folders

    def leftovers(self) -> Iterator[Item]:
        """Yield the working folders of killed builds; record those of running builds."""
        data, cache = self.settings.data_dir, self.settings.cache_dir
        for path in self._children(data, self.settings.envs_dir):
            if path.name.startswith(".") and path.name.endswith(".partial"):
                yield from self._leftover(path, data)
        for name in ("build", "reproduce"):
            for path in self._children(cache, cache / name):
                if path.is_symlink() or path.is_dir():
                    yield from self._leftover(path, cache)
                elif path.suffix != ".lock":
                    self.keep(path, FOREIGN)
        shared = SHARED.resolve()
        yield from [Item(path, shared) for path in scratch.left(shared)]

    def _leftover(self, path: Path, root: Path) -> Iterator[Item]:
        if path.is_symlink():
            self.keep(path, LINK)
        elif not path.is_dir():
            self.keep(path, FOREIGN)
        elif not self._lock(path.with_name(f"{path.name}.lock")):
            self.busy.add(path.name)
            self.keep(path, BUSY)
        elif files.is_marked(path):
            yield Item(path, root)
        else:
            self.keep(path, UNMARKED)

    # --- downloads and caches

    def downloads(self) -> None:
        """List what can be downloaded or made again; all of it stays while a build is running."""
        root = self.settings.cache_dir
        for owned in OWNED:
            folder = root / owned.folder
            if not self._is_ours(root, folder):
                continue
            try:
                contents = _look(folder, "", owned, marked=False)
            except (OSError, RecursionError) as error:
                self.keep(folder, _unreadable(error))
                continue
            if self.busy or any(not self._lock(lock, hold=False) for lock in contents.locks):
                self.keep(folder, BUSY)
                continue
            self.items += [Item(p, root) for p in ([folder] if contents.whole else contents.ours)]
            if contents.theirs and not contents.ours:
                self.keep(folder, UNMARKED if not files.is_marked(folder) else FOREIGN)
                continue
            for path in contents.theirs:
                self.keep(path, LINK if path.is_symlink() else FOREIGN)

    def known_files(self, folder: Path, root: Path, owned: Owned) -> list[Item]:
        """Return what is owned in a folder; the folder itself if it holds nothing else."""
        contents = _look(folder, "", owned, marked=True)
        return [Item(p, root) for p in ([folder] if contents.whole else contents.ours)]

    # --- helpers

    def _children(self, root: Path, folder: Path) -> Iterator[Path]:
        if self._is_ours(root, folder):
            try:
                yield from sorted(p for p in folder.iterdir() if p.name != files.MARKER)
            except OSError as error:
                self.keep(folder, _unreadable(error))

    def _is_ours(self, root: Path, folder: Path) -> bool:
        """Return whether the folder exists, and neither it nor its root is a symbolic link."""
        for path in (root, folder):
            if path.is_symlink():
                reason = f"{LINK} (name the folder itself: ENVBUILDER_CACHE_DIR and _DATA_DIR)"
                item = Kept(str(path), reason if path == root else LINK)
                self.staying += [item] if item not in self.staying else []
                return False
        return folder.is_dir()

    def _lock(self, path: Path, *, hold: bool = True) -> bool:
        """Take (and hold) a lock if there is one; return whether no other process has it."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:  # a symbolic link, or another user's
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        if hold:
            self._locks.callback(os.close, descriptor)
        else:
            os.close(descriptor)
        return True


class _Contents(Struct):
    """What is in a folder; `whole`: all of it is envbuilder's, and so is the folder."""

    ours: list[Path] = []
    theirs: list[Path] = []
    locks: list[Path] = []
    whole: bool = False


def _look(folder: Path, below: str, owned: Owned, *, marked: bool) -> _Contents:
    """Classify what is in a folder; `below` is its path below the first, with a trailing slash."""
    contents = _Contents()
    has_marker = files.is_marked(folder)
    marked = marked or has_marker
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        path, name = Path(entry.path), below + entry.name
        if has_marker and entry.name == files.MARKER:
            continue
        if entry.is_symlink():
            contents.theirs.append(path)
        elif entry.is_dir(follow_symlinks=False):
            if marked and owned.has(name, "whole"):
                contents.ours.append(path)
                continue
            inner = _look(path, f"{name}/", owned, marked=marked)
            contents.locks += inner.locks
            contents.ours += [path] if inner.whole else inner.ours
            if not inner.whole:
                contents.theirs += inner.theirs if inner.ours else [path]
        elif marked and owned.has(name, "file"):
            contents.ours.append(path)
            contents.locks += [path] if entry.name.endswith(".lock") else []
        else:
            contents.theirs.append(path)
    is_ours = has_marker or not below or owned.has(below.rstrip("/"), "folder")
    contents.whole = marked and is_ours and not contents.theirs
    return contents


def _unreadable(error: OSError | RecursionError) -> str:
    """Return why a folder stays that could not be read."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return "cannot be read: its folders are nested too deeply"


def _is_report(path: Path) -> bool:
    try:
        history.read(path)
    except InvalidError:
        return False
    return True
