"""Fetch everything that detection reads, once, from the machine or a recorded tree.

Each topic knows its own files (`read` in its module); this module knows the topics.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from envbuilder.host import system as system_facts
from envbuilder.host.cpu import cpu
from envbuilder.host.engines import engines
from envbuilder.host.gpus import amd, apple, intel, nvidia, pci
from envbuilder.host.memory import memory
from envbuilder.host.snapshot import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.host.snapshot import Snapshot, System

_SYSTEMS: dict[str, System] = {"linux": "linux", "darwin": "macos"}
_LINUX = (system_facts, cpu, memory, pci, nvidia, intel, amd)


def fetch(root: Path, *, full: bool = False) -> Snapshot:
    """Read the machine (`root` is "/") or a recorded tree.

    `full` also runs commands, for facts that no file contains; without it, no process is started
    on Linux.
    """
    reader = Reader(root)
    system = _system(reader)
    if system == "linux":
        for topic in _LINUX:
            topic.read(reader)
    elif system == "macos":
        apple.read(reader, full=full)
    if system != "other":
        engines.read(reader, full=full)
    return reader.snapshot(system)


def _system(reader: Reader) -> System:
    if reader.live:
        return _SYSTEMS.get(sys.platform, "other")
    if (reader.root / "sysctl.txt").is_file():
        return "macos"
    linux = any((reader.root / name).is_dir() for name in ("proc", "sys", "dev"))
    return "linux" if linux else "other"
