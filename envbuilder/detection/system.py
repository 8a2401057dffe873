"""Decide: a snapshot → the host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.detection import apple, cpu, intel, nvidia, pci
from envbuilder.detection.snapshot import PCI
from envbuilder.detection.text import clean, fields, integer, lines
from envbuilder.host import Gpu, Host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder import words
    from envbuilder.detection.pci import Device
    from envbuilder.detection.snapshot import Snapshot

_AMD = 0x1002
_PLATFORMS: dict[str, words.Platform] = {
    "x86_64": "linux/amd64",
    "aarch64": "linux/arm64",
    "arm64": "linux/arm64",
}
_CONTAINER = re.compile(r"docker|kubepods|containerd|libpod|lxc")
_HIDING = ("CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR")


def decide(snapshot: Snapshot, environ: Mapping[str, str]) -> Host:
    """The host that a snapshot shows."""
    if snapshot.system == "macos":
        return apple.decide(snapshot)
    if snapshot.system == "other":
        where = "this system" if snapshot.live else "the recorded tree (no proc/, no sysctl.txt)"
        note = f"Nothing could be read: {where} is neither Linux nor macOS."
        return Host(os="other", machine=snapshot.machine or "unknown", notes=(note,))
    return _linux(snapshot, environ)


def _linux(snapshot: Snapshot, environ: Mapping[str, str]) -> Host:
    machine = cpu.machine(snapshot)
    processor = cpu.linux(snapshot)
    wsl = any(
        "microsoft" in snapshot.files.get(path, "").lower()
        for path in ("proc/version", "proc/sys/kernel/osrelease")
    )
    return Host(
        os="linux",
        os_version=_distribution(snapshot),
        kernel=_kernel(snapshot),
        machine=machine,
        platform=_PLATFORMS.get(machine),
        wsl=wsl,
        container=bool(
            snapshot.has(".dockerenv")
            or snapshot.has("run/.containerenv")
            or _CONTAINER.search(snapshot.files.get("proc/self/cgroup", ""))
        ),
        # What Rosetta's virtual machine shows to x86_64 programs on Apple silicon.
        rosetta=processor.vendor == "VirtualApple",
        cpu=processor,
        memory_bytes=_memory(snapshot),
        gpus=_gpus(snapshot, environ, wsl=wsl),
        level_zero=intel.level_zero(snapshot),
        notes=(*_notes(snapshot), *_environment_notes(environ)),
    )


def _gpus(snapshot: Snapshot, environ: Mapping[str, str], *, wsl: bool) -> tuple[Gpu, ...]:
    devices = pci.devices(snapshot)
    known = (
        *nvidia.decide(snapshot, devices, environ, wsl=wsl),
        *intel.decide(snapshot, devices, wsl=wsl),
        *(_amd(device) for device in devices if device.vendor == _AMD),
    )
    return (*known, *_unknown(snapshot, devices, known, wsl=wsl))


def _amd(device: Device) -> Gpu:
    return Gpu(
        vendor="amd",
        name=f"AMD GPU {device.device_id or ''}".strip(),
        state="present",
        detail="No profile supports AMD GPUs (ROCm).",
        bus=device.bus,
        device_id=device.device_id,
        kernel_driver=device.driver,
        render_node=device.render_node,
    )


def _unknown(
    snapshot: Snapshot, devices: tuple[Device, ...], known: tuple[Gpu, ...], *, wsl: bool
) -> tuple[Gpu, ...]:
    """What may be a GPU: its absence must not be concluded."""
    details = [
        f"The PCI device at {device.bus} could not be read."
        for device in devices
        if (device.vendor is None and device.display is not False)
        or (device.vendor == intel.VENDOR and device.display is None and not intel.is_gpu(device))
    ]
    if PCI not in snapshot.folders and not _has_no_pci(snapshot):
        details.append("PCI devices could not be listed.")
    if wsl and not known and snapshot.has("dev/dxg") is not False:
        details.append("WSL does not show which GPU Windows has.")
    return tuple(Gpu(vendor="unknown", name="unknown", state="unknown", detail=d) for d in details)


def _has_no_pci(snapshot: Snapshot) -> bool:
    """Some ARM boards have no PCI at all: the kernel then has /sys/bus, but no pci in it."""
    return snapshot.has(PCI) is False and snapshot.has("sys/bus") is True


def _memory(snapshot: Snapshot) -> int | None:
    words_ = fields(snapshot.files.get("proc/meminfo")).get("MemTotal", "").split()
    amount = integer(words_[0]) if words_ and words_[-1] == "kB" else None
    return amount * 1024 if amount is not None and amount < 2**43 else None


def _kernel(snapshot: Snapshot) -> str | None:
    release = clean(snapshot.files.get("proc/sys/kernel/osrelease"))
    match = re.match(r"Linux version (\S+)", snapshot.files.get("proc/version", ""))
    return release or (clean(match[1]) if match else None)


def _distribution(snapshot: Snapshot) -> str | None:
    for line in lines(snapshot.files.get("etc/os-release")):
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return clean(value.strip().strip("\"'"))
    return None


def _notes(snapshot: Snapshot) -> list[str]:
    notes = []
    for path, what in (
        ("proc/cpuinfo", "the CPU's model and flags"),
        ("proc/self/status", "which CPUs this process may use"),
        ("proc/meminfo", "the memory"),
        (PCI, "PCI devices"),
        ("dev", "device nodes"),
    ):
        if snapshot.has(path) is not True:
            why = snapshot.unreadable.get(path, "not there")
            notes.append(f"/{path} could not be read ({why}): {what} may be unknown.")
    return notes


def _environment_notes(environ: Mapping[str, str]) -> list[str]:
    return [
        f"{name}={clean(environ[name]) or ''} limits which GPUs torch sees."
        for name in _HIDING
        if name in environ
    ]
