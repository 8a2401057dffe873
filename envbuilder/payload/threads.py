"""How many threads torch should use here: fetch the facts, parse them, decide.

torch and OpenMP start one thread per CPU they see and ignore a cgroup quota, which slows work down
several times in a container with ``--cpus``; SMT siblings share one set of vector units and gain
nothing. So: the smallest of the CPUs this process may use, the whole CPUs its quota allows, and the
physical cores behind the CPUs it may use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import FrozenSet, List, Optional, Set, Tuple

ROOT = Path("/")


@dataclass(frozen=True)
class CpuFacts:
    """What limits this process: CPUs it may use, CPUs its quota pays for, cores behind them.

    ``quota`` is in CPUs (1.5 means 150 % of one) and None where nothing limits it; ``physical`` is
    None where the system does not say.
    """

    affinity: int
    quota: Optional[float]
    physical: Optional[int]


def decide(facts: CpuFacts) -> int:
    """Threads to use, at least 1. The quota is rounded down: half a CPU stalls a whole thread."""
    limits = [facts.affinity]
    if facts.quota is not None:
        limits.append(int(facts.quota))
    if facts.physical is not None:
        limits.append(facts.physical)
    return max(1, min(limits))


def chosen_by_user(value: Optional[str]) -> Optional[int]:
    """The thread count in an ``OMP_NUM_THREADS`` value, or None where it sets none.

    OpenMP allows a list, one number a nesting level ("4,2"); the first is the outer level.
    """
    first = (value or "").split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) > 0 else None


def fetch(root: Path = ROOT, allowed: Optional[FrozenSet[int]] = None) -> CpuFacts:
    """Read the facts of this process. ``root`` and ``allowed`` replace the machine in tests."""
    cpus = allowed_cpus() if allowed is None else allowed
    return CpuFacts(len(cpus), read_quota(root), read_physical(root, cpus))


def allowed_cpus() -> FrozenSet[int]:
    """CPUs this process may run on; all of them where the system has no affinity (macOS)."""
    get = getattr(os, "sched_getaffinity", None)
    if get is not None:
        return frozenset(get(0))
    return frozenset(range(os.cpu_count() or 1))


def read_quota(root: Path) -> Optional[float]:
    """The tightest CPU quota, in CPUs, of this process's cgroup and all of its parents."""
    quotas = []
    for hierarchy in parse_cgroups(_read(root / "proc/self/cgroup") or "0::/"):
        for folder in _cgroup_folders(root, hierarchy):
            quota = parse_cpu_max(_read(folder / "cpu.max") or "")
            if quota is None:
                quota = parse_cfs(
                    _read(folder / "cpu.cfs_quota_us") or "",
                    _read(folder / "cpu.cfs_period_us") or "",
                )
            if quota is not None:
                quotas.append(quota)
    return min(quotas) if quotas else None


def parse_cgroups(text: str) -> List[Tuple[str, str]]:
    """``/proc/self/cgroup`` → (mount name, path) of each hierarchy that can limit the CPU.

    The mount name is empty for cgroup v2. Lines that do not parse are ignored.
    """
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if not separator:
            continue
        if number == "0" and not controllers:
            found.append(("", path))
        elif "cpu" in controllers.split(","):
            found.append((controllers, path))
    return found


def _cgroup_folders(root: Path, hierarchy: Tuple[str, str]) -> List[Path]:
    mount, path = hierarchy
    parts = PurePosixPath(path).parts[1:]
    # A path above the namespace's root ("/../..") names nothing that is mounted here; nor does a
    # host's path inside a container without a cgroup namespace. The mount's own root always does.
    if ".." in parts:
        parts = ()
    # v1 is mounted under its controllers' joint name; "cpu" alone is the usual link to it.
    bases = [root / "sys/fs/cgroup" / name for name in ([mount, "cpu"] if mount else [""])]
    return [
        base.joinpath(*parts[:length]) for base in bases for length in range(len(parts), -1, -1)
    ]


def parse_cpu_max(text: str) -> Optional[float]:
    """CPUs of a cgroup v2 ``cpu.max`` ("150000 100000" or "max 100000"); None for no limit."""
    words = text.split()
    return parse_cfs(*words) if len(words) == 2 else None


def parse_cfs(quota: str, period: str) -> Optional[float]:
    """A quota and its period in microseconds, as CPUs; None for "max", -1 or anything else."""
    try:
        quota_us, period_us = int(quota), int(period)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def read_physical(root: Path, allowed: FrozenSet[int]) -> Optional[int]:
    """Physical cores behind the allowed CPUs; None where the system does not say."""
    cores = set()
    for cpu in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = parse_cpu_list(_read(topology / "thread_siblings_list") or "")
        if not siblings:
            return parse_cpuinfo_cores(_read(root / "proc/cpuinfo") or "", allowed)
        cores.add(siblings)
    return len(cores) or None


def parse_cpu_list(text: str) -> FrozenSet[int]:
    """A kernel CPU list such as "0-3,8"; empty where it does not parse."""
    cpus: Set[int] = set()
    try:
        for part in text.strip().split(","):
            first, dash, last = part.partition("-")
            cpus.update(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        return frozenset()
    return frozenset(cpus)


def parse_cpuinfo_cores(text: str, allowed: FrozenSet[int]) -> Optional[int]:
    """Distinct (socket, core) pairs of the allowed CPUs in ``/proc/cpuinfo``, None if unstated."""
    cores = set()
    for block in text.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        cpu = fields.get("processor", "")
        if cpu.isdigit() and int(cpu) in allowed and "core id" in fields:
            cores.add((fields.get("physical id", "0"), fields["core id"]))
    return len(cores) or None


def _read(path: Path) -> Optional[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
