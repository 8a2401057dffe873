"""Memory: the peak of a run, free memory, cache sizes, and /dev/shm."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Optional, Tuple

from .accelerators import ACCELERATORS
from .threads import allowed_cpus, cgroup_folders, parse_cpu_list

ROOT = Path("/")
SHARED = Path("/dev/shm")  # noqa: S108 - inspected, nothing is written there
SMALL_SHARED = 1 << 30
"""Bytes of /dev/shm below which data loader workers run out of it; Docker gives 64 MiB."""
_CGROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}
"""Version → the files of a cgroup's limit and of what it uses."""
_BYTES = re.compile(r"[0-9]{1,19}\Z")


def peak_bytes(torch: Any, accelerator: str) -> Optional[int]:
    """Return torch's peak memory on the accelerator; on the CPU, the peak size of the process."""
    if accelerator == "cpu":
        return process_peak()
    row = ACCELERATORS[accelerator]
    return row.counted(torch, row.peak)


def process_peak(status: Path = Path("/proc/self/status")) -> Optional[int]:
    """Return the peak resident size of this process in bytes; None if the system has no record."""
    # getrusage is the fallback: on Linux its value survives exec, so it may be the parent's.
    match = re.search(r"^VmHWM:\s+(\d+) kB$", _read(status), re.MULTILINE)
    if match:
        return int(match.group(1)) * 1024
    try:
        import resource
    except ImportError:
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def available_bytes(root: Path = ROOT) -> Optional[int]:
    """Return the bytes this process may still allocate, by the system and each of its cgroups."""
    limits = []
    match = re.search(
        r"^MemAvailable:\s+([0-9]{1,15}) kB$", _read(root / "proc/meminfo"), re.MULTILINE
    )
    if match:
        limits.append(int(match.group(1)) * 1024)
    cgroups = _read(root / "proc/self/cgroup") or "0::/"
    mounts = _read(root / "proc/self/mountinfo")
    for folder, version in cgroup_folders(cgroups, mounts, "memory"):
        limit, used = (_read(root / folder / name).strip() for name in _CGROUP_FILES[version])
        if _BYTES.match(limit) and _BYTES.match(used):
            limits.append(max(0, int(limit) - int(used)))
    return min(limits) if limits else None


def cache_bytes(root: Path = ROOT) -> Optional[int]:
    """Return the bytes of last-level cache of the CPUs this process may use; None if unknown."""
    caches = {}
    for cpu in allowed_cpus():
        folders = (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")
        levels = {_read(folder / "level").strip(): folder for folder in folders}
        if not levels:
            continue
        last = levels[max(levels)]
        size = re.fullmatch(r"([0-9]{1,9})K", _read(last / "size").strip())
        shared = parse_cpu_list(_read(last / "shared_cpu_list"))
        if size:
            caches[shared or frozenset({cpu})] = int(size.group(1)) * 1024
    return sum(caches.values()) or None


def shared_problem(folder: Path = SHARED) -> Tuple[Optional[str], str]:
    """Return what will fail for lack of shared memory (None: nothing), and how much there is.

    The payload itself needs none. DataLoader workers and NCCL do.
    """
    advice = "DataLoader workers and NCCL need it (Docker: --shm-size 1g or --ipc host)"
    if not sys.platform.startswith("linux"):
        return None, "this system has no /dev/shm and needs none"
    if not folder.is_dir():
        return f"there is no {folder}; {advice}", ""
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written; {advice}", ""
    free = shutil.disk_usage(folder).free
    text = f"{folder} has {free / (1 << 20):.0f} MiB free"
    small = f"; {advice}" if free < SMALL_SHARED else ""
    return None, text + small


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
