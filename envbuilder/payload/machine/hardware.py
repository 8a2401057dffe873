"""The machine's processor, memory and GPU drivers, and this process's memory, without torch."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from ..report import PASSED, WARNING
from .threads import allowed_cpus, cgroup_folders, parse_cpu_list, read_text

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


def describe_cpu(capability: Optional[str] = None) -> Dict[str, Any]:
    """Describe the CPU in the format that the report uses for devices."""
    return {
        "name": cpu_name(),
        "memory_bytes": physical_memory(),
        "driver": None,
        "capability": capability,
    }


def cpu_name() -> str:
    """Return the processor's marketing name."""
    match = re.search(r"^model name\s*:\s*(.+)$", read_text(Path("/proc/cpuinfo")), re.MULTILINE)
    if match:
        return match.group(1).strip()
    try:
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return platform.processor() or platform.machine()


def physical_memory() -> Optional[int]:
    """Return the size of main memory in bytes, or None if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def nvidia_driver(version: Path = Path("/proc/driver/nvidia/version")) -> Optional[str]:
    """Return the version of NVIDIA's kernel driver, or None if there is none.

    It is read from /proc or, where that lacks it (for example on WSL), from NVML.
    """
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)", read_text(version))
    return match.group(1) if match else _nvml_driver()


def amdgpu_driver(module: Path = Path("/sys/module/amdgpu")) -> Optional[str]:
    """Return the version of AMD's kernel driver, or None if the driver is not loaded.

    If the driver has no version of its own, Linux's version is returned.
    """
    # Only AMD's packages of the driver have a version of their own.
    version = read_text(module / "version").strip()[:40]
    return version or (f"of Linux {platform.release()}" if module.is_dir() else None)


def _nvml_driver() -> Optional[str]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        buffer = ctypes.create_string_buffer(80)
        if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(buffer, len(buffer)):
            return None
        return buffer.value.decode() or None
    except (OSError, AttributeError):
        return None


# ---- memory


def process_peak(status: Path = Path("/proc/self/status")) -> Optional[int]:
    """Return the peak resident size of this process in bytes, or None if it is not recorded."""
    # getrusage is the fallback: on Linux its value survives exec, so it may be the parent's.
    match = re.search(r"^VmHWM:\s+(\d+) kB$", read_text(status), re.MULTILINE)
    if match:
        return int(match.group(1)) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def available_bytes(root: Path = ROOT) -> Optional[int]:
    """Return how many more bytes the system and this process's cgroups let it allocate."""
    system = re.findall(
        r"^MemAvailable:\s+([0-9]{1,15}) kB$", read_text(root / "proc/meminfo"), re.MULTILINE
    )
    limits = [int(kibibytes) * 1024 for kibibytes in system]
    cgroups = read_text(root / "proc/self/cgroup") or "0::/"
    mounts = read_text(root / "proc/self/mountinfo")
    for folder, version in cgroup_folders(cgroups, mounts, "memory"):
        limit, used = (read_text(root / folder / name).strip() for name in _CGROUP_FILES[version])
        if _BYTES.match(limit) and _BYTES.match(used):
            limits.append(max(0, int(limit) - int(used)))
    return min(limits, default=None)


def cache_bytes(root: Path = ROOT) -> Optional[int]:
    """Return the total size in bytes of the last-level caches of the CPUs this process may use.

    Return None if the size is unknown.
    """
    caches = {}
    for cpu in allowed_cpus():
        folders = (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")
        levels = {read_text(folder / "level").strip(): folder for folder in folders}
        if not levels:
            continue
        last = levels[max(levels)]
        size = re.fullmatch(r"([0-9]{1,9})K", read_text(last / "size").strip())
        shared = parse_cpu_list(read_text(last / "shared_cpu_list"))
        if size:
            caches[shared or frozenset({cpu})] = int(size.group(1)) * 1024
    return sum(caches.values()) or None


def check_shared_memory(folder: Path = SHARED) -> Tuple[str, str]:
    """Check that the workers of data loaders can use /dev/shm. Return a warning if they cannot.

    The payload itself does not need /dev/shm.
    """
    advice = "DataLoader workers and NCCL need it (Docker: --shm-size 1g or --ipc host)"
    if not sys.platform.startswith("linux"):
        return PASSED, "this system has no /dev/shm and needs none"
    if not folder.is_dir():
        return WARNING, f"there is no {folder}; {advice}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return WARNING, f"{folder} cannot be written; {advice}"
    free = shutil.disk_usage(folder).free
    text = f"{folder} has {free / (1 << 20):.0f} MiB free"
    return PASSED, f"{text}; {advice}" if free < SMALL_SHARED else text
