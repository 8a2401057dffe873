"""Decide what the CPU is and how much of it this process may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.detection import tables
from envbuilder.detection.text import clean, cpu_list, fields, integer, lines
from envbuilder.host import TRACKED_FLAGS, Cpu
from envbuilder.payload import threads

if TYPE_CHECKING:
    from envbuilder.detection.snapshot import Snapshot

_TOPOLOGY = "sys/devices/system/cpu"
_ARM = {0x41: "ARM", 0x4E: "NVIDIA", 0x61: "Apple", 0xC0: "Ampere"}


def machine(snapshot: Snapshot) -> str:
    """The architecture: uname's, the kernel's own word, or what `/proc/cpuinfo` looks like."""
    said = snapshot.machine or clean(snapshot.files.get("proc/sys/kernel/arch"))
    if said:
        return {"amd64": "x86_64"}.get(said, said)
    known = fields(snapshot.files.get("proc/cpuinfo"))
    if "vendor_id" in known and "lm" in known.get("flags", "lm").split():
        return "x86_64"
    return "aarch64" if known.get("CPU architecture") == "8" else "unknown"


def linux(snapshot: Snapshot) -> Cpu:
    """The CPU of a Linux host."""
    text = snapshot.files.get("proc/cpuinfo")
    known = fields(text)
    family, model = integer(known.get("cpu family")), integer(known.get("model"))
    implementer = integer(known.get("CPU implementer"), 16)
    core = tables.arm_core(implementer, integer(known.get("CPU part"), 16))
    vendor = clean(known.get("vendor_id")) or _ARM.get(implementer or 0)
    flags = known.get("flags", known.get("Features"))
    numbers = [integer(line.partition(":")[2]) for line in lines(text) if _is_processor(line)]
    everything = frozenset(n for n in numbers if n is not None)
    affinity = cpu_list(fields(snapshot.files.get("proc/self/status")).get("Cpus_allowed_list"))
    quota = _quota(snapshot)
    physical = _physical(snapshot, affinity or everything)
    return Cpu(
        vendor=vendor,
        model_name=clean(known.get("model name")),
        family=family,
        model=model,
        generation=core or tables.x86_generation(vendor, family, model),
        flags=tuple(sorted(TRACKED_FLAGS & set(flags.split()))) if flags else None,
        logical=len(everything) or None,
        physical=_physical(snapshot, everything),
        affinity=len(affinity) if affinity else None,
        quota=quota,
        threads=_threads(len(affinity or everything), quota, physical),
    )


def _is_processor(line: str) -> bool:
    return line.partition(":")[0].strip() == "processor"


def _threads(allowed: int, quota: float | None, physical: int | None) -> int | None:
    if not allowed:
        return None
    return threads.decide(threads.CpuFacts(affinity=allowed, quota=quota, physical=physical))


def _quota(snapshot: Snapshot) -> float | None:
    """The tightest quota of this process's cgroup and its parents."""
    found = []
    for path, text in snapshot.files.items():
        if path.startswith("sys/fs/cgroup") and len(text) < 64:
            if path.endswith("/cpu.max"):
                found.append(threads.parse_cpu_max(text))
            elif path.endswith("/cpu.cfs_quota_us"):
                period = snapshot.files.get(path.replace("cfs_quota", "cfs_period"), "")
                found.append(threads.parse_cfs(text, period[:64]))
    quotas = [quota for quota in found if quota is not None]
    return min(quotas) if quotas else None


def _physical(snapshot: Snapshot, allowed: frozenset[int]) -> int | None:
    """Physical cores behind some CPUs; None where the system does not say."""
    text = "\n".join(lines(snapshot.files.get("proc/cpuinfo")))
    try:
        stated = threads.parse_cpuinfo_cores(text, allowed)
    except ValueError:
        stated = None
    if stated is not None or not allowed:
        return stated
    cores = set()
    for cpu in allowed:
        path = f"{_TOPOLOGY}/cpu{cpu}/topology/thread_siblings_list"
        siblings = cpu_list(snapshot.files.get(path))
        if siblings is None:
            return None
        cores.add(siblings)
    return len(cores)
