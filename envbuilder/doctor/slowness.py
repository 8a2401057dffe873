"""Find what reduces performance on this host. Only known facts count, never unknown values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.text import counted
from envbuilder.doctor.problem import Problem
from envbuilder.host.describe import gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.doctor.surroundings import Around
    from envbuilder.host.model import Gpu, Host, Memory

_SHM = "/dev/shm"  # noqa: S108 (the mount itself is inspected)
_SMALL_SHM = 64 << 20
"""Docker's default size without --shm-size, in bytes (docs.docker.com, docker run)."""
_CORES_PER_GPU = 2
"""One core feeds a GPU's queue, one its data loader: with fewer, the GPU waits."""
_FEW_LANES = 4
"""Too few lanes for any card with its own memory, whatever maximum it reports.

NVML's maximum is that of card and slot together (nvmlDeviceGetMaxPcieLinkWidth), so a wide card in
a narrow slot already runs at its reported maximum.
"""
_BINDING = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_UNBOUND = ("", "false", "none", "disabled")


def problems(host: Host, around: Around) -> list[Problem]:
    """Return what reduces performance, with the fixes."""
    return [
        *_channels(host.memory),
        *_quota(host, around),
        *_links(host),
        *_cores(host),
        *_main_memory(host),
        *_power(host),
        *_shared(host),
        *_binding(around),
    ]


def _slow(code: str, text: str, fix: str) -> Problem:
    return Problem(severity="slows", code=code, text=text, fix=fix)


def _used(host: Host) -> list[Gpu]:
    return [g for g in host.gpus if g.state == "usable"]


def _named(gpu: Gpu) -> str:
    return f"{gpu.name} at {gpu.bus}" if gpu.bus else gpu.name


def _channels(memory: Memory) -> Iterator[Problem]:
    used, available = memory.channels, memory.channels_available
    if used and available and used < available:
        yield _slow(
            "memory-channels",
            f"{used} of {available} memory channels hold a module: {used / available:.0%} of the"
            " bandwidth",
            "Put a module of the same kind into each channel, as described in the board's manual.",
        )


def _quota(host: Host, around: Around) -> Iterator[Problem]:
    cpu = host.cpu
    if cpu.quota is None or cpu.affinity is None or cpu.quota >= cpu.affinity:
        return
    most = max(1, int(cpu.quota))
    # The first number of a list is that of the outermost level; libgomp ignores non-numbers.
    threads = around.variables.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if threads.isdecimal() and 0 < int(threads) <= most:
        return
    yield _slow(
        "quota",
        f"the CPU quota allows {cpu.quota:g} of {cpu.affinity} CPUs; frameworks do not see it"
        " and start a thread for each core",
        f"Run `export OMP_NUM_THREADS={cpu.threads or most}` (envbuilder does for what it runs),"
        " or start the container with --cpuset-cpus instead of --cpus.",
    )


def _links(host: Host) -> Iterator[Problem]:
    for gpu in _used(host):
        width, most = (gpu.link.width, gpu.link.max_width) if gpu.link else (None, None)
        if not width or gpu.memory_kind == "shared":
            continue
        if (most and width < most) or width <= _FEW_LANES:
            of = f" of ×{most}" if most and width < most else ""
            yield _slow(
                "pcie",
                f"{_named(gpu)}: PCIe ×{width}{of}",
                "If it stays so under load: move it to the slot with the most lanes of the"
                " processor, and reseat it. Risers, M.2 drives and firmware settings take lanes,"
                " external boxes have four.",
            )


def _cores(host: Host) -> Iterator[Problem]:
    gpus = [g for g in _used(host) if g.vendor != "apple"]
    limits = [n for n in (host.cpu.affinity, host.cpu.physical, host.cpu.quota) if n]
    if gpus and limits and min(limits) < _CORES_PER_GPU * len(gpus):
        yield _slow(
            "cores",
            f"{counted(min(limits), 'core')} for {counted(len(gpus), 'GPU')}: loading keeps"
            f" {'it' if len(gpus) == 1 else 'them'} waiting",
            f"Give it {_CORES_PER_GPU} cores per GPU, or keep the data on the GPU.",
        )


def _main_memory(host: Host) -> Iterator[Problem]:
    sizes = [g.memory_bytes for g in _used(host) if g.memory_kind == "dedicated" and g.memory_bytes]
    limits = [n for n in (host.memory.total_bytes, host.memory.limit_bytes) if n]
    if sizes and limits and min(limits) < sum(sizes):
        yield _slow(
            "main-memory",
            f"{gib(min(limits))} of main memory for {gib(sum(sizes))} on GPUs:"
            " checkpoints and pinned buffers may not fit",
            "Add memory, raise the container's limit, or load models in pieces"
            " (`torch.load(mmap=True)`, safetensors).",
        )


def _power(host: Host) -> Iterator[Problem]:
    for gpu in _used(host):
        now, default = gpu.power_limit_watts, gpu.power_default_watts
        if now and default and now < 0.99 * default:
            yield _slow(
                "power",
                f"{_named(gpu)}: the power limit is {now:.0f} W of {default:.0f} W",
                f"{_raise(gpu, default, host)}, unless heat or the supply demand the limit.",
            )


def _raise(gpu: Gpu, watts: float, host: Host) -> str:
    if gpu.vendor == "nvidia" and host.wsl:
        return f"Run `nvidia-smi -pl {watts:.0f}` as administrator in Windows"
    if gpu.vendor == "nvidia":
        which = f" -i {gpu.bus}" if gpu.bus else ""
        return f"Run `sudo nvidia-smi{which} -pl {watts:.0f}`"
    # In microwatts: Linux, Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon.
    folder = f"/sys/bus/pci/devices/{gpu.bus}/hwmon" if gpu.bus else "its hwmon folder"
    return f"Write {watts * 1e6:.0f} as root into the file power*_max below {folder}"


def _shared(host: Host) -> Iterator[Problem]:
    size = host.memory.shm_bytes
    if size is None or size > _SMALL_SHM:
        return
    text = f"{_SHM} has {size / 2**20:g} MiB: DataLoader workers pass their batches through it"
    fix = "Start the container with --shm-size 1g or --ipc=host (envbuilder does)."
    if not host.container:
        fix = f"Run `sudo mount -o remount,size=1g {_SHM}`, or keep num_workers=0."
    yield _slow("shared-memory", text, fix)


def _binding(around: Around) -> Iterator[Problem]:
    settings = {name: around.variables.get(name, "").strip().lower() for name in _BINDING}
    names = [name for name, value in settings.items() if value not in _UNBOUND]
    if names:
        # pytorch issues 91989, 99625, 101850: the importing process is bound to its first core.
        yield _slow(
            "binding",
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} set: it can put all"
            " DataLoader workers on one core",
            f"Run `unset {' '.join(names)}`, unless you measured that it helps.",
        )
