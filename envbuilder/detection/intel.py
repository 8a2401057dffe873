"""Decide which Intel GPUs there are and which of them torch.xpu could use.

Iris Xe and older are told by their PCI id: `torch.xpu.is_available()` can say True for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.detection import tables
from envbuilder.detection.snapshot import LEVEL_ZERO_FOLDERS
from envbuilder.host import Gpu, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.detection.pci import Device
    from envbuilder.detection.snapshot import Snapshot

VENDOR = 0x8086


def decide(snapshot: Snapshot, devices: Sequence[Device], *, wsl: bool) -> tuple[Gpu, ...]:
    """All Intel GPUs."""
    gpus = tuple(_gpu(snapshot, d) for d in devices if d.vendor == VENDOR and is_gpu(d))
    drivers = snapshot.folders.get("usr/lib/wsl/drivers", ())
    if not gpus and wsl and any(name.startswith("iigd") for name in drivers):
        detail = "WSL does not show which Intel GPU Windows has."
        gpus = (Gpu(vendor="intel", name="Intel GPU", state="unknown", detail=detail),)
    return gpus


def is_gpu(device: Device) -> bool:
    """Intel makes much else: without a class only the table's ids count."""
    return bool(device.display) or tables.intel_gpu(device.device_id or "") is not None


def _gpu(snapshot: Snapshot, device: Device) -> Gpu:
    known = tables.intel_gpu(device.device_id or "")
    number = (device.device_id or "unknown id").upper()
    name = f"Intel {known.name or known.family}" if known else "Intel GPU"
    readable = snapshot.nodes.get((device.render_node or "").lstrip("/"))
    state, detail = _driver(device) or _node(snapshot, device, readable) or ("usable", "")
    if known is None and state == "usable":
        state, detail = "unknown", f"PCI id {number} is not in envbuilder's table."
    if known is not None and known.support == "unsupported":
        state, detail = "present", f"{name} ({number}) is not supported by torch.xpu."
    return Gpu(
        vendor="intel",
        name=f"{name} ({number})",
        state=state,
        detail=detail,
        bus=device.bus,
        device_id=device.device_id,
        family=known.family if known else None,
        support=known.support if known else None,
        kernel_driver=device.driver,
        render_node=device.render_node,
        render_node_readable=readable,
    )


def _driver(device: Device) -> tuple[State, str] | None:
    if device.bound is False:
        return "present", "No kernel driver has it: torch.xpu needs i915 or xe."
    if device.driver is None:
        return "unknown", "Its kernel driver could not be read."
    if device.driver not in ("i915", "xe"):
        return "present", f"The kernel driver {device.driver} has it; torch.xpu needs i915 or xe."
    return None


def _node(snapshot: Snapshot, device: Device, readable: bool | None) -> tuple[State, str] | None:
    node = device.render_node
    if node is None:
        return "unknown", "Which node in /dev/dri is its render node could not be read."
    if readable is None:
        if "dev/dri" in snapshot.folders or snapshot.has("dev/dri") is False:
            return "present", f"{node} is missing: a container needs --device /dev/dri."
        return "unknown", f"Whether {node} is there could not be read."
    if not readable:
        return "present", (
            f"{node} is not readable: join its group with `sudo usermod -aG render $USER`, "
            "then log in again."
        )
    return None


def level_zero(snapshot: Snapshot) -> bool | None:
    """Whether the Level Zero loader and Intel's driver for it are in one of the usual folders."""
    answers = []
    for library in ("libze_loader.so.1", "libze_intel_gpu.so.1"):
        found = [snapshot.has(f"{folder}/{library}") for folder in LEVEL_ZERO_FOLDERS]
        answers.append(True if any(found) else None if None in found else False)
    return all(answers) if None not in answers else None
