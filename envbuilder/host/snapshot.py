"""Read each file, folder, link and device node below a root once, and parse the untrusted text.

This module does all of detection's file system access, but makes no decisions. The live root is
"/". Any other root is a recorded tree. In a recorded tree, a device node is represented by a file,
and the node counts as accessible if this file can be read.

If a top-level folder is missing (such as `sys` in some sandboxes, or in a tree recorded without
it), it is unknown whether the paths below it exist. A file that is missing below an existing
top-level folder is known to be absent.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from pathlib import Path
from typing import Literal

from msgspec import Struct

from envbuilder.core.errors import printable

_LIMIT = 1 << 20
"""Maximum number of bytes to read from a file, which comes from the kernel or an untrusted recorded
tree."""
_MOST = 1024
"""Maximum number of entries to read from a folder."""
_ALL = 64 << 20
"""Maximum number of bytes to read from all files together. A machine with 8 GPUs and 512 CPUs has 3
MB."""

System = Literal["linux", "macos", "other"]


class Snapshot(Struct, frozen=True, kw_only=True):
    """All data that was read; paths relative to the root serve as keys."""

    live: bool
    system: System
    machine: str | None = None
    """The machine name from uname on the live machine; None for a recorded tree."""
    files: dict[str, str] = {}
    folders: dict[str, tuple[str, ...]] = {}
    links: dict[str, str] = {}
    """Path of a symbolic link → the link's literal target."""
    nodes: dict[str, bool] = {}
    """Path of a device node → whether it may be opened."""
    groups: dict[str, int] = {}
    """Path of a device node → the id of the group that owns it. Filled only on the live machine."""
    blobs: dict[str, bytes] = {}
    """Path of a binary file → the file's content."""
    absent: frozenset[str] = frozenset()
    unreadable: dict[str, str] = {}
    """Path that could not be read → the reason."""

    def has(self, path: str) -> bool | None:
        """Return whether the path exists, or None if that is unknown."""
        known = (self.files, self.folders, self.links, self.nodes, self.blobs)
        if any(path in kind for kind in known):
            return True
        if path in self.absent:
            return False
        return None

    def text(self, path: str) -> str:
        """Return the text of a file, or an empty string if the file was not read."""
        return self.files.get(path, "")

    def number(self, path: str, base: int = 10) -> int | None:
        """Return the number in a file, or None if the file does not contain a valid number."""
        return integer(self.text(path), base)

    def fields(self, path: str) -> dict[str, str]:
        """Return the fields of a file that consists of `key : value` lines."""
        return fields(self.text(path))

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder, or an empty tuple if the folder was not read."""
        return self.folders.get(path, ())


class Reader:
    """A reader for the paths below one root.

    It never raises an exception. Failures are recorded with their reasons.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = root == Path("/")
        self.files: dict[str, str] = {}
        self.folders: dict[str, tuple[str, ...]] = {}
        self.links: dict[str, str] = {}
        self.nodes: dict[str, bool] = {}
        self.groups: dict[str, int] = {}
        self.blobs: dict[str, bytes] = {}
        self.absent: set[str] = set()
        self.unreadable: dict[str, str] = {}
        self._left = _ALL
        self._tops: dict[str, bool] = {}

    def file(self, path: str, limit: int = _LIMIT) -> str | None:
        """Read and record the text of a file, and return it, or None if the file cannot be read.

        At most `limit` bytes are read.
        """
        content = self._read(path, limit)
        if content is None:
            return None
        self.files[path] = content.decode("utf-8", errors="replace")
        return self.files[path]

    def blob(self, path: str, limit: int = _LIMIT) -> None:
        """Read and record the content of a binary file, up to `limit` bytes."""
        content = self._read(path, limit)
        if content is not None:
            self.blobs[path] = content

    def folder(self, path: str, most: int = _MOST) -> tuple[str, ...]:
        """Read and record the names in a folder, and return them sorted.

        Only the first `most` names are kept. The result is empty if the folder cannot be read.
        """
        try:
            # Strings, here and below: a Path costs as much as the call, and there are thousands.
            with os.scandir(f"{self.root}/{path}") as entries:
                names = tuple(heapq.nsmallest(most, (entry.name for entry in entries)))
        except (OSError, ValueError) as error:
            self._failed(path, error)
            return ()
        self.folders[path] = names
        return names

    def link(self, path: str) -> str | None:
        """Read and record a symbolic link, and return its target, or None if it cannot be read."""
        try:
            self.links[path] = os.readlink(f"{self.root}/{path}")  # noqa: PTH115
        except (OSError, ValueError) as error:
            self._failed(path, error)
            return None
        return self.links[path]

    def node(self, path: str) -> None:
        """Record whether a device node may be opened, and which group owns it."""
        full = self.root / path
        try:
            status = full.stat()
        except (OSError, ValueError) as error:
            self._failed(path, error)
            return
        if self.live:
            self.nodes[path] = os.access(full, os.R_OK | os.W_OK)
            self.groups[path] = status.st_gid
        else:
            # Root may read everything, so the mode is checked, too.
            self.nodes[path] = bool(status.st_mode & 0o444) and os.access(full, os.R_OK)

    def opened(self, path: str) -> None:
        """Record the same facts as `node`, but determine access by opening the device node.

        Use this only for nodes that can be opened without side effects. A cgroup's device rules can
        deny a container access to visible nodes, which becomes apparent only when they are opened.
        """
        self.node(path)
        if self.live and self.nodes.get(path):
            self.nodes[path] = not _kept_out(self.root / path)

    def exists(self, path: str) -> None:
        """Record whether a path exists, without reading it."""
        try:
            (self.root / path).stat()
        except (OSError, ValueError) as error:
            self._failed(path, error)
        else:
            self.files[path] = ""

    def snapshot(self, system: System) -> Snapshot:
        """Return all data that has been read so far, together with `system`, as a snapshot."""
        return Snapshot(
            live=self.live,
            system=system,
            machine=os.uname().machine if self.live else None,
            files=self.files,
            folders=self.folders,
            links=self.links,
            nodes=self.nodes,
            groups=self.groups,
            blobs=self.blobs,
            absent=frozenset(self.absent),
            unreadable=self.unreadable,
        )

    def _read(self, path: str, limit: int) -> bytes | None:
        try:
            # Non-blocking, since a recorded tree may contain a named pipe.
            descriptor = os.open(f"{self.root}/{path}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    self.unreadable[path] = "not a file"
                    return None
                if self._left <= 0:
                    self.unreadable[path] = "too much was read"
                    return None
                content = _content(descriptor, min(limit, self._left))
                self._left -= len(content)
                return content
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            self._failed(path, error)
            return None

    def _failed(self, path: str, error: OSError | ValueError) -> None:
        top, _, below = path.partition("/")
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        if missing and not (below and not self._is_top(top)):
            self.absent.add(path)
        else:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.unreadable[path] = "not there" if missing else reason or type(error).__name__

    def _is_top(self, name: str) -> bool:
        """Return whether a folder with this name is directly below the root."""
        if name not in self._tops:
            self._tops[name] = (self.root / name).is_dir()
        return self._tops[name]


def _kept_out(path: Path) -> bool:
    """Return whether permissions prevent this process from opening a device.

    Return False if opening the device fails with any other error.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _content(descriptor: int, limit: int) -> bytes:
    parts = []
    while limit > 0 and (block := os.read(descriptor, min(limit, 1 << 16))):
        parts.append(block)
        limit -= len(block)
    return b"".join(parts)


# Text from the machine or a recorded tree: it may be anything


_MAX = 2**53  # the largest that a JSON number holds exactly
_NUMBER = re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}\Z", re.ASCII)


def clean(value: str | None) -> str | None:
    """Return a value as one line of at most 120 characters, suitable for comparison and display.

    Firmware pads its strings, so each run of white space is reduced to a single space. Return None
    if nothing is left.
    """
    return " ".join(printable(value or "", 400, instead=" ").split())[:120] or None


def integer(value: str | None, base: int = 10) -> int | None:
    """Parse a non-negative integer of at most 2^53; return None for any other value.

    With base 16, the value may begin with 0x.
    """
    word = (value or "").strip()
    if not _NUMBER.match(word):
        return None
    try:
        number = int(word, base)
    except ValueError:
        return None
    if number <= _MAX:
        return number
    return None


def lines(value: str | None) -> list[str]:
    """Return the complete lines of a text.

    The last line is dropped if it does not end with a line break, since it may be cut off.
    """
    return (value or "").split("\n")[:-1]


def fields(value: str | None) -> dict[str, str]:
    """Parse `key : value` lines. If a key is repeated, the first line with the key is used."""
    values: dict[str, str] = {}
    for line in lines(value):
        key, separator, rest = line.partition(":")
        if separator:
            values.setdefault(key.strip(), rest.strip())
    return values


def cpu_list(value: str | None, most: int = 8192) -> frozenset[int] | None:
    """Parse a kernel CPU list such as "0-3,8"; return None if the value is not a CPU list."""
    cpus: set[int] = set()
    for numbers in (value or "").strip().split(","):
        first, _, last = numbers.partition("-")
        low = integer(first)
        high = integer(last or first)
        if low is None or high is None or not low <= high < most:
            return None
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def version(value: str | None) -> tuple[int, ...] | None:
    """Parse a dotted version into numbers; return None if the value is not a dotted version."""
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", value or "", re.ASCII):
        return None
    return tuple(map(int, (value or "").split(".")))
