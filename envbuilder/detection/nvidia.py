"""Decide which NVIDIA GPUs there are and which of them this process could use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.detection import nvml, tables
from envbuilder.detection.snapshot import NVIDIA_VERSION
from envbuilder.detection.text import clean, fields, version
from envbuilder.host import Gpu, State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.detection.pci import Device
    from envbuilder.detection.snapshot import Snapshot

VENDOR = 0x10DE
_GPUS = "proc/driver/nvidia/gpus"
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s", re.ASCII)


def decide(
    snapshot: Snapshot, devices: Sequence[Device], environ: Mapping[str, str], *, wsl: bool
) -> tuple[Gpu, ...]:
    """All NVIDIA GPUs: what PCI, the kernel driver and NVML show, each once."""
    answer = nvml.parse(snapshot.files.get("nvml.json"))
    driver = _driver(snapshot, answer)
    state, detail = _access(snapshot, answer, driver, environ, wsl=wsl)
    told = {device.bus: device for device in answer.devices if device.bus} if answer else {}
    nowhere = [device for device in answer.devices if not device.bus] if answer else []
    shown = {device.bus: device for device in devices if device.vendor == VENDOR}
    gpus = []
    for bus in sorted({*shown, *_named(snapshot), *told}):
        own_state, own_detail = state, detail
        card = shown.get(bus)
        if card is not None:
            own_state, own_detail = _bound(card, state, detail)
        if own_state == "usable" and answer and bus not in told and not nowhere:
            own_state = "present"
            own_detail = "The driver does not give this GPU to this process."
        access = (own_state, own_detail)
        gpus.append(_gpu(snapshot, card or bus, told.get(bus), driver, access))
    gpus.extend(_gpu(snapshot, None, device, driver, (state, detail)) for device in nowhere)
    return tuple(gpus) or _without_pci(snapshot, wsl=wsl)


def _named(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(clean(bus) or "?" for bus in snapshot.folders.get(_GPUS, ()))


def _gpu(
    snapshot: Snapshot,
    shown: Device | str | None,
    told: nvml.Device | None,
    driver: str | None,
    access: tuple[State, str],
) -> Gpu:
    """One GPU: the card that PCI shows, or its address, or what NVML alone tells."""
    card = shown if not isinstance(shown, str) else None
    bus = card.bus if card else shown if isinstance(shown, str) else None
    information = fields(snapshot.files.get(f"{_GPUS}/{bus}/information"))
    name = told.name if told else clean(information.get("Model"))
    device_id = card.device_id if card else None
    return Gpu(
        vendor="nvidia",
        name=name or f"NVIDIA GPU {device_id or ''}".strip(),
        state=access[0],
        detail=access[1],
        bus=bus,
        device_id=device_id,
        kernel_driver=card.driver if card else None,
        driver_version=driver,
        sm=(told.sm if told else None) or (tables.nvidia_sm(name) if name else None),
        memory_bytes=told.memory_bytes if told else None,
    )


def _driver(snapshot: Snapshot, answer: nvml.Answer | None) -> str | None:
    match = _MODULE.search(snapshot.files.get(NVIDIA_VERSION, ""))
    loaded = match[1] if match else None
    told = answer.driver_version if answer and version(answer.driver_version) else None
    return told or loaded


def _bound(card: Device, state: State, detail: str) -> tuple[State, str]:
    """What the card's own kernel driver changes about the answer."""
    if card.driver not in (None, "nvidia"):
        return "present", f"The kernel driver {card.driver} has it; CUDA needs NVIDIA's own driver."
    if card.bound is False and state != "unknown":
        return "present", "No kernel driver has it: install NVIDIA's driver."
    if card.display is None and state == "usable":
        return "unknown", "Its PCI class could not be read."
    return state, detail


def _access(
    snapshot: Snapshot,
    answer: nvml.Answer | None,
    driver: str | None,
    environ: Mapping[str, str],
    *,
    wsl: bool,
) -> tuple[State, str]:
    """Whether this process can reach the driver."""
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        return "present", f"CUDA_VISIBLE_DEVICES={hidden!r} hides it from this process."
    if answer and answer.error:
        return "unknown", f"NVIDIA's management library failed: {answer.error}."
    told = bool(answer and answer.devices)
    if snapshot.has(NVIDIA_VERSION) is False and not told and not wsl:
        return "present", "NVIDIA's kernel driver is not loaded."
    problem = _node(snapshot, "dev/dxg" if wsl else "dev/nvidiactl")
    if problem is None and driver is None:
        problem = "unknown", "The version of NVIDIA's driver could not be read."
    return problem or ("usable", "")


def _node(snapshot: Snapshot, control: str) -> tuple[State, str] | None:
    """What is wrong with the node that every CUDA program opens."""
    if snapshot.has(control) is False:
        inside = snapshot.has(".dockerenv") or snapshot.has("run/.containerenv")
        advice = "start the container with --gpus all" if inside else "run nvidia-modprobe"
        return "present", f"/{control} is missing: {advice}."
    if control not in snapshot.nodes:
        return "unknown", f"Whether /{control} is there could not be read."
    if not snapshot.nodes[control]:
        return "present", f"/{control} may not be opened by this user."
    return None


def _without_pci(snapshot: Snapshot, *, wsl: bool) -> tuple[Gpu, ...]:
    """GPUs that show only indirectly: behind WSL's /dev/dxg, or part of a Tegra chip."""
    drivers = snapshot.folders.get("usr/lib/wsl/drivers", ())
    if wsl and any(name.startswith("nv") for name in drivers):
        detail = "WSL does not show the GPU itself; install nvidia-ml-py to ask its driver."
        return (Gpu(vendor="nvidia", name="NVIDIA GPU", state="unknown", detail=detail),)
    if snapshot.has("dev/nvmap"):
        detail = "Jetson is not supported: its torch comes from NVIDIA."
        return (Gpu(vendor="nvidia", name="NVIDIA Tegra", state="unknown", detail=detail),)
    if snapshot.has(NVIDIA_VERSION):
        detail = "NVIDIA's driver is loaded, but no GPU of it could be listed."
        return (Gpu(vendor="nvidia", name="NVIDIA GPU", state="unknown", detail=detail),)
    return ()
