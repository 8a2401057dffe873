"""Identify the CPU, and determine how much CPU time and memory this process may use.

`payload.machine.threads` locates the limits of this process's cgroup, so that this module finds the
same limits as an image's entrypoint. Limits of cgroups above a container's namespace are never
visible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from envbuilder.host import tables
from envbuilder.host.model import TRACKED_FLAGS, Cpu
from envbuilder.host.snapshot import Reader, Snapshot, clean, cpu_list, fields, integer
from envbuilder.payload.machine import threads

_CGROUP = "proc/self/cgroup"
_MOUNTS = "proc/self/mountinfo"
_LIMITS = {
    ("cpu", 1): ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ("cpu", 2): ("cpu.max",),
    ("memory", 1): ("memory.limit_in_bytes",),
    ("memory", 2): ("memory.max",),
}
_CPUINFO_LIMIT = 4 << 20
"""Maximum number of bytes to read from /proc/cpuinfo, on a live machine or in a recorded tree. 512
CPUs take 1 MB."""
_DESCRIPTION_LIMIT = 1 << 16
"""Number of bytes at the start of /proc/cpuinfo that contain the description of the first CPU."""
_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
_ARM = {0x41: "ARM", 0x4E: "NVIDIA", 0x61: "Apple", 0xC0: "Ampere"}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# For models missing from the table: what their instructions imply. AMD: AVX-512 came with Zen 4,
# AVX-VNNI with Zen 5 (GCC manual, "x86 Options", znver4 and znver5). Intel: AMX came with Sapphire
# Rapids (same source, sapphirerapids). Intel's AVX-512 came and went, so it implies nothing.
_GIVEAWAYS = (
    ("AuthenticAMD", "avx_vnni", "Zen 5 or newer"),
    ("AuthenticAMD", "avx512f", "Zen 4 or newer"),
    ("GenuineIntel", "amx_tile", "Sapphire Rapids or newer"),
)


def read_limits(reader: Reader) -> None:
    """Read the cgroups of this process, their mount points, and their CPU and memory limits."""
    cgroups = reader.file(_CGROUP)
    mounts = reader.file(_MOUNTS)
    for controller in ("cpu", "memory"):
        for folder, version in threads.cgroup_folders(cgroups or "0::/", mounts or "", controller):
            for name in _LIMITS[controller, version]:
                reader.file(f"{folder}/{name}")


def quota(snapshot: Snapshot) -> float | None:
    """Return the lowest CPU quota of this process's cgroup and its ancestors, in CPUs.

    Return None if there is no quota.
    """
    return min(filter(None, map(threads.parse_quota, _limits(snapshot, "cpu"))), default=None)


def memory_limit(snapshot: Snapshot) -> int | None:
    """Return the lowest memory limit of this process's cgroup and its ancestors, in bytes.

    Return None if there is no limit.
    """
    # No limit: "max" in version 2, 2**63 minus a page in version 1; `integer` rejects both.
    return min(filter(None, map(integer, _limits(snapshot, "memory"))), default=None)


def unreadable_limit(snapshot: Snapshot) -> tuple[str, str] | None:
    """Return the path of a cgroup limit file that cannot be read, and the reason.

    Return None if there is no such file.
    """
    names = set[str]().union(*_LIMITS.values())
    for path, reason in snapshot.unreadable.items():
        if path.startswith("sys/fs/cgroup/") and path.rpartition("/")[2] in names:
            return path, reason
    return None


def _limits(snapshot: Snapshot, controller: str) -> Iterator[str]:
    """Yield a controller's limits as text, for this process's cgroup and each of its ancestors."""
    cgroups = snapshot.files.get(_CGROUP) or "0::/"
    for folder, version in threads.cgroup_folders(cgroups, snapshot.text(_MOUNTS), controller):
        yield " ".join(snapshot.text(f"{folder}/{name}") for name in _LIMITS[controller, version])


class _Processor(Struct, frozen=True):
    """A logical CPU listed in `/proc/cpuinfo`."""

    number: int
    socket: int | None
    core: int | None
    cores: int | None
    """Number of cores in the socket that contains the CPU."""
    part: tuple[int | None, int | None]
    """Implementer and part number of a 64-bit ARM core."""


def read(reader: Reader) -> None:
    """Read the data about the CPU: its description, topology, caches and quota.

    Also read which CPUs this process may use.
    """
    reader.file("proc/sys/kernel/arch")
    reader.file("proc/self/status")
    read_limits(reader)
    reader.file("proc/cpuinfo", _CPUINFO_LIMIT)
    if reader.file(f"{_NODES}/has_cpu") is None:
        reader.folder(_NODES)
    online = cpu_list(reader.file(f"{_CPUS}/online"))
    if online is None:
        online = _numbers("cpu", reader.folder(_CPUS))
    _read_topology(reader, online)
    covered: frozenset[int] = frozenset()
    for cpu in sorted(online):
        if cpu not in covered:  # CPUs that share a cache report the same
            cache = f"{_CPUS}/cpu{cpu}/cache"
            shared = cpu_list(reader.file(f"{cache}/index3/shared_cpu_list"))
            covered |= shared or frozenset()
            for name in ("index3/level", "index3/size") if shared else ("index2/level",):
                reader.file(f"{cache}/{name}")


def _read_topology(reader: Reader, online: Iterable[int]) -> None:
    """Read which CPUs share a core, and to which socket each core belongs.

    For each core, only one of its CPUs is read.
    """
    covered: frozenset[int] = frozenset()
    for cpu in sorted(online):
        if cpu in covered:
            continue
        topology = f"{_CPUS}/cpu{cpu}/topology"
        covered |= cpu_list(reader.file(f"{topology}/thread_siblings_list")) or frozenset()
        reader.file(f"{topology}/physical_package_id")


def machine(snapshot: Snapshot) -> str:
    """Return the machine's architecture, or "unknown" if it cannot be determined.

    If neither uname nor the kernel reports the architecture, the flags in `/proc/cpuinfo` still
    identify x86-64 and 64-bit ARM.
    """
    reported = snapshot.machine or clean(snapshot.text("proc/sys/kernel/arch"))
    if reported:
        return {"amd64": "x86_64"}.get(reported, reported)
    description = fields(snapshot.text("proc/cpuinfo")[:_DESCRIPTION_LIMIT])
    flags = description.get("flags", description.get("Features", "")).split()
    if "lm" in flags:  # long mode
        return "x86_64"
    # "thumb" is a 32-bit kernel, also on a 64-bit CPU.
    is_64_bit = description.get("CPU architecture") in {"8", "AArch64"}
    if is_64_bit and flags and "thumb" not in flags:
        return "aarch64"
    return "unknown"


def virtual(snapshot: Snapshot) -> bool:
    """Return whether the CPU reports that it belongs to a virtual machine.

    Only x86 CPUs report this.
    """
    return "hypervisor" in _first(snapshot).get("flags", "").split()


def linux(snapshot: Snapshot) -> Cpu:
    """Return the description of a Linux host's CPU."""
    description = _first(snapshot)
    family = integer(description.get("cpu family"))
    model = integer(description.get("model"))
    words = description.get("flags", description.get("Features"))
    flags = TRACKED_FLAGS & set(words.split()) if words else None
    text = snapshot.text("proc/cpuinfo")
    processors = _processors(text)
    # A truncated description does not give the number of CPUs.
    described = frozenset(p.number for p in processors if text.endswith("\n"))
    maker = integer(description.get("CPU implementer"), 16) or 0
    vendor = clean(description.get("vendor_id")) or _ARM.get(maker)
    generation = _arm_cores(processors) or tables.x86_generation(vendor, family, model)
    for of, flag, name in _GIVEAWAYS:
        if of == vendor and flag in (flags or ()):
            generation = generation or name
    online = cpu_list(snapshot.text(f"{_CPUS}/online")) or described
    everything = described or online
    affinity = cpu_list(snapshot.fields("proc/self/status").get("Cpus_allowed_list"))
    if affinity and online and affinity >= online:
        affinity = online  # the mask also contains CPUs that could be hot-plugged
    allowed = affinity or everything
    cores = _cores(snapshot, processors, everything)
    behind = _cores(snapshot, processors, allowed)
    cpus = quota(snapshot)
    return Cpu(
        vendor=vendor,
        model_name=clean(description.get("model name")),
        family=family,
        model=model,
        generation=generation,
        flags=tuple(sorted(flags)) if flags is not None else None,
        logical=len(everything) or None,
        physical=len(cores) or None,
        sockets=_sockets(snapshot, processors, everything),
        threads_per_core=max(cores.values(), default=None),
        numa_nodes=_nodes(snapshot),
        l3_bytes=_l3(snapshot, everything),
        affinity=len(affinity or ()) or None,
        quota=cpus,
        threads=_threads(len(allowed), cpus, len(behind) or None),
    )


def _first(snapshot: Snapshot) -> dict[str, str]:
    """Return the fields of the first CPU in `/proc/cpuinfo`.

    Most of these fields have the same values for the other CPUs.
    """
    first, separator, _ = snapshot.text("proc/cpuinfo").partition("\n\n")
    return fields(first + "\n" if separator else first)


def _processors(text: str) -> tuple[_Processor, ...]:
    """Parse the descriptions of the logical CPUs in `/proc/cpuinfo`.

    If the last line has no line break, the line is ignored, because it may be truncated.
    """
    processors = []
    for block in text.rpartition("\n")[0].split("\n\n"):
        number = integer(_field(block, "processor"))
        if number is None or number >= threads.MOST_CPUS:
            continue
        socket = integer(_field(block, "physical id"))
        core = integer(_field(block, "core id"))
        maker = _field(block, "CPU implementer")
        part_number = _field(block, "CPU part")
        cores = integer(_field(block, "cpu cores"))
        kind = (integer(maker, 16), integer(part_number, 16))
        processors.append(_Processor(number, socket, core, cores, kind))
    return tuple(processors)


def _field(block: str, key: str) -> str | None:
    """Return the value of one field in a block of `/proc/cpuinfo`, or None if it is missing.

    With 256 CPUs, this is faster than parsing all fields.
    """
    line = f"\n{block}".partition(f"\n{key}")[2].partition("\n")[0]
    rest, separator, value = line.partition(":")
    if separator and not rest.strip():
        return value
    return None


def _arm_cores(processors: Iterable[_Processor]) -> str | None:
    """Return the names of all kinds of cores, joined by " + ", or None if no name is known.

    There can be several kinds, because some machines have both big and small cores.
    """
    parts = dict.fromkeys(processor.part for processor in processors)
    names = (tables.arm_core(*part) for part in parts if None not in part)
    return " + ".join(filter(None, names)) or None


def _threads(allowed: int, quota: float | None, physical: int | None) -> int | None:
    if not allowed:
        return None
    return threads.decide(threads.CpuFacts(affinity=allowed, quota=quota, physical=physical))


def _cores(
    snapshot: Snapshot, processors: Iterable[_Processor], cpus: frozenset[int]
) -> Mapping[object, int]:
    """Return a mapping from each physical core to the number of its CPUs that are in `cpus`.

    The result is empty if the core of any CPU is unknown. In AMD sockets with two dies, the cores
    of both dies have the same numbers. Therefore, /proc/cpuinfo shows only half of the cores, while
    /sys shows all of them (Magny-Cours: 12 cores, numbered 0 to 5 twice).
    """
    shared: dict[int, frozenset[int]] = {}
    for siblings in _siblings(snapshot, cpus):
        shared |= dict.fromkeys(siblings, siblings)
    if shared:
        if cpus <= shared.keys():
            return Counter(shared[cpu] for cpu in cpus)
        return {}
    described = {
        # A machine with one socket may omit its number.
        processor.number: (processor.socket or 0, processor.core)
        for processor in processors
        if processor.core is not None
    }
    counted = Counter(socket for socket, _ in set(described.values()))
    if any(p.cores and p.cores != counted[p.socket or 0] for p in processors):
        return {}
    if cpus <= described.keys():
        return Counter(described[cpu] for cpu in cpus)
    return {}


def _siblings(snapshot: Snapshot, cpus: Iterable[int]) -> Iterator[frozenset[int]]:
    for cpu in cpus:
        siblings = cpu_list(snapshot.text(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list"))
        if siblings and cpu in siblings:
            yield siblings


def _sockets(
    snapshot: Snapshot, processors: Iterable[_Processor], everything: frozenset[int]
) -> int | None:
    sockets = {processor.number: processor.socket for processor in processors}
    ids = set(map(sockets.get, everything))
    if None not in ids:
        return len(ids) or None
    # "-1", which is not parsed as a number, on boards whose firmware does not report it.
    path = f"{_CPUS}/cpu%d/topology/physical_package_id"
    cores = set(map(min, _siblings(snapshot, everything))) or everything
    ids = {snapshot.number(path % cpu) for cpu in cores}
    if None in ids or not ids:
        return None
    # Without ACPI's tables, Linux counts the clusters of an ARM chip, from 0, as sockets; boards
    # with several sockets have a NUMA node for each.
    described = [processor.part[1] for processor in processors]
    if len(ids) == 1 or ids != set(range(len(ids))) or (described and not any(described)):
        return len(ids)
    nodes = _nodes(snapshot) or (1 if snapshot.has(_NODES) is False else None)
    if not described or not nodes:
        return None
    if nodes == 1:
        return 1
    return len(ids)


def _nodes(snapshot: Snapshot) -> int | None:
    """Return the number of NUMA nodes that have CPUs, or None if the number is unknown.

    A node without CPUs contains only the memory of a GPU or a CXL card.
    """
    with_cpus = cpu_list(snapshot.text(f"{_NODES}/has_cpu"))
    if with_cpus is None:
        with_cpus = _numbers("node", snapshot.names(_NODES))
    return len(with_cpus) or None


def _l3(snapshot: Snapshot, everything: frozenset[int]) -> int | None:
    """Return the total size in bytes of all level-3 caches, or None if a size could not be read."""
    total = 0
    counted: set[int] = set()
    for cpu in sorted(everything):
        if cpu in counted:
            continue
        cache = f"{_CPUS}/cpu{cpu}/cache"
        path = f"{cache}/index3/shared_cpu_list"
        if snapshot.has(path) is False and snapshot.has(f"{cache}/index2/level"):
            continue  # the low-power cores of some Intel CPUs have no level-3 cache
        shared = cpu_list(snapshot.text(path))
        size = _size(snapshot.text(f"{cache}/index3/size"))
        level = snapshot.number(f"{cache}/index3/level")
        if shared is None or cpu not in shared or size is None or level != 3:
            return None
        counted |= shared
        total += size
    return total or None


def _size(text: str | None) -> int | None:
    """Return the size of a cache, such as "32768K", in bytes, or None if it cannot be parsed."""
    word = (text or "").strip()
    amount = integer(word[:-1])
    unit = _UNITS.get(word[-1:])
    if amount is not None and unit and amount < 1 << 32:
        return amount * unit
    return None


def _numbers(stem: str, names: Iterable[str]) -> frozenset[int]:
    """Return the numbers that follow `stem` in names such as cpu0 and cpu12."""
    found = (integer(n.removeprefix(stem)) for n in names if n.startswith(stem))
    return frozenset(n for n in found if n is not None and n < threads.MOST_CPUS)
