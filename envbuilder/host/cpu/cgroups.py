"""Read the CPU and memory limits of this process's cgroup.

`payload.machine.threads` locates the limits, so that an image's entrypoint finds the same ones.
Limits of groups above a container's namespace are never visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.host.text import integer
from envbuilder.payload.machine import threads

if TYPE_CHECKING:
    from envbuilder.host.snapshot import Reader, Snapshot

_CGROUP = "proc/self/cgroup"
_MOUNTS = "proc/self/mountinfo"
_FILES = {
    ("cpu", 1): ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ("cpu", 2): ("cpu.max",),
    ("memory", 1): ("memory.limit_in_bytes",),
    ("memory", 2): ("memory.max",),
}


def read(reader: Reader) -> None:
    """Read the cgroups of this process, where they are mounted, and their limits."""
    cgroups, mounts = reader.file(_CGROUP), reader.file(_MOUNTS)
    for controller in ("cpu", "memory"):
        for folder, version in threads.cgroup_folders(cgroups or "0::/", mounts or "", controller):
            for name in _FILES[controller, version]:
                reader.file(f"{folder}/{name}")


def quota(snapshot: Snapshot) -> float | None:
    """Return the tightest quota, in CPUs, of this process's cgroup and its parents, if any."""
    quotas = []
    for folder, version in _folders(snapshot, "cpu"):
        texts = [snapshot.files.get(f"{folder}/{name}", "") for name in _FILES["cpu", version]]
        quotas.append(threads.parse_cfs(*texts) if version == 1 else threads.parse_cpu_max(*texts))
    return min((value for value in quotas if value is not None), default=None)


def memory(snapshot: Snapshot) -> int | None:
    """Return the tightest limit, in bytes, of this process's cgroup and its parents, if any."""
    limits = []
    for folder, version in _folders(snapshot, "memory"):
        (name,) = _FILES["memory", version]
        # No limit: "max" in version 2, 2**63 minus a page in version 1; `integer` rejects both.
        limits.append(integer(snapshot.files.get(f"{folder}/{name}")))
    return min((value for value in limits if value is not None), default=None)


def unreadable(snapshot: Snapshot) -> tuple[str, str] | None:
    """Return a file with limits that exists but cannot be read, and why."""
    names = {name for both in _FILES.values() for name in both}
    for path, why in snapshot.unreadable.items():
        if path.startswith("sys/fs/cgroup/") and path.rpartition("/")[2] in names:
            return path, why
    return None


def _folders(snapshot: Snapshot, controller: str) -> list[tuple[str, int]]:
    cgroups = snapshot.files.get(_CGROUP) or "0::/"
    return threads.cgroup_folders(cgroups, snapshot.files.get(_MOUNTS, ""), controller)
