"""Parse: the display devices that `/sys/bus/pci` shows. A container sees all of the host's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.detection.snapshot import PCI
from envbuilder.detection.text import clean, integer

if TYPE_CHECKING:
    from envbuilder.detection.snapshot import Snapshot


class Device(Struct, frozen=True, kw_only=True):
    """A display device, or one whose class could not be read (`display` is None)."""

    bus: str
    vendor: int | None
    device_id: str | None
    display: bool | None
    driver: str | None
    bound: bool | None
    """Whether a kernel driver has it; None where that is unknown."""
    render_node: str | None
    """Path of its render node, as the kernel names it."""


def devices(snapshot: Snapshot) -> tuple[Device, ...]:
    """All devices that are, or may be, GPUs."""
    return tuple(
        _device(snapshot, address)
        for address in snapshot.folders.get(PCI, ())
        if _is_candidate(snapshot, address)
    )


def _is_candidate(snapshot: Snapshot, address: str) -> bool:
    # What is no display device was dropped while fetching.
    folder = f"{PCI}/{address}"
    keys = [f"{folder}/{name}" for name in ("class", "vendor", "device")]
    return any(key in snapshot.files or key in snapshot.unreadable for key in keys)


def _device(snapshot: Snapshot, address: str) -> Device:
    folder = f"{PCI}/{address}"
    kind = integer(snapshot.files.get(f"{folder}/class"), 16)
    number = integer(snapshot.files.get(f"{folder}/device"), 16)
    nodes = [n for n in snapshot.folders.get(f"{folder}/drm", ()) if n.startswith("renderD")]
    bound = snapshot.has(f"{folder}/driver")
    return Device(
        bus=clean(address) or "?",
        vendor=integer(snapshot.files.get(f"{folder}/vendor"), 16),
        device_id=f"{number:04x}" if number is not None and number <= 0xFFFF else None,
        display=None if kind is None else kind >> 16 == 0x03,
        driver=clean(snapshot.links.get(f"{folder}/driver")),
        bound=bound,
        render_node=f"/dev/dri/{clean(nodes[0])}" if nodes else None,
    )
