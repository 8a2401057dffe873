"""Decide whether a Mac has a GPU that Metal can use.

This code has not been tested on a real Mac.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.host import tables
from envbuilder.host.gpus.accelerator import Accelerator, Finding, Level, Needs, Place, blocked
from envbuilder.host.model import Gpu
from envbuilder.host.snapshot import Snapshot, clean, integer

if TYPE_CHECKING:
    from envbuilder.host.gpus import pci

_GIB = 2**30


def is_apple_silicon(snapshot: Snapshot) -> bool:
    """Return whether a Mac has an Apple chip."""
    sysctl = snapshot.fields("sysctl.txt")
    # A native process on Apple silicon; a translated one sees x86_64 here.
    native = snapshot.system == "macos" and snapshot.machine == "arm64"
    return native or sysctl.get("hw.optional.arm64") == "1"


def decide(snapshot: Snapshot, _devices: Sequence[pci.Device], _place: Place) -> tuple[Gpu, ...]:
    """Return the GPU of an Apple chip, or an empty tuple if the machine has no Apple chip."""
    sysctl = snapshot.fields("sysctl.txt")
    if not sysctl or not is_apple_silicon(snapshot):
        return ()
    name = f"{clean(sysctl.get('machdep.cpu.brand_string')) or 'Apple silicon'} GPU"
    total = integer(sysctl.get("hw.memsize"))
    gpu = Gpu(
        vendor="apple",
        name=name,
        family="Apple silicon",
        state="usable",
        memory_kind="shared",
        memory_bytes=total,
        usable_bytes=total and _usable_by_metal(sysctl, total),
    )
    if not _is_virtual(sysctl):
        return (gpu,)
    return (
        replace(
            gpu,
            state="unknown",
            detail="macOS runs in a virtual machine, where Metal may be missing.",
            obstacle="virtual",
            usable_bytes=None,
        ),
    )


def _is_virtual(sysctl: dict[str, str]) -> bool:
    return sysctl.get("kern.hv_vmm_present") == "1"


def _usable_by_metal(sysctl: dict[str, str], total: int) -> int:
    """Return the number of bytes that Metal lets a program use.

    If no limit was set, the result is an estimate of the default limit: two thirds of the memory
    below 36 GiB, and three quarters from 36 GiB on. The estimate is based on the
    `recommendedMaxWorkingSetSize` that llama.cpp prints (10.7 of 16 GiB, 16 of 24, 27 of 36, 96 of
    128). Apple does not document this value, and newer systems allow more (107.5 of 128 GiB on
    macOS 26).
    """
    limit = integer(sysctl.get("iogpu.wired_limit_mb"))
    if limit:
        return min(limit * 2**20, total)
    if total < 36 * _GIB:
        return total * 2 // 3
    return total * 3 // 4


def bandwidth(snapshot: Snapshot) -> int | None:
    """Return the bandwidth of the chip's memory in bytes per second, or None if it is unknown.

    The CPU and the GPU share this memory.
    """
    sysctl = snapshot.fields("sysctl.txt")
    brand = clean(sysctl.get("machdep.cpu.brand_string"))
    if brand and is_apple_silicon(snapshot) and not _is_virtual(sysctl):
        return tables.apple_bandwidth(brand)
    return None


def judge(gpu: Gpu, _needs: Needs, _native: bool) -> list[Finding]:
    """Return a finding about whether the GPU can be used."""
    if gpu.state == "usable":
        return [Finding("note", gpu.name)]
    level: Level = "warning" if gpu.state == "unknown" else "no"
    return [blocked(level, gpu, gpu.detail.rstrip("."))]


MPS = Accelerator(
    name="mps",
    vendor="apple",
    brand="Apple",
    aliases=("apple", "apple-silicon", r"m\d+", "mac", "macos", "metal", "darwin"),
    builds="macos",
    decide=decide,
    judge=judge,
)
