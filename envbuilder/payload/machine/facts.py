"""Facts about this interpreter, its torch and this process, collected without any training."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from pathlib import Path
from typing import Any, Dict, Optional

from .threads import read_text

IMPORTED = time.monotonic()

EXTENSIONS = {
    "zentorch": "zentorch",
    "ipex": "intel_extension_for_pytorch",
    "zentf": "zentf",
}
"""Name on the command line → module and distribution name."""
EXTENDED = {"zentf": "tensorflow"}
"""Extension → the framework that it extends, unless that is torch."""


def platform_facts() -> Dict[str, str]:
    """Return Python's version and the platform (operating system and machine type)."""
    system = platform.system().lower()
    machine = platform.machine().lower()
    return {"python": platform.python_version(), "platform": f"{system}/{machine}"}


def load_extension(name: str) -> Any:
    """Import an extension into this process and return it.

    ``torch_checks.check_extension`` must have accepted the extension before.
    """
    return importlib.import_module(EXTENSIONS[name])


def installed(distribution: str) -> Optional[str]:
    """Return the version of an installed distribution, or None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def allocator(maps: Path = Path("/proc/self/maps")) -> str:
    """Return the path of the allocator library preloaded in this process, or "libc"."""
    match = re.search(
        r"(\S*lib(?:tcmalloc|jemalloc|mimalloc)[^\s/]*\.so\S*)$", read_text(maps), re.MULTILINE
    )
    return match.group(1) if match else "libc"


def seconds_since_start() -> float:
    """Return the seconds since this process was created.

    If that is unknown, return the seconds since this module was imported.
    """
    created = parse_age(read_text(Path("/proc/self/stat")))
    return time.monotonic() - IMPORTED if created is None else created


def parse_age(stat: str) -> Optional[float]:
    """Return a process's age in seconds, with a resolution of 10 ms, or None if it is unknown.

    ``stat`` is the content of ``/proc/PID/stat``.
    """
    try:
        # The second field, the command's name, may have spaces and parentheses; starttime is the
        # 22nd field, so the 20th after the name. It counts clock ticks since boot. (proc(5))
        started = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError, IndexError, ValueError):
        return None
