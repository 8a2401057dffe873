"""Recognize the GPU of a Tegra chip (Jetson) that is on no PCI bus.

The GPU of Thor is a PCI device of NVIDIA's common driver, as JetPack 7 has it, and is detected as
any other. Those before it have a driver of their own: neither the bus shows them, nor does NVML
give them an address. The device tree names the chip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.host import tables
from envbuilder.host.model import Gpu, Obstacle, State

if TYPE_CHECKING:
    from envbuilder.host.snapshot import Reader, Snapshot

# Not /proc/device-tree, which is a link to it.
_COMPATIBLE = "sys/firmware/devicetree/base/compatible"
_NODE = "dev/nvmap"
"""Its memory allocator, which containers see, too; the device tree is hidden from them."""
_LIMIT = 4096


def read(reader: Reader) -> None:
    """Read the names of the board and its chip, and whether the allocator's node exists."""
    reader.file(_COMPATIBLE, _LIMIT)
    reader.node(_NODE)


def gpu(snapshot: Snapshot, *, loaded: bool | None) -> Gpu | None:
    """Return the GPU of a Tegra chip; None on another machine.

    `loaded`: whether NVIDIA's common driver is; None if that is unknown.
    """
    compatible = snapshot.files.get(_COMPATIBLE, "").split("\0")
    chip = next((row for name in compatible if (row := tables.tegra_chip(name))), None)
    if chip is None and not snapshot.has(_NODE) and not any(map(_is_tegra, compatible)):
        return None
    state: State
    obstacle: Obstacle
    if chip is None or not chip.common_driver:
        state, obstacle = "present", "unsupported"
        detail = f"PyTorch's own wheels do not run on it: {tables.JETSON_TORCH}."
    elif loaded is False:
        state, obstacle = "present", "driver-missing"
        detail = "NVIDIA's kernel driver is not loaded."
    else:
        state, obstacle = "unknown", "unread"
        detail = "The PCI bus does not show it."
    return Gpu(
        vendor="nvidia",
        name=f"NVIDIA {chip.name if chip else 'Tegra'}",
        state=state,
        detail=detail,
        obstacle=obstacle,
        sm=chip.sm if chip else None,
    )


def _is_tegra(name: str) -> bool:
    return name.startswith("nvidia,tegra")
