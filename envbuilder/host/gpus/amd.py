"""Decide which AMD GPUs there are. No profile uses them: they are listed, but never usable.

Their names come from the PCI id, ROCm's target from the compute driver (kfd).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.host import tables
from envbuilder.host.gpus import pci
from envbuilder.host.gpus.pci import Size
from envbuilder.host.memory import memory
from envbuilder.host.model import Gpu
from envbuilder.host.text import integer, lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.host.gpus.pci import Device
    from envbuilder.host.snapshot import Reader, Snapshot

VENDOR = 0x1002
_NODES = "sys/class/kfd/kfd/topology/nodes"
_MEMORY = ("mem_info_vram_total", "mem_info_gtt_total")
_POWER = ("power1_cap", "power1_cap_default")
# Linux amdgpu_pm.c: "only APUs have vddnb", "no mclk on APUs"; the exception is the MI300A, which
# also lacks a memory manager of its own.
_ONLY_APU, _NO_APU = "in1_label", "freq2_label"


# Windows' folders of AMD's display drivers, such as u0389403.inf_amd64_6b3a61d3a0f5a6a5.
_WINDOWS_DRIVER = re.compile(r"[uc]0[0-9]{6}\.inf_", re.ASCII)


def read(reader: Reader) -> None:
    """Read what the kernel drivers report about each GPU."""
    reader.node("dev/kfd")
    devices = pci.display_devices(reader, VENDOR)
    for device in devices:
        for name in _MEMORY:
            reader.file(f"{device}/{name}")
        pci.read_sensors(reader, device, _POWER)
    if devices:
        for node in reader.folder(_NODES):
            reader.file(f"{_NODES}/{node}/properties")


def decide(snapshot: Snapshot, devices: Sequence[Device], *, wsl: bool) -> tuple[Gpu, ...]:
    """Return all AMD GPUs."""
    gpus = tuple(_gpu(snapshot, device) for device in devices if device.vendor == VENDOR)
    drivers = snapshot.folders.get("usr/lib/wsl/drivers", ())
    if not gpus and wsl and any(_WINDOWS_DRIVER.match(name) for name in drivers):
        gpus = (Gpu(vendor="amd", name="AMD GPU", state="present", detail=_detail(None)),)
    return gpus


def _detail(target: str | None) -> str:
    kernels = f"if they list {target}" if target else "if they list it"
    return (
        "No profile supports AMD GPUs yet: use --profile cpu, or install PyTorch's ROCm wheels"
        f" yourself (pytorch.org), {kernels}."
    )


def _gpu(snapshot: Snapshot, device: Device) -> Gpu:
    folder = f"{pci.PCI}/{device.bus}"
    node = _node(snapshot, device.bus)
    size = _memory(snapshot, folder, node)
    target = _target(node.get("gfx_target_version"))
    name = tables.amd_gpu(device.device_id or "") or f"GPU {device.device_id or ''}".strip()
    return Gpu(
        vendor="amd",
        name=f"AMD {name}",
        state="present",
        detail=_detail(target),
        bus=device.bus,
        device_id=device.device_id,
        family=target,
        kernel_driver=device.driver,
        memory_kind=size.kind,
        memory_bytes=size.total,
        usable_bytes=size.usable,
        # An APU's link is meaningless.
        link=device.link if size.kind == "dedicated" else None,
        power_limit_watts=pci.watts(snapshot, folder, _POWER[:1]),
        power_default_watts=pci.watts(snapshot, folder, _POWER[1:]),
        render_node=device.render_node,
        render_node_readable=snapshot.nodes.get((device.render_node or "").lstrip("/")),
        render_node_group=pci.node_group(snapshot, device.render_node),
    )


def _node(snapshot: Snapshot, address: str) -> dict[str, int]:
    """Return the compute driver's facts about the GPU at a PCI address; empty if it lists none."""
    # `location_id` combines bus, device and function (Linux kfd_topology.c).
    domain, _, rest = address.partition(":")
    bus, _, slot = rest.partition(":")
    number, _, function = slot.partition(".")
    parts = [integer(part, 16) for part in (domain, bus, number, function)]
    if None in parts:
        return {}
    place = (parts[1] or 0) << 8 | (parts[2] or 0) << 3 | (parts[3] or 0)
    for name in snapshot.folders.get(_NODES, ()):
        text = snapshot.files.get(f"{_NODES}/{name}/properties")
        pairs = [line.split(" ") for line in lines(text)]
        properties = {p[0]: n for p in pairs if len(p) == 2 and (n := integer(p[1])) is not None}
        matches = (properties.get("domain", 0), properties.get("location_id")) == (parts[0], place)
        if matches and properties.get("simd_count"):
            return properties
    return {}


def _target(number: int | None) -> str | None:
    """Return the ROCm compiler's target name: 110000 is gfx1100, 90402 is gfx942."""
    if not number or number >= 10**6:
        return None
    return f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"


def _memory(snapshot: Snapshot, folder: str, node: dict[str, int]) -> Size:
    """Return a card's own memory or, for an APU, main memory plus the firmware's carve-out."""
    vram, gtt = (integer(snapshot.files.get(f"{folder}/{name}")) for name in _MEMORY)
    sensors = {
        name
        for chip in snapshot.folders.get(f"{folder}/hwmon", ())
        for name in snapshot.folders.get(f"{folder}/hwmon/{chip}", ())
    }
    if _ONLY_APU in sensors or node.get("cpu_cores_count"):
        main = memory.total(snapshot)
        if main is None or vram is None:
            return Size("shared")
        total = main + vram
        return Size("shared", total, None if gtt is None else min(vram + gtt, total))
    if _NO_APU in sensors and vram:
        return Size("dedicated", vram)
    return Size()
