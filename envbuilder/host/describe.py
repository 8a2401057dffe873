"""Describe a host in words, for `detect` to print. Pure; unknown facts are shown as unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core.text import bandwidth, gibibytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.host.model import Containers, Cpu, Gpu, Host, Memory

UNKNOWN = "unknown"
_SETS = {
    "AMX": ("amx_tile",),
    "AVX-512": ("avx512f",),
    "VNNI": ("avx512_vnni", "avx_vnni"),
    "bf16": ("avx512_bf16", "bf16", "svebf16", "amx_bf16"),
    "fp16": ("avx512_fp16", "asimdhp"),
    "AVX2": ("avx2",),
    "SVE2": ("sve2",),
    "SVE": ("sve",),
    "NEON": ("asimd",),
}


def facts(host: Host) -> Iterator[tuple[str, str]]:
    """Yield labels and values, in the order in which they are usually looked up."""
    yield "system", _system(host)
    yield "processor", _processor(host.cpu)
    yield "cores", _cores(host.cpu)
    yield "memory", _memory(host.memory)
    for number, gpu in enumerate(host.gpus):
        yield f"GPU {number}", _gpu(gpu)
    if not host.gpus:
        yield "GPU", "none found"
    for peer in host.peers:
        direct = {True: ", peer-to-peer", False: ", not peer-to-peer", None: ""}[peer.direct]
        yield "GPU link", f"{peer.first} – {peer.second}: {peer.path or UNKNOWN}{direct}"
    yield "containers", _containers(host.containers)
    for note in host.notes:
        yield "note", note


def _system(host: Host) -> str:
    where = [
        *(["WSL"] if host.wsl else []),
        *(["container"] if host.container else []),
        *(["Python under Rosetta"] if host.rosetta else []),
    ]
    name = host.os_version or UNKNOWN
    parts = [f"macOS {name}" if host.os == "macos" else name, host.machine]
    parts += [f"kernel {host.kernel}"] if host.kernel else []
    parts += [host.libc] if host.libc else []
    return ", ".join(parts) + (f" ({', '.join(where)})" if where else "")


def _processor(cpu: Cpu) -> str:
    name = cpu.model_name or cpu.vendor or UNKNOWN
    generation = f" ({cpu.generation})" if cpu.generation and cpu.generation not in name else ""
    if cpu.flags is None:
        return f"{name}{generation}; instructions {UNKNOWN}"
    sets = [label for label, flags in _SETS.items() if set(flags) & set(cpu.flags)]
    return f"{name}{generation}" + (f"; {', '.join(sets)}" if sets else "")


def _cores(cpu: Cpu) -> str:
    counts = [_counted(cpu.physical, "core"), _counted(cpu.logical, "CPU")]
    counts += [f"{cpu.sockets} sockets"] if (cpu.sockets or 1) > 1 else []
    counts += [f"{cpu.numa_nodes} NUMA nodes"] if (cpu.numa_nodes or 1) > 1 else []
    counts += [f"{cpu.l3_bytes / 2**20:.0f} MiB L3"] if cpu.l3_bytes else []
    quota = f", quota {cpu.quota:g}" if cpu.quota else ""
    # macOS has no CPU affinity.
    usable = f"{cpu.affinity} usable{quota} " if cpu.affinity else ""
    return f"{', '.join(counts)}; {usable}→ {_counted(cpu.threads, 'thread')}"


def _counted(number: int | None, what: str) -> str:
    return f"{number or UNKNOWN} {what}{'' if number == 1 else 's'}"


def _memory(memory: Memory) -> str:
    parts = [gib(memory.total_bytes)]
    if memory.limit_bytes is not None:
        parts.append(f"{gib(memory.limit_bytes)} allowed here")
    if memory.kind:
        parts.append(f"{memory.kind}-{memory.speed}" if memory.speed else memory.kind)
    if memory.channels:
        of = f" of {memory.channels_available}" if memory.channels_available else ""
        parts.append(f"{memory.channels}{of} channels")
    parts.append(bandwidth(memory.bandwidth) if memory.bandwidth else f"speed {UNKNOWN}")
    detail = f" ({memory.detail.rstrip('.')})" if memory.detail and not memory.bandwidth else ""
    return ", ".join(parts) + detail


def _gpu(gpu: Gpu) -> str:
    parts = [f"{gpu.name}: {gpu.state}" if gpu.vendor != "unknown" else UNKNOWN]
    if gpu.memory_kind == "shared":
        parts.append("shares main memory")
        parts += [f"{gib(gpu.usable_bytes)} usable"] if gpu.state == "usable" else []
    elif gpu.memory_kind == "dedicated" or gpu.memory_bytes:
        parts.append(gib(gpu.memory_bytes))
    parts += [bandwidth(gpu.bandwidth)] if gpu.bandwidth else []
    parts += [f"SM {gpu.sm}"] if gpu.sm else []
    parts += [f"driver {gpu.driver_version}"] if gpu.driver_version else []
    if gpu.link and gpu.link.width:
        most = f" of ×{gpu.link.max_width}" if gpu.link.max_width else ""
        speed = f" at {gpu.link.speed:g} GT/s" if gpu.link.speed else ""
        parts.append(f"PCIe ×{gpu.link.width}{most}{speed}")
    if gpu.power_limit_watts:
        most = f" of {gpu.power_default_watts:.0f}" if gpu.power_default_watts else ""
        parts.append(f"{gpu.power_limit_watts:.0f}{most} W")
    parts += ["MIG"] if gpu.mig else []
    return ", ".join(parts) + (f" – {gpu.detail}" if gpu.detail else "")


def _containers(containers: Containers) -> str:
    parts = []
    for engine in containers.engines:
        status = (
            engine.version or "" if engine.state == "usable" else f"({engine.detail or UNKNOWN})"
        )
        parts.append(f"{engine.name if engine.name != UNKNOWN else engine.socket} {status}".strip())
    if containers.buildx:
        parts.append(f"buildx {containers.buildx_version or ''}".strip())
    parts += containers.runtimes
    if containers.cdi:
        parts.append(f"CDI: {', '.join(containers.cdi[:4])}{' …' * (len(containers.cdi) > 4)}")
    return ", ".join(parts) or "no engine found"


def gib(size: int | None) -> str:
    """Return a size in GiB, or that it is unknown."""
    if size is not None:
        return gibibytes(size)
    return UNKNOWN
