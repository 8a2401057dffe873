"""The table of accelerators. Each row is defined at the end of its vendor's module in `host/gpus/`.

The first accelerator in the table that fits is chosen. The CPU, which every host has, is last. The
payload imports nothing from envbuilder, so it has its own table with the same names, in
`payload/machine/accelerators.py`.
"""

from __future__ import annotations

from envbuilder.host.gpus import amd, apple, intel, nvidia
from envbuilder.host.gpus.accelerator import Accelerator

CPU = Accelerator(
    name="cpu",
    aliases=("none", "cpu-only", "x86", "x86-64", "arm64", "aarch64"),
    variants=("zendnn", "cpu-debian", "zendnn-debian", "cpu-ipex"),
)
ACCELERATORS = {row.name: row for row in (nvidia.CUDA, amd.ROCM, intel.XPU, apple.MPS, CPU)}


def of_vendor(vendor: str) -> Accelerator | None:
    """Return the row for a vendor's GPUs, or None if no row has that vendor."""
    for row in ACCELERATORS.values():
        if row.vendor == vendor:
            return row
    return None


def of_gpus() -> tuple[Accelerator, ...]:
    """Return the rows for GPUs, which are all rows except the CPU's."""
    return tuple(row for row in ACCELERATORS.values() if row.vendor)
