"""Decide which NVIDIA GPUs there are and which of them this process could use.

NVML reports the most; without it or without a driver, name, chip and compute capability come from
the PCI id. That identifies the GPU better, but does not make it usable.

The GPU of a Tegra chip (Jetson) before Thor is on no PCI bus and has a driver of its own: NVML
gives it no address, and the device tree names the chip. That of Thor is a PCI device of NVIDIA's
common driver, as JetPack 7 has it, and is detected as any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from envbuilder.host import memory, tables
from envbuilder.host.gpus import nvidia_access, nvml, pci
from envbuilder.host.model import Gpu, Link, Obstacle, Peer, State
from envbuilder.host.snapshot import Reader, Snapshot, clean, fields, integer, version

VENDOR = 0x10DE
VERSION = "proc/driver/nvidia/version"
_GPUS = "proc/driver/nvidia/gpus"
# nvmlGpuTopologyLevel_t (nvml.h): internal, single and multiple switches, host bridge, NUMA node
# (with several host bridges), system.
_PATHS: dict[int | None, Literal["switch", "bridge", "node", "system", "board"]] = {
    0: "board",
    10: "switch",
    20: "switch",
    30: "bridge",
    40: "node",
    50: "system",
}
_INBOX = ("nvraid", "nvdimm", "nvhda.", "nvhdau")
"""Beginnings of drivers' names in Windows that mean no GPU: every Windows has the first two."""
_OK = 0
_UNKNOWN = 6  # nvmlGpuP2PStatus_t; the values between are reasons why not
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s", re.ASCII)
# Not /proc/device-tree, which is a link to it.
_COMPATIBLE = "sys/firmware/devicetree/base/compatible"
_ALLOCATOR = "dev/nvmap"
"""Its memory allocator, which containers see, too; the device tree is hidden from them."""
_COMPATIBLE_LIMIT = 4096


def read(reader: Reader) -> None:
    """Read the driver's files and nodes, and NVML's answer if the driver is present."""
    reader.file(VERSION)
    for address in reader.folder(_GPUS):
        reader.file(f"{_GPUS}/{address}/information")
    nvidia_access.read(reader)
    reader.file(_COMPATIBLE, _COMPATIBLE_LIMIT)
    reader.node(_ALLOCATOR)
    if not reader.live:
        reader.file("nvml.json")
    elif VERSION in reader.files or "dev/dxg" in reader.nodes:
        answer = nvml.ask()
        if answer is not None:
            reader.files["nvml.json"] = answer


def decide(
    snapshot: Snapshot,
    devices: Sequence[pci.Device],
    environ: Mapping[str, str],
    *,
    wsl: bool,
    container: bool,
) -> tuple[Gpu, ...]:
    """Return all NVIDIA GPUs that PCI, the kernel driver or NVML show, each once."""
    answer = nvml.parse(snapshot.files.get("nvml.json"))
    driver = _driver(snapshot, answer)
    access = _access(snapshot, answer, driver, environ, wsl=wsl, container=container)
    reported = {device.bus: device for device in answer.devices if device.bus} if answer else {}
    unplaced = [device for device in answer.devices if not device.bus] if answer else []
    shown = {device.bus: device for device in devices if device.vendor == VENDOR}
    named = (clean(bus) or "?" for bus in snapshot.folders.get(_GPUS, ()))
    buses = sorted({*shown, *named, *reported})
    reached = {bus: _bound(shown[bus], access) if bus in shown else access for bus in buses}
    if not wsl:
        minors = {
            bus: _minor(snapshot, bus, reported.get(bus))
            for bus in buses
            if reached[bus].state == "usable"
        }
        reached |= nvidia_access.of_cards(
            snapshot, minors, frozenset(reported), container=container
        )
    gpus = []
    for bus in buses:
        card = shown.get(bus)
        card_access = reached[bus]
        if card_access.state == "usable" and answer and bus not in reported and not unplaced:
            detail = "The driver does not give this GPU to this process."
            card_access = pci.Access("present", detail, "not-given")
        gpus.append(_gpu(snapshot, bus, card, reported.get(bus), driver, card_access))
    gpus.extend(_gpu(snapshot, None, None, device, driver, access) for device in unplaced)
    return tuple(gpus) or _without_pci(snapshot, wsl=wsl)


def _minor(snapshot: Snapshot, bus: str, device: nvml.Device | None) -> int | None:
    """Return N of the card's /dev/nvidiaN, from the kernel driver, else from NVML."""
    information = fields(snapshot.files.get(f"{_GPUS}/{bus}/information"))
    number = integer(information.get("Device Minor"))
    if number is None and device:
        return device.minor
    return number


def peers(snapshot: Snapshot) -> tuple[Peer, ...]:
    """Return how the GPUs that NVML lists reach each other; at most 16 are paired."""
    answer = nvml.parse(snapshot.files.get("nvml.json"))
    if answer is None or answer.error:
        return ()
    return tuple(
        Peer(
            first=pair.first,
            second=pair.second,
            path="nvlink" if pair.nvlink == _OK else _PATHS.get(pair.ancestor),
            direct=None if pair.read not in range(_UNKNOWN) else pair.read == _OK,
        )
        for pair in answer.pairs
        if pair.first and pair.second and pair.first != pair.second
    )


def _gpu(
    snapshot: Snapshot,
    bus: str | None,
    card: pci.Device | None,
    reported: nvml.Device | None,
    driver: str | None,
    access: pci.Access,
) -> Gpu:
    """Return one GPU, from its PCI card, from its address, or from NVML alone."""
    device_id = card.device_id if card else None
    row = tables.nvidia_gpu(device_id or "")
    name = reported.name if reported else _model(snapshot, bus)
    if name is None and row is not None:
        name = f"NVIDIA {row.name or row.chip}"
    minor = _minor(snapshot, bus or "", reported)
    reported = reported or nvml.Device(name="")
    if access.state == "usable":
        access = nvidia_access.of_modes(snapshot, reported, minor) or access
    size = _memory(snapshot, reported)
    return Gpu(
        vendor="nvidia",
        name=name or f"NVIDIA GPU {device_id or ''}".strip(),
        state=access.state,
        detail=access.detail,
        obstacle=access.obstacle,
        bus=bus,
        device_id=device_id,
        family=row.chip if row else None,
        kernel_driver=card.driver if card else None,
        driver_version=driver,
        # A vGPU ("GRID A100-10C") is named after its GPU.
        sm=reported.sm
        or (row.sm if row else None)
        or (tables.nvidia_sm(name.removeprefix("GRID ")) if name else None),
        memory_kind=size.kind,
        memory_bytes=size.total,
        usable_bytes=size.usable,
        bandwidth=size.bandwidth,
        link=None if size.kind == "shared" else _link(reported, card),
        power_limit_watts=_watts(reported.power_limit_milliwatts),
        power_default_watts=_watts(reported.power_default_milliwatts),
        mig=reported.mig,
    )


def _model(snapshot: Snapshot, bus: str | None) -> str | None:
    """Return the kernel driver's name for the GPU."""
    information = fields(snapshot.files.get(f"{_GPUS}/{bus}/information"))
    model = clean(information.get("Model"))
    if model != "Unknown":
        return model
    return None


def _memory(snapshot: Snapshot, device: nvml.Device) -> pci.Size:
    if device.shared_memory and not device.mig and device.memory_bytes is None:
        # GB10 and Jetson: NVML answers "Not Supported" (NVIDIA, DGX Spark known issues). How much
        # main memory CUDA can allocate depends on what else uses it.
        return pci.Size(kind="shared", total=memory.total(snapshot))
    if device.memory_bytes is None:
        return pci.Size()
    usable = None
    if device.reserved_bytes is not None and device.reserved_bytes <= device.memory_bytes:
        usable = device.memory_bytes - device.reserved_bytes
    bandwidth = None
    if device.memory_mhz and device.memory_bits:
        # As in CUDA's samples: two transfers per clock. NVML's clock fits that for all kinds of
        # memory: GDDR6X (RTX 4090: 10501 MHz, 384 bits, 1008 GB/s), GDDR7 (RTX 5070: 14001 MHz,
        # 192 bits, 672 GB/s), HBM3 (H100 SXM: 2619 MHz, 5120 bits, 3352 GB/s).
        bandwidth = 2 * device.memory_mhz * 10**6 * device.memory_bits // 8
    return pci.Size("dedicated", device.memory_bytes, None if device.mig else usable, bandwidth)


def _link(device: nvml.Device, card: pci.Device | None) -> Link | None:
    """Return the link as NVML reports it, with sysfs for missing values.

    NVML's maximum width is that of card and slot together, sysfs's that of the card alone. The
    larger counts, so that a card in a slot with fewer lanes is recognized.
    """
    shown = (card and card.link) or Link()
    link = Link(
        speed=_speed(device.link_generation) or shown.speed,
        width=device.link_width or shown.width,
        max_speed=_speed(device.max_link_generation) or shown.max_speed,
        max_width=max(device.max_link_width or 0, shown.max_width or 0) or None,
    )
    if link == Link():
        return None
    return link


def _speed(generation: int | None) -> float | None:
    if generation:
        return pci.SPEEDS[generation - 1]
    return None


def _watts(milliwatts: int | None) -> float | None:
    if milliwatts:
        return milliwatts / 1000
    return None


def _driver(snapshot: Snapshot, answer: nvml.Answer | None) -> str | None:
    match = _MODULE.search(snapshot.files.get(VERSION, ""))
    loaded = match[1] if match else None
    if answer and version(answer.driver_version):
        return answer.driver_version
    return loaded


def _bound(card: pci.Device, access: pci.Access) -> pci.Access:
    """Return `access`, corrected by what the card's own kernel driver implies."""
    if card.driver not in (None, "nvidia"):
        detail = f"The kernel driver {card.driver} is bound to it; CUDA needs NVIDIA's own driver."
        return pci.Access("present", detail, "driver-other")
    if card.bound is False and access.state != "unknown":
        detail = "No kernel driver is bound to it: install NVIDIA's driver."
        return pci.Access("present", detail, "driver-missing")
    if card.display is None and access.state == "usable":
        return pci.Access("unknown", "Its PCI class could not be read.", "unread")
    return access


def _access(
    snapshot: Snapshot,
    answer: nvml.Answer | None,
    driver: str | None,
    environ: Mapping[str, str],
    *,
    wsl: bool,
    container: bool,
) -> pci.Access:
    """Return this process's access to the driver."""
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        detail = f"CUDA_VISIBLE_DEVICES={hidden!r} hides it from this process."
        return pci.Access("present", detail, "hidden")
    if answer and answer.error:
        detail = f"NVIDIA's management library failed: {answer.error}."
        return pci.Access("unknown", detail, "library-failed")
    told = bool(answer and answer.devices)
    if snapshot.has(VERSION) is False and not told and not wsl:
        return pci.Access("present", "NVIDIA's kernel driver is not loaded.", "driver-missing")
    problem = nvidia_access.shared(snapshot, wsl=wsl, container=container)
    if problem is None and driver is None:
        detail = "The version of NVIDIA's driver could not be read."
        problem = pci.Access("unknown", detail, "driver-unread")
    return problem or pci.USABLE


def _without_pci(snapshot: Snapshot, *, wsl: bool) -> tuple[Gpu, ...]:
    """Return GPUs visible only indirectly: behind WSL's /dev/dxg, or as part of a Tegra chip."""
    drivers = snapshot.folders.get("usr/lib/wsl/drivers", ())
    if wsl and any(driver.startswith("nv") and driver[:6] not in _INBOX for driver in drivers):
        detail = "WSL does not show the GPU itself, and NVML did not answer."
        return (
            Gpu(vendor="nvidia", name="NVIDIA GPU", state="unknown", detail=detail, obstacle="wsl"),
        )
    loaded = snapshot.has(VERSION)
    integrated = _tegra(snapshot, loaded=loaded)
    if integrated or not loaded:
        if integrated:
            return (integrated,)
        return ()
    detail = "NVIDIA's driver is loaded, but none of its GPUs could be listed."
    return (
        Gpu(vendor="nvidia", name="NVIDIA GPU", state="unknown", detail=detail, obstacle="unread"),
    )


def _tegra(snapshot: Snapshot, *, loaded: bool | None) -> Gpu | None:
    """Return the GPU of a Tegra chip; None on another machine.

    `loaded`: whether NVIDIA's common driver is; None if that is unknown.
    """
    compatible = snapshot.files.get(_COMPATIBLE, "").split("\0")
    chip = next((row for name in compatible if (row := tables.tegra_chip(name))), None)
    if (
        chip is None
        and not snapshot.has(_ALLOCATOR)
        and not any(name.startswith("nvidia,tegra") for name in compatible)
    ):
        return None
    state: State
    obstacle: Obstacle
    if chip is None or not chip.common_driver:
        state = "present"
        obstacle = "unsupported"
        detail = f"PyTorch's own wheels do not run on it: {tables.JETSON_TORCH}."
    elif loaded is False:
        state = "present"
        obstacle = "driver-missing"
        detail = "NVIDIA's kernel driver is not loaded."
    else:
        state = "unknown"
        obstacle = "unread"
        detail = "The PCI bus does not show it."
    return Gpu(
        vendor="nvidia",
        name=f"NVIDIA {chip.name if chip else 'Tegra'}",
        state=state,
        detail=detail,
        obstacle=obstacle,
        sm=chip.sm if chip else None,
    )
