"""Decide what a Mac is, from `sysctl`'s `key: value` lines. Untested on a real Mac."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.host import engines, tables
from envbuilder.host.model import X86_FLAGS, Cpu, Gpu, Host, Memory
from envbuilder.host.text import clean, fields, integer

if TYPE_CHECKING:
    from envbuilder.host.snapshot import Reader, Snapshot

_KEYS = (
    "hw.optional.arm64",
    "sysctl.proc_translated",
    "hw.memsize",
    "hw.logicalcpu",
    "hw.physicalcpu",
    "machdep.cpu.brand_string",
    "machdep.cpu.features",
    "machdep.cpu.leaf7_features",
    "kern.osrelease",
    "kern.osproductversion",
    "kern.hv_vmm_present",
    "iogpu.wired_limit_mb",
)
_GIB = 2**30


def read(reader: Reader, *, full: bool) -> None:
    """Read sysctl's values; on the live machine this starts one process."""
    del full
    if not reader.live:
        reader.file("sysctl.txt")
        return
    from envbuilder.core import process
    from envbuilder.core.errors import ToolError

    try:
        # -i skips keys that are unknown to this macOS instead of failing.
        done = process.run(["/usr/sbin/sysctl", "-i", *_KEYS], timeout=5)
    except (ToolError, OSError) as error:
        reader.unreadable["sysctl.txt"] = str(error)
        return
    reader.files["sysctl.txt"] = done.stdout


def decide(snapshot: Snapshot) -> Host:
    """Return the host that a macOS snapshot describes."""
    text = snapshot.files.get("sysctl.txt")
    sysctl = fields(text)
    notes = []
    if not sysctl:
        why = snapshot.unreadable.get("sysctl.txt", "empty or damaged")
        notes.append(f"sysctl could not be read ({why}): nothing is known about this Mac.")
    arm = sysctl.get("hw.optional.arm64") == "1" or (
        # A native process on Apple silicon; a translated one sees x86_64 here.
        snapshot.machine == "arm64"
    )
    translated = {"0": False, "1": True}.get(sysctl.get("sysctl.proc_translated", ""))
    if sysctl and translated is None:
        # An Intel Mac has neither key (Apple, "About the Rosetta translation environment").
        translated = None if arm else False
    machine = "arm64" if arm else "x86_64" if sysctl else "unknown"
    physical, logical = integer(sysctl.get("hw.physicalcpu")), integer(sysctl.get("hw.logicalcpu"))
    return Host(
        os="macos",
        os_version=clean(sysctl.get("kern.osproductversion")),
        kernel=clean(sysctl.get("kern.osrelease")),
        machine=machine,
        platform="macos/arm64" if arm else None,
        rosetta=translated,
        cpu=Cpu(
            vendor="Apple" if arm else None,
            model_name=clean(sysctl.get("machdep.cpu.brand_string")),
            flags=_flags(sysctl),
            logical=logical,
            physical=physical,
            threads=physical or logical,
        ),
        memory=Memory(
            total_bytes=integer(sysctl.get("hw.memsize")),
            bandwidth=_bandwidth(sysctl) if arm else None,
        ),
        gpus=_gpus(sysctl, arm),
        containers=engines.decide(snapshot),
        notes=(*notes, *engines.notes(snapshot)),
    )


def _flags(known: dict[str, str]) -> tuple[str, ...] | None:
    """Return an Intel Mac's CPU flags by their Linux names: SSE4.1 is sse4_1, AVX1.0 is avx."""
    first, more = (known.get(f"machdep.cpu.{key}features", "") for key in ("", "leaf7_"))
    if not first:
        return None
    names = f"{first} {more}".lower().replace("avx1.0", "avx").replace(".", "_").split()
    return tuple(sorted(X86_FLAGS & set(names)))


def _gpus(sysctl: dict[str, str], arm: bool) -> tuple[Gpu, ...]:
    if not sysctl or not arm:
        return ()
    name = f"{clean(sysctl.get('machdep.cpu.brand_string')) or 'Apple silicon'} GPU"
    virtual = sysctl.get("kern.hv_vmm_present") == "1"
    detail = "macOS runs in a virtual machine, where Metal may be missing." if virtual else ""
    total = integer(sysctl.get("hw.memsize"))
    return (
        Gpu(
            vendor="apple",
            name=name,
            family="Apple silicon",
            state="unknown" if virtual else "usable",
            detail=detail,
            obstacle="virtual" if virtual else None,
            memory_kind="shared",
            memory_bytes=total,
            usable_bytes=None if virtual or total is None else _usable(sysctl, total),
        ),
    )


def _usable(sysctl: dict[str, str], total: int) -> int:
    """Return how much memory Metal lets a program use; an estimate if no limit was set.

    The default is two thirds below 36 GiB and three quarters from 36 GiB on: the
    `recommendedMaxWorkingSetSize` that llama.cpp prints (10.7 of 16 GiB, 16 of 24, 27 of 36, 96 of
    128). Apple does not document it, and newer systems allow more (107.5 of 128 GiB on macOS 26).
    """
    limit = integer(sysctl.get("iogpu.wired_limit_mb"))
    if limit:
        return min(limit * 2**20, total)
    return total * 2 // 3 if total < 36 * _GIB else total * 3 // 4


def _bandwidth(known: dict[str, str]) -> int | None:
    virtual = known.get("kern.hv_vmm_present") == "1"
    brand = clean(known.get("machdep.cpu.brand_string"))
    return tables.apple_bandwidth(brand) if brand and not virtual else None
