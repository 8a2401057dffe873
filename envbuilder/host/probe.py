"""Read this machine, or a recorded tree, into a `Host`.

Everything is read once, into a snapshot: each topic knows its own files (`read` in its module), and
this module knows the topics. `system` decides from that data alone, so a recorded tree gives the
same answer anywhere.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.host import cpu, engines, memory, system as system_facts
from envbuilder.host.gpus import amd, apple, intel, nvidia, pci
from envbuilder.host.snapshot import Reader, Snapshot, System

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.host.model import Host

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


def host(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None, *, full: bool = False
) -> Host:
    """Return this machine's host, or a recorded tree's (`proc/ sys/ dev/ nvml.json sysctl.txt`).

    Start no process on Linux, unless `full` requests what only commands can report. `environ`
    defaults to this process's environment, or to an empty one for a recorded tree.
    """
    taken = fetch(root, full=full)
    if environ is None:
        environ = os.environ if taken.live else {}
    return system_facts.decide(taken, environ)
