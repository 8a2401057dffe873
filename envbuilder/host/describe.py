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
    yield "containers", _containers(host.containers)
    for note in host.notes:
        yield "note", note


def _system(host: Host) -> str:
    where = []
    if host.wsl:
        where.append("WSL")
    if host.container:
        where.append("container")
    if host.rosetta:
        where.append("Python under Rosetta")
    name = host.os_version or UNKNOWN
    if host.os == "macos":
        name = f"macOS {name}"
    kernel = host.kernel and f"kernel {host.kernel}"
    text = ", ".join(filter(None, (name, host.machine, kernel, host.libc)))
    if where:
        text += f" ({', '.join(where)})"
    return text


def _processor(cpu: Cpu) -> str:
    text = cpu.model_name or cpu.vendor or UNKNOWN
    if cpu.generation and cpu.generation not in text:
        text += f" ({cpu.generation})"
    if cpu.flags is None:
        return f"{text}; instructions {UNKNOWN}"
    sets = [label for label, flags in _SETS.items() if set(flags) & set(cpu.flags)]
    if sets:
        text += f"; {', '.join(sets)}"
    return text


def _cores(cpu: Cpu) -> str:
    counts = [_counted(cpu.physical, "core"), _counted(cpu.logical, "CPU")]
    if (cpu.sockets or 1) > 1:
        counts.append(f"{cpu.sockets} sockets")
    if (cpu.numa_nodes or 1) > 1:
        counts.append(f"{cpu.numa_nodes} NUMA nodes")
    if cpu.l3_bytes:
        counts.append(f"{cpu.l3_bytes / 2**20:.0f} MiB L3")
    usable = ""
    if cpu.affinity:  # macOS has none
        quota = cpu.quota and f", quota {cpu.quota:g}"
        usable = f"{cpu.affinity} usable{quota or ''} "
    return f"{', '.join(counts)}; {usable}→ {_counted(cpu.threads, 'thread')}"


def _counted(number: int | None, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number or UNKNOWN} {what}s"


def _memory(memory: Memory) -> str:
    parts = [gib(memory.total_bytes)]
    if memory.limit_bytes is not None:
        parts.append(f"{gib(memory.limit_bytes)} allowed here")
    if memory.kind:
        speed = memory.speed and f"-{memory.speed}"
        parts.append(f"{memory.kind}{speed or ''}")
    if memory.channels:
        of = memory.channels_available and f" of {memory.channels_available}"
        parts.append(f"{memory.channels}{of or ''} channels")
    if memory.bandwidth:
        parts.append(bandwidth(memory.bandwidth))
    else:
        detail = memory.detail and f" ({memory.detail.rstrip('.')})"
        parts.append(f"speed {UNKNOWN}{detail}")
    return ", ".join(parts)


def _gpu(gpu: Gpu) -> str:
    parts = [f"{gpu.name}: {gpu.state}"]
    if gpu.vendor == "unknown":
        parts = [UNKNOWN]
    if gpu.memory_kind == "shared":
        parts.append("shares main memory")
        if gpu.state == "usable":
            parts.append(f"{gib(gpu.usable_bytes)} usable")
    elif gpu.memory_kind == "dedicated" or gpu.memory_bytes:
        parts.append(gib(gpu.memory_bytes))
    if gpu.bandwidth:
        parts.append(bandwidth(gpu.bandwidth))
    if gpu.sm:
        parts.append(f"SM {gpu.sm}")
    if gpu.driver_version:
        parts.append(f"driver {gpu.driver_version}")
    if gpu.mig:
        parts.append("MIG")
    text = ", ".join(parts)
    if gpu.detail:
        text += f" – {gpu.detail}"
    return text


def _containers(containers: Containers) -> str:
    parts = []
    for engine in containers.engines:
        name = engine.name if engine.name != UNKNOWN else engine.socket
        status = engine.version or ""
        if engine.state != "usable":
            status = f"({engine.detail or UNKNOWN})"
        parts.append(f"{name} {status}".strip())
    if containers.buildx:
        parts.append(f"buildx {containers.buildx_version or ''}".strip())
    parts += containers.runtimes
    return ", ".join(parts) or "no engine found"


def gib(size: int | None) -> str:
    """Return a size in GiB, or that it is unknown."""
    if size is not None:
        return gibibytes(size)
    return UNKNOWN
