"""Decide which Intel GPUs there are and which of them torch.xpu could use.

Iris Xe and older are recognized by PCI id: `torch.xpu.is_available()` can be True for them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envbuilder.host import memory, tables
from envbuilder.host.gpus import pci
from envbuilder.host.model import Gpu
from envbuilder.host.snapshot import Reader, Snapshot, integer, version

VENDOR = 0x8086
_DRIVERS = ("i915", "xe")
_LEVEL_ZERO_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib")
_LEVEL_ZERO = ("libze_loader.so.1", "libze_intel_gpu.so.1")
_TILES = 8
# Linux, Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon: 1 is the card, 2 the package.
_LIMITS = ("power1_max", "power2_max")
_DEFAULTS = ("power1_rated_max", "power2_rated_max")
# Percentage of memory that Intel's driver makes available: compute-runtime, function
# DrmMemoryManager::getPercentOfGlobalMemoryAvailable. Older versions: 80 of shared memory.
_OWN_PERCENT = 95
_SHARED_PERCENT = 94
_XE_GIVES_ALL = (6, 15)


def read(reader: Reader) -> None:
    """Read render nodes, each GPU's memory and power, and the libraries that no wheel contains."""
    for name in reader.folder("dev/dri"):
        if name.startswith("renderD"):
            reader.node(f"dev/dri/{name}")
    if reader.groups:
        reader.file("etc/group")
    for device in pci.display_devices(reader, VENDOR):
        _read_memory(reader, device)
        pci.read_sensors(reader, device, (*_LIMITS, *_DEFAULTS))
    for folder in _LEVEL_ZERO_FOLDERS:
        for library in _LEVEL_ZERO:
            reader.exists(f"{folder}/{library}")


def _read_memory(reader: Reader, device: str) -> None:
    """Read the GPU's own memory: one file per tile with xe, one per card with Intel's own i915."""
    for tile in range(_TILES):
        if reader.file(f"{device}/tile{tile}/physical_vram_size_bytes") is None:
            break
    for card in reader.folders.get(f"{device}/drm", ()):
        if card.startswith("card"):
            reader.file(f"{device}/drm/{card}/lmem_total_bytes")


def decide(snapshot: Snapshot, devices: Sequence[pci.Device], *, wsl: bool) -> tuple[Gpu, ...]:
    """Return all Intel GPUs."""
    gpus = tuple(_gpu(snapshot, d) for d in devices if d.vendor == VENDOR and is_gpu(d))
    drivers = snapshot.folders.get("usr/lib/wsl/drivers", ())
    if not gpus and wsl and any(name.startswith("iigd") for name in drivers):
        detail = "WSL does not show which Intel GPU Windows has."
        gpus = (
            Gpu(vendor="intel", name="Intel GPU", state="unknown", detail=detail, obstacle="wsl"),
        )
    return gpus


def is_gpu(device: pci.Device) -> bool:
    """Return whether an Intel device is a GPU; without a PCI class, only listed ids count."""
    return bool(device.display) or tables.intel_gpu(device.device_id or "") is not None


def _gpu(snapshot: Snapshot, device: pci.Device) -> Gpu:
    row = tables.intel_gpu(device.device_id or "")
    number = (device.device_id or "unknown id").upper()
    name = f"Intel {row.name or row.family}" if row else "Intel GPU"
    folder = f"{pci.PCI}/{device.bus}"
    size = _memory(snapshot, device, folder, row.memory if row else None)
    readable = snapshot.nodes.get((device.render_node or "").lstrip("/"))
    access = (
        pci.driver(device, _DRIVERS, "torch.xpu")
        or pci.render_node(snapshot, device.render_node)
        or pci.USABLE
    )
    if row is None and access.state == "usable":
        access = pci.Access("unknown", f"PCI id {number} is not in envbuilder's table.", "unlisted")
    if row is not None and row.support == "unsupported":
        detail = f"{name} ({number}) is not supported by torch.xpu."
        access = pci.Access("present", detail, "unsupported")
    return Gpu(
        vendor="intel",
        name=f"{name} ({number})",
        state=access.state,
        detail=access.detail,
        obstacle=access.obstacle,
        bus=device.bus,
        device_id=device.device_id,
        family=row.family if row else None,
        support=row.support if row else None,
        kernel_driver=device.driver,
        memory_kind=size.kind,
        memory_bytes=size.total,
        usable_bytes=size.usable,
        bandwidth=size.bandwidth,
        link=device.link if size.kind == "dedicated" else None,
        power_limit_watts=pci.watts(snapshot, folder, _LIMITS),
        power_default_watts=pci.watts(snapshot, folder, _DEFAULTS),
        render_node=device.render_node,
        render_node_readable=readable,
        render_node_group=pci.node_group(snapshot, device.render_node),
    )


def _memory(
    snapshot: Snapshot, device: pci.Device, folder: str, kind: tables.MemoryKind | None
) -> pci.Size:
    local = _own_memory(snapshot, folder)
    if kind == "shared":
        total = memory.total(snapshot)
        return pci.Size("shared", total, _shared(snapshot, device.driver, total))
    if kind == "dedicated" or local:
        facts = tables.intel_memory(device.device_id or "")
        total = local or (facts.memory_bytes if facts else None)
        usable = total * _OWN_PERCENT // 100 if total is not None else None
        return pci.Size("dedicated", total, usable, facts.bandwidth if facts else None)
    return pci.Size()


def _own_memory(snapshot: Snapshot, folder: str) -> int | None:
    """Return the memory of all tiles as the driver reports it; None if any is unknown."""
    tiles = [f"{folder}/tile{number}/physical_vram_size_bytes" for number in range(_TILES)]
    if any(path in snapshot.unreadable for path in tiles):
        return None
    paths = [path for path in tiles if path in snapshot.files] or [
        path
        for card in snapshot.folders.get(f"{folder}/drm", ())
        if (path := f"{folder}/drm/{card}/lmem_total_bytes") in snapshot.files
    ]
    sizes = [integer(snapshot.files[path]) or 0 for path in paths]
    if sizes and all(sizes) and sum(sizes) <= 2**53:
        return sum(sizes)
    return None


def _shared(snapshot: Snapshot, kernel_driver: str | None, total: int | None) -> int | None:
    """Return the memory that Level Zero reports for an integrated GPU, with drivers since 2025.

    It counts the main memory that the kernel lets one GPU map: with i915 all of it; with xe all
    of it since Linux 6.15, half before ("drm/xe: Increase the XE_PL_TT watermark"). ttm's
    parameter `pages_limit` does not count: above it, other buffers are swapped out first and then
    the allocation continues (ttm_tt_populate).
    """
    if total is None or kernel_driver not in _DRIVERS:
        return None
    if kernel_driver == "xe":
        match = re.match(r"[0-9]+\.[0-9]+", snapshot.files.get("proc/sys/kernel/osrelease", ""))
        release = version(match[0]) if match else None
        if release is None:
            return None
        total = total if release >= _XE_GIVES_ALL else total // 2
    return total * _SHARED_PERCENT // 100


def level_zero(snapshot: Snapshot) -> bool | None:
    """Return whether the Level Zero loader and Intel's driver for it are in the usual folders."""
    answers = []
    for library in _LEVEL_ZERO:
        found = [snapshot.has(f"{folder}/{library}") for folder in _LEVEL_ZERO_FOLDERS]
        lacking = None if None in found else False
        answers.append(any(found) or lacking)
    if None not in answers:
        return all(answers)
    return None
