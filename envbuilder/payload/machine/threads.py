"""Thread count for torch on this machine: fetch the facts, parse them, decide.

torch and OpenMP start one thread for each CPU they see and ignore a cgroup's quota, which makes
work several times slower in a container with ``--cpus``. SMT siblings share one set of vector
units, so a thread on each gains nothing. The count is therefore the smallest of three: the CPUs
this process may use, the whole CPUs its quota allows, and the physical cores behind the CPUs it may
use.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, FrozenSet, List, Optional, Set, Tuple

ROOT = Path("/")
_QUOTA_FILES = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}
"""Version → the files of a cgroup that state its quota and the period of that."""
_HIERARCHY = re.compile(r"^([^:\n]*):([^:/\n]*):(.*)$", re.MULTILINE)
_CGROUP_MOUNT = re.compile(
    r"^(?:\S+ ){3}(\S+) (/sys/fs/cgroup(?:/\S*)?) .*- cgroup(2?) \S+ (\S+)", re.MULTILINE
)
MOST_CPUS = 8192
"""The most that Linux can be built for: in a container, its runtime may make these files up."""


@dataclass(frozen=True)
class CpuFacts:
    """Limits of this process: the CPUs it may use, its CPU quota, and the cores behind those CPUs.

    ``quota`` is a number of CPUs (1.5 means 150 % of one CPU), or None if there is no limit.
    ``physical`` is None if the system does not report it.
    """

    affinity: int
    quota: Optional[float]
    physical: Optional[int]


def decide(facts: CpuFacts) -> int:
    """Return the number of threads to use, at least 1.

    A quota is rounded down, because a thread with only half a CPU would stall.
    """
    limits = (facts.affinity, facts.quota, facts.physical)
    return max(1, min(int(limit) for limit in limits if limit is not None))


def chosen_by_user(value: Optional[str]) -> Optional[int]:
    """Return the thread count that an ``OMP_NUM_THREADS`` value sets, or None if it sets none.

    OpenMP allows a list with one number per nesting level ("4,2"). The first number, for the
    outermost level, is returned.
    """
    return _number((value or "").split(",")[0].strip()) or None


def fetch(root: Path = ROOT, allowed: Optional[FrozenSet[int]] = None) -> CpuFacts:
    """Read this process's CPU limits. Tests use ``root`` and ``allowed`` to replace the machine."""
    cpus = allowed_cpus() if allowed is None else allowed
    return CpuFacts(len(cpus), read_quota(root), read_physical(root, cpus))


def allowed_cpus() -> FrozenSet[int]:
    """Return the CPUs this process may run on.

    On a system without CPU affinity (macOS), these are all CPUs.
    """
    get = getattr(os, "sched_getaffinity", None)
    if get is not None:
        return frozenset(get(0))
    return frozenset(range(os.cpu_count() or 1))


def read_quota(root: Path) -> Optional[float]:
    """Return the tightest CPU quota of this process's cgroup and its parents, in CPUs.

    Return None if there is no quota.
    """
    cgroups = read_text(root / "proc/self/cgroup") or "0::/"
    stated = (
        " ".join(read_text(root / folder / name) for name in _QUOTA_FILES[version])
        for folder, version in cgroup_folders(cgroups, read_text(root / "proc/self/mountinfo"))
    )
    return min(filter(None, map(parse_quota, stated)), default=None)


def cgroup_folders(cgroups: str, mounts: str, controller: str = "cpu") -> List[Tuple[str, int]]:
    """Return the folders of this process's cgroup and of its parents, innermost first.

    ``cgroups`` is the content of ``/proc/self/cgroup``, and ``mounts`` is that of
    ``/proc/self/mountinfo``. If ``mounts`` is empty, the usual mount points are assumed. Each
    folder, relative to the root, is paired with its cgroup version (1 or 2). Some of the folders
    may not exist.
    """
    mounted = parse_cgroup_mounts(mounts)
    folders: List[Tuple[str, int]] = []
    for names, path in parse_cgroups(cgroups, controller)[:8]:
        mount = mounted.get(controller if names else "")
        if mount is not None:
            bases = [mount[0]]
            top = mount[1]
        else:
            # v1 is mounted under its controllers' joint name; usually each single name links to it.
            bases = [f"sys/fs/cgroup/{names}", f"sys/fs/cgroup/{controller}"]
            top = "/"
            if not names:
                bases = ["sys/fs/cgroup"]
        parts = _inside(path, top)
        version = 1 if names else 2
        for base in bases:
            for length in range(len(parts), -1, -1):
                folders.append(("/".join([base, *parts[:length]]), version))  # noqa: PERF401
    return list(dict.fromkeys(folders))


def _inside(path: str, top: str) -> List[str]:
    """Return the parts of a cgroup's path below ``top``, the cgroup that is mounted."""
    # A container without a cgroup namespace sees the host's path, but only its own subtree is
    # mounted.
    if top != "/" and (path + "/").startswith(top + "/"):
        path = path[len(top) :]
    parts = [part for part in path.split("/") if part][:32]
    # A path above the namespace's root ("/../..") is not mounted here; the mount's own root
    # always is.
    return [] if ".." in parts else parts


def parse_cgroups(text: str, controller: str = "cpu") -> List[Tuple[str, str]]:
    """Parse ``/proc/self/cgroup`` into (mount name, path) pairs of hierarchies with the controller.

    The mount name is empty for cgroup v2, which is included although it may lack the controller.
    Lines that do not parse are ignored.
    """
    return [
        (controllers, path)
        for number, controllers, path in _HIERARCHY.findall(text)
        if (number == "0" and not controllers) or controller in controllers.split(",")
    ]


def parse_cgroup_mounts(text: str) -> Dict[str, Tuple[str, str]]:
    """Map each controller in ``/proc/self/mountinfo`` to its folder and the cgroup mounted there.

    For cgroup v2, the controller's name is empty. Only mounts below ``/sys/fs/cgroup`` count.
    """
    mounted = {}
    for top, folder, version, options in _CGROUP_MOUNT.findall(text):
        if ".." not in folder.split("/"):
            names = [""] if version else options.split(",")
            mounted.update(dict.fromkeys(names, (folder.strip("/"), top)))
    return mounted


def parse_quota(text: str) -> Optional[float]:
    """Return the quota divided by the period in a text such as "150000 100000".

    Return None if the text sets no limit ("max" or -1) or does not parse.
    """
    numbers = re.fullmatch(r"\s*([1-9][0-9]{0,14})\s+([1-9][0-9]{0,14})\s*", text)
    return int(numbers.group(1)) / int(numbers.group(2)) if numbers else None


def read_physical(root: Path, allowed: FrozenSet[int]) -> Optional[int]:
    """Return the number of physical cores behind the allowed CPUs, or None if not reported."""
    cores = {siblings(root, cpu) for cpu in allowed}
    if frozenset() in cores:
        return parse_cpuinfo_cores(read_text(root / "proc/cpuinfo"), allowed)
    return len(cores) or None


def siblings(root: Path, cpu: int) -> FrozenSet[int]:
    """Return the CPUs that share a core with ``cpu``, including ``cpu`` itself.

    The set is empty if the system does not report them.
    """
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return parse_cpu_list(read_text(topology / "thread_siblings_list"))


def parse_cpu_list(text: str) -> FrozenSet[int]:
    """Parse a kernel CPU list such as "0-3,8". Return an empty set if it does not parse."""
    cpus: Set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        low = _number(first)
        high = _number(last if dash else first)
        if low is None or high is None or not low <= high < MOST_CPUS:
            return frozenset()
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def parse_cpuinfo_cores(text: str, allowed: FrozenSet[int]) -> Optional[int]:
    """Return the number of physical cores of the allowed CPUs, from ``/proc/cpuinfo``.

    Return None if the file does not list cores.
    """
    cores = set()
    for block in text.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if _number(fields.get("processor", "")) in allowed and "core id" in fields:
            cores.add((fields.get("physical id", "0"), fields["core id"]))
    return len(cores) or None


def _number(text: str) -> Optional[int]:
    """Parse a number of at most 15 digits, or return None if the text is anything else.

    Every such number fits a float exactly.
    """
    return int(text) if len(text) <= 15 and text.isascii() and text.isdigit() else None


def read_text(path: Path) -> str:
    """Return a file's text, or "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # a null byte in a path
        return ""
