"""Containers of device code as compilers embed them, with contents of zeros."""

from __future__ import annotations

import struct

import zstandard

HOST = "host-x86_64-unknown-linux-gnu-"


def fatbin(*entries: str) -> bytes:
    """Return NVIDIA's fat binary with entries such as "sm_90a" and "compute_80"."""
    content = b""
    for number, entry in enumerate(entries):
        kind, _, arch = entry.partition("_")
        variant = {"a": 1, "f": 2}.get(arch[-1], 0)
        header, size = (72, 24) if kind == "compute" else (64, 8 * number)
        content += struct.pack(
            "<HHIQIIHHIIIQ",
            1 if kind == "compute" else 2,
            0x101,
            header,
            size,
            0,
            0,
            7,
            1,
            int(arch.rstrip("af")),
            0,
            0,
            variant << 20 | 0x2011,
        ).ljust(header + size, b"\0")
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def bundle(*targets: str) -> bytes:
    """Return an offload bundle with code objects of 100 bytes."""
    table = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(targets))
    for target in targets:
        table += struct.pack("<QQQ", 4096, 100, len(target)) + target.encode()
    return table + bytes(4096)


def compressed(content: bytes, version: int) -> bytes:
    """Return a compressed bundle, in one of the versions of its header."""
    packed = zstandard.compress(content)
    sizes = {1: "<I", 2: "<II", 3: "<QQ"}[version]
    header = struct.pack(sizes, *[len(content)] * (len(sizes) - 1)) + bytes(8)
    return b"CCOB" + struct.pack("<HH", version, 1) + header + packed


def amd(*names: str) -> tuple[str, ...]:
    """Return the targets of a bundle for GPUs."""
    return HOST, *(f"hipv4-amdgcn-amd-amdhsa--{name}" for name in names)


SAMPLE = b"".join(
    (
        fatbin("sm_80", "sm_90a", "sm_120f", "compute_80"),
        bundle(*amd("gfx90a:sramecc+:xnack-", "gfx1100")),
        compressed(bundle(*amd("gfx942")), 3),
    )
)
