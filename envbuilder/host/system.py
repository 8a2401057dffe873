"""Decide what the host is, from a snapshot."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from envbuilder.core import types
from envbuilder.host import cpu, engines, memory
from envbuilder.host.gpus import amd, apple, intel, nvidia, pci
from envbuilder.host.gpus.pci import PCI, Device
from envbuilder.host.model import Gpu, Host, Obstacle, is_wsl1
from envbuilder.host.text import clean, lines, version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.host.snapshot import Reader, Snapshot

# Cgroups of containers, not those of the engines' own services ("/system.slice/docker.service").
_CONTAINER = re.compile(
    r"docker[-/][0-9a-f]{12}|buildkit|kubepods|cri-containerd|crio-|libpod-[0-9a-f]|nerdctl-|/lxc[/.](?!monitor)"
)
_MANAGERS = ("run/systemd/container", "run/host/container-manager")
_SIGNS = (".dockerenv", "run/.containerenv", ".singularity.d", "var/run/secrets/kubernetes.io")
# What managers set the variable `container` to; users may have a variable of that name, too.
_NAMES = frozenset({"docker", "podman", "oci", "lxc", "lxc-libvirt", "systemd-nspawn", "rkt"})
_LIBCS = frozenset({"glibc", "musl"})
_MUSL = ("lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1")
_GLIBC = ("lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1")
_DRIVERS_OF_WINDOWS = 1 << 14
"""Driver packages that WSL shows; Windows has about a thousand, and AMD's are at the end."""
_HIDING = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
)


def read(reader: Reader) -> None:
    """Read kernel, distribution, C library, and signs of a container."""
    for path in ("proc/version", "proc/sys/kernel/osrelease", "etc/os-release", *_MANAGERS):
        reader.file(path)
    for path in _SIGNS:
        reader.exists(path)
    if reader.live:
        try:
            reader.files["libc.txt"] = os.confstr("CS_GNU_LIBC_VERSION") or ""
        except (AttributeError, ValueError, OSError):  # not glibc
            reader.absent.add("libc.txt")
    else:
        reader.file("libc.txt")
    if not reader.files.get("libc.txt"):
        for path in (*_MUSL, *_GLIBC):
            reader.exists(path)
    reader.folder("dev")
    reader.folder("usr/lib/wsl/drivers", _DRIVERS_OF_WINDOWS)


def decide(snapshot: Snapshot, environ: Mapping[str, str]) -> Host:
    """Return the host that a snapshot describes."""
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
    container = _container(snapshot, environ)
    return Host(
        os="linux",
        os_version=_distribution(snapshot),
        kernel=_kernel(snapshot),
        machine=machine,
        platform=types.container_platform(machine),
        wsl=wsl,
        container=container,
        # The vendor that Rosetta's virtual machine reports to x86_64 programs on Apple silicon.
        rosetta=processor.vendor == "VirtualApple" if processor.vendor else None,
        libc=_libc(snapshot),
        cpu=processor,
        memory=memory.decide(snapshot),
        gpus=()
        if is_wsl1(_kernel(snapshot))
        else _gpus(snapshot, environ, wsl=wsl, container=container),
        peers=nvidia.peers(snapshot),
        containers=engines.decide(snapshot),
        level_zero=intel.level_zero(snapshot),
        notes=(*_notes(snapshot), *engines.notes(snapshot), *_environment_notes(environ)),
    )


def _container(snapshot: Snapshot, environ: Mapping[str, str]) -> bool:
    """Return whether anything indicates a container.

    The cgroup "/" proves nothing: a container may have its own cgroup namespace.
    """
    managers = {snapshot.files.get(path, "").strip() for path in _MANAGERS}
    return bool(
        any(snapshot.has(path) for path in _SIGNS)
        or managers - {"", "wsl"}  # systemd counts WSL as a container
        or environ.get("container") in _NAMES
        or "KUBERNETES_SERVICE_HOST" in environ
        or _CONTAINER.search(snapshot.files.get("proc/self/cgroup", ""))
    )


def _libc(snapshot: Snapshot) -> str | None:
    libc = clean(snapshot.files.get("libc.txt"))
    if libc is not None:
        name, _, number = libc.partition(" ")
        return libc if name in _LIBCS and (not number or version(number)) else None
    # Some glibc systems also have musl's loader; then it proves nothing.
    if any(snapshot.has(path) for path in _MUSL) and not any(snapshot.has(p) for p in _GLIBC):
        return "musl"
    return None


def _gpus(
    snapshot: Snapshot, environ: Mapping[str, str], *, wsl: bool, container: bool
) -> tuple[Gpu, ...]:
    devices = pci.devices(snapshot)
    gpus = (
        *nvidia.decide(snapshot, devices, environ, wsl=wsl, container=container),
        *intel.decide(snapshot, devices, wsl=wsl),
        *amd.decide(snapshot, devices, environ, wsl=wsl),
    )
    return (*gpus, *_unknown(snapshot, devices, gpus, wsl=wsl))


def _unknown(
    snapshot: Snapshot, devices: tuple[Device, ...], gpus: tuple[Gpu, ...], *, wsl: bool
) -> tuple[Gpu, ...]:
    """Return possible GPUs: their absence must not be concluded."""
    addresses = {gpu.bus for gpu in gpus}
    missing: list[tuple[str, Obstacle]] = [
        (f"The PCI device at {device.bus} could not be read.", "unread")
        for device in devices
        if (device.vendor is None and device.display is not False and device.bus not in addresses)
        or (device.vendor == intel.VENDOR and device.display is None and not intel.is_gpu(device))
    ]
    if PCI not in snapshot.folders and not _has_no_pci(snapshot):
        missing.append(("PCI devices could not be listed.", "unread"))
    if wsl and not gpus and snapshot.has("dev/dxg") is not False:
        missing.append(("WSL does not show which GPU Windows has.", "wsl"))
    return tuple(
        Gpu(vendor="unknown", name="unknown", state="unknown", detail=detail, obstacle=obstacle)
        for detail, obstacle in missing
    )


def _has_no_pci(snapshot: Snapshot) -> bool:
    """Return whether there is no PCI, as on some ARM boards: /sys/bus exists, but has no pci."""
    return snapshot.has(PCI) is False and snapshot.has("sys/bus") is True


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
    for path, subject in (
        ("proc/cpuinfo", "the CPU's model and flags"),
        ("proc/self/status", "which CPUs this process may use"),
        ("proc/meminfo", "the memory"),
        (PCI, "PCI devices"),
        ("dev", "device nodes"),
    ):
        if snapshot.has(path) is not True:
            why = snapshot.unreadable.get(path, "not there")
            notes.append(f"/{path} could not be read ({why}): {subject} may be unknown.")
    hidden = cpu.unreadable_limit(snapshot)
    if hidden:
        path, why = hidden
        notes.append(f"/{path} could not be read ({why}): there may be limits that are unknown.")
    if is_wsl1(_kernel(snapshot)):
        notes.append(
            "This is WSL 1, where no program can use a GPU;"
            " in Windows, `wsl --set-version NAME 2` turns it into WSL 2."
        )
    return notes


def _environment_notes(environ: Mapping[str, str]) -> list[str]:
    return [
        f"{name}={clean(environ[name]) or ''} limits which GPUs frameworks see."
        for name in _HIDING
        if name in environ
    ]
