"""Record the data that detection reads as a tree of files, for `envbuilder detect --root`.

Data that identifies a machine or its users is left out or replaced: serial numbers, UUIDs,
container ids, MAC addresses, host and user names, group members, and strings from the firmware.
"""

from __future__ import annotations

import base64
import getpass
import json
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from envbuilder.core import files
from envbuilder.core.errors import InvalidError
from envbuilder.host import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from envbuilder.host.snapshot import Snapshot

PLANTED = ("files", "binary", "links", "folders", "nodes")
"""The parts of a host in `tests/data/hosts` that are written to disk as a tree."""
_DEVICES = "sys/bus/pci/devices"
_PLUGINS = "usr/local/lib/docker/cli-plugins"
# Names that say nothing about a machine or a person, and are words of other files.
_PLAIN = frozenset({"", "root", "localhost", "user", "docker", "linux", "nvidia", "none", "vm"})

# What a recording keeps of files that tell more than detection reads, line by line.
_KEPT = {
    "proc/self/status": re.compile(r"Cpus_allowed_list"),
    "proc/self/mountinfo": re.compile(r".* (/dev/shm|/sys/fs/cgroup\S*) "),
    "information": re.compile(r"Model|Bus Location|Device Minor"),
    "etc/os-release": re.compile(r"PRETTY_NAME|ID="),
    "proc/meminfo": re.compile(r"MemTotal"),
    "etc/group": re.compile(r"(video|render|docker):"),
    "proc/cpuinfo": re.compile(
        r"$|processor|vendor_id|cpu (family|cores)|model|stepping|physical id|siblings|core id"
        r"|flags|BogoMIPS|Features|CPU|hart|isa"
    ),
}
_BUILDER = re.compile(r"\([^ ()]+@[^ ()]+\)")
_MEMBERS = re.compile(r"^(render|video|docker):(.*):.*$", re.MULTILINE)
_MAC = re.compile(r"(?i)(?<![0-9a-f:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![0-9a-f:])")
# Wherever they stand: of "pod0123…" the "d" is a digit, too.
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}")
_IDENTITY = re.compile(r"(?i)[0-9a-f]{32,}")
# Structures of the firmware's table that detection reads: the BIOS, memory, the end. Others hold
# the machine's UUID and serial numbers.
_READ_KINDS = frozenset({0, 16, 17, 127})
_MEMORY_DEVICE = 17


class Scrubber:
    """A scrubber that replaces identifying values; equal values get equal replacements."""

    def __init__(self, names: Iterable[str] = (), home: str = "") -> None:
        self._stand_ins: dict[str, str] = {}
        self._home = home.strip("/")
        words = sorted({name for name in names if name.lower() not in _PLAIN}, key=len)
        either = "|".join(map(re.escape, reversed(words)))
        self._names = re.compile(rf"(?<![0-9A-Za-z])(?:{either})(?![0-9A-Za-z])") if words else None

    def public(self, text: str) -> str:
        """Return a text or path with all identifying values replaced."""
        if self._home and self._home != "root":
            text = re.sub(rf"(?<![^/\s\"']){re.escape(self._home)}(?![^/\s\"'])", "home/user", text)
        text = _BUILDER.sub("(build@host)", text)
        text = _MEMBERS.sub(r"\1:\2:", text)
        text = _MAC.sub("00:00:00:00:00:00", text)
        text = _UUID.sub(self._numbered("00000000-0000-0000-0000-{:012x}"), text)
        text = _IDENTITY.sub(self._numbered("{:012x}"), text)
        if self._names:
            return self._names.sub("name", text)
        return text

    def _numbered(self, form: str) -> Callable[[re.Match[str]], str]:
        def stand_in(match: re.Match[str]) -> str:
            key = match[0].lower().replace("_", "-")
            return self._stand_ins.setdefault(key, form.format(len(self._stand_ins) + 1))

        return stand_in

    def home_plugin(self, path: str) -> str:
        """Return the path under which the recorded tree contains a plugin.

        A plugin below the user's home is moved to the folder in which each replay looks for
        plugins. Other paths are unchanged.
        """
        inside = f"{self._home}/.docker/cli-plugins/"
        if path.startswith(inside):
            return f"{_PLUGINS}/{path.removeprefix(inside)}"
        return path


def this_machine() -> Scrubber:
    """Return a scrubber for this machine's name, the user's name and the user's home folder."""
    node = os.uname().nodename
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        user = ""
    home = os.path.expanduser("~")  # noqa: PTH111 (Path.home may raise)
    return Scrubber((node, node.partition(".")[0], user), home)


def _above(paths: Iterable[str]) -> set[str]:
    """Return all parent folders of the given paths."""
    folders: set[str] = set()
    for path in paths:
        folders.update(map(str, PurePosixPath(path).parents))
    return folders


def recording(taken: Snapshot, scrubber: Scrubber) -> dict[str, Any]:
    """Return the snapshot's data by kind (see `PLANTED`), without values that identify the host."""

    def place(path: str) -> str:
        return scrubber.public(scrubber.home_plugin(path))

    files = {
        place(path): scrubber.public(reduced(path, text)) for path, text in taken.files.items()
    }
    if taken.machine:
        files.setdefault("proc/sys/kernel/arch", f"{taken.machine}\n")
    closed = {path for path, reason in taken.unreadable.items() if reason != "not there"}
    tops = {path.partition("/")[0] for path in taken.absent if "/" in path}
    paths = set()
    for folder, names in taken.folders.items():
        if folder not in {"dev", "sys/bus", _DEVICES}:
            paths |= {f"{folder}/{name}" for name in names}
    planted = [*files, *taken.links, *taken.nodes, *taken.blobs]
    # What only had to be there is "", also where it is a folder of something else.
    above = _above(planted)
    files = {path: text for path, text in files.items() if text or path not in above}
    folders = set(map(place, (*taken.folders, *closed, *paths, *tops)))
    for path in planted:
        folders = {folder for folder in folders if not f"{path}/".startswith(f"{folder}/")}
    return {
        "files": files,
        "binary": {p: base64.b64encode(nameless(b)).decode() for p, b in taken.blobs.items()},
        "links": dict(taken.links),
        "nodes": dict(taken.nodes),
        "folders": sorted(folders),
    }


def reduced(path: str, text: str) -> str:
    """Return a file's text, reduced to the lines that detection reads.

    If detection reads all lines, the text is unchanged.
    """
    for end, pattern in _KEPT.items():
        if path.endswith(end):
            return "".join(filter(pattern.match, text.splitlines(keepends=True)))
    return text


def nameless(table: bytes) -> bytes:
    """Return an SMBIOS table with all strings except the names of memory slots replaced by "x".

    Structures that detection does not read are reduced to their headers, because they contain the
    machine's UUID.
    """
    parts = []
    for structure in memory.structures(table):
        device = structure.kind == _MEMORY_DEVICE
        slot_strings = {structure.number(0x10, 1), structure.number(0x11, 1)} if device else set()
        strings = [
            s if i + 1 in slot_strings else b"x" for i, s in enumerate(structure.strings) if s
        ]
        data = structure.data
        if structure.kind not in _READ_KINDS:
            data = data[:4] + bytes(len(data) - 4)
        parts.append(data + b"".join(s + b"\0" for s in strings or [b""]) + b"\0")
    return b"".join(parts)


def write(folder: Path, taken: Snapshot, scrubber: Scrubber) -> int:
    """Write a snapshot as a tree into a new or empty folder; return the number of files written.

    Raise `InvalidError` if the folder cannot be used.
    """
    data = recording(taken, scrubber)
    with files.explained(folder, done="written"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InvalidError(f"{folder} is not empty", "Name a folder that does not exist yet.")
        plant(folder, data)
    return sum(len(data[key]) for key in PLANTED if key != "folders")


def plant(root: Path, data: dict[str, Any]) -> Path:
    """Write a host's recorded data as a tree of files below `root`, and return `root`."""
    for path, target in sorted(data.get("links", {}).items()):
        _at(root, path).symlink_to(target)
    for path, text in data.get("files", {}).items():
        _at(root, path).write_text(text if isinstance(text, str) else json.dumps(text))
    for path, text in data.get("binary", {}).items():
        _at(root, path).write_bytes(base64.b64decode(text))
    for path in data.get("folders", ()):
        (root / path).mkdir(parents=True, exist_ok=True)
    for path, readable in data.get("nodes", {}).items():
        _at(root, path).touch()
        (root / path).chmod(0o644 if readable else 0)
    return root


def _at(root: Path, path: str) -> Path:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    return root / path
