"""Detect Intel GPUs, and decide which of them torch.xpu could use.

Iris Xe and older GPUs, which are not supported, are recognized by their PCI ids, because
`torch.xpu.is_available()` may return True for them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from envbuilder.host import tables
from envbuilder.host.gpus import pci
from envbuilder.host.gpus.accelerator import Accelerator, Finding, Needs, Place, blocked, named
from envbuilder.host.model import Gpu, Host, distribution_of
from envbuilder.host.snapshot import Reader, Snapshot, integer, version

_DRIVERS = ("i915", "xe")
_LEVEL_ZERO_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib")
_LEVEL_ZERO = ("libze_loader.so.1", "libze_intel_gpu.so.1")
_TILES = 8
# Percentage of memory that Intel's driver makes available: compute-runtime, function
# DrmMemoryManager::getPercentOfGlobalMemoryAvailable. Older versions: 80 of shared memory.
_OWN_PERCENT = 95
_SHARED_PERCENT = 94
_XE_GIVES_ALL = (6, 15)
# The kernel driver of each family, and the first Linux version whose xe binds without force_probe:
# require_force_probe in drivers/gpu/drm/xe/xe_pci.c of Linux 6.12 and of 6.17. i915 is the
# default for older families (Phoronix, i915 against Xe on Meteor Lake, 2025).
_XE_SINCE = {"Arc B (BMG)": "6.12", "Lunar Lake": "6.12", "Panther Lake": "6.17"}
_I915 = ("Arc A", "Flex", "Meteor Lake", "Arrow Lake")
# Neither in-tree driver supports it; Intel has packages (dgpu-docs.intel.com).
_OWN_PACKAGES = "Data Center GPU Max"
# packages.ubuntu.com: 25.10 has Intel's compute-runtime 25.31; 24.04 has 23.43, which predates
# Lunar Lake and Arc B. PyTorch's install_xpu.sh uses the PPA.
_UBUNTU_HAS = (25, 10)
_PPA_SERVES = (24, 4)
_PPA = "sudo add-apt-repository ppa:kobuk-team/intel-graphics"
_DEBIAN_HAS = (14,)


def read(reader: Reader) -> None:
    """Read the size of each GPU's memory, and look for needed libraries that no wheel contains."""
    for device in pci.display_devices(reader, pci.INTEL):
        _read_memory(reader, device)
    for folder in _LEVEL_ZERO_FOLDERS:
        for library in _LEVEL_ZERO:
            reader.exists(f"{folder}/{library}")


def _read_memory(reader: Reader, device: str) -> None:
    """Read the size of the GPU's dedicated memory.

    The xe driver provides one file per tile. The i915 driver from Intel's own packages provides one
    file per card.
    """
    for tile in range(_TILES):
        if reader.file(f"{device}/tile{tile}/physical_vram_size_bytes") is None:
            break
    for card in reader.folders.get(f"{device}/drm", ()):
        if card.startswith("card"):
            reader.file(f"{device}/drm/{card}/lmem_total_bytes")


def decide(snapshot: Snapshot, devices: Sequence[pci.Device], place: Place) -> tuple[Gpu, ...]:
    """Return all Intel GPUs.

    A device that is not certain to be a GPU is included only if it is in the table of Intel GPUs.
    """
    gpus = tuple(
        _gpu(snapshot, device)
        for device in devices
        if device.vendor == pci.INTEL
        and (device.certain or tables.intel_gpu(device.device_id or ""))
    )
    drivers = snapshot.names("usr/lib/wsl/drivers")
    if not gpus and place.wsl and any(name.startswith("iigd") for name in drivers):
        gpus = (
            Gpu(
                vendor="intel",
                name="Intel GPU",
                state="unknown",
                detail="WSL does not show which Intel GPU Windows has.",
                obstacle="wsl",
            ),
        )
    return gpus


def _gpu(snapshot: Snapshot, device: pci.Device) -> Gpu:
    row = tables.intel_gpu(device.device_id or "")
    number = (device.device_id or "unknown id").upper()
    name = f"Intel {row.name or row.family}" if row else "Intel GPU"
    size = _memory(snapshot, device, f"{pci.PCI}/{device.bus}", row.memory if row else None)
    readable = snapshot.nodes.get((device.render_node or "").lstrip("/"))
    access = (
        pci.driver(device, _DRIVERS, "torch.xpu")
        or pci.render_node(snapshot, device.render_node)
        or pci.USABLE
    )
    if row is None and access.state == "usable":
        access = pci.Access("unknown", f"PCI id {number} is not in envbuilder's table.", "unlisted")
    if row is not None and row.support == "unsupported":
        access = pci.Access(
            "present", f"{name} ({number}) is not supported by torch.xpu.", "unsupported"
        )
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
        render_node=device.render_node,
        render_node_readable=readable,
        render_node_group=pci.node_group(snapshot, device.render_node),
    )


def _memory(
    snapshot: Snapshot, device: pci.Device, folder: str, kind: tables.MemoryKind | None
) -> pci.Size:
    local = _own_memory(snapshot, folder)
    if kind == "shared":
        from envbuilder.host import memory  # every profile reads this module, few hosts its size

        total = memory.total(snapshot)
        return pci.Size("shared", total, _shared(snapshot, device.driver, total))
    if kind == "dedicated" or local:
        facts = tables.intel_memory(device.device_id or "")
        total = local or (facts.memory_bytes if facts else None)
        usable = total * _OWN_PERCENT // 100 if total is not None else None
        return pci.Size("dedicated", total, usable, facts.bandwidth if facts else None)
    return pci.Size()


def _own_memory(snapshot: Snapshot, folder: str) -> int | None:
    """Return the total dedicated memory of all tiles in bytes, as reported by the driver.

    Return None if the memory of any tile is unknown.
    """
    tiles = [f"{folder}/tile{number}/physical_vram_size_bytes" for number in range(_TILES)]
    if any(path in snapshot.unreadable for path in tiles):
        return None
    paths = [path for path in tiles if path in snapshot.files] or [
        path
        for card in snapshot.names(f"{folder}/drm")
        if (path := f"{folder}/drm/{card}/lmem_total_bytes") in snapshot.files
    ]
    sizes = [integer(snapshot.files[path]) or 0 for path in paths]
    if sizes and all(sizes) and sum(sizes) <= 2**53:
        return sum(sizes)
    return None


def _shared(snapshot: Snapshot, kernel_driver: str | None, total: int | None) -> int | None:
    """Return the memory in bytes that Level Zero reports for an integrated GPU, or None if unknown.

    The result is valid for drivers released since 2025. Level Zero reports the main memory that the
    kernel lets one GPU map. With i915, this is all of the main memory. With xe, it is all of the
    main memory since Linux 6.15, and half of the main memory in earlier versions ("drm/xe: Increase
    the XE_PL_TT watermark"). ttm's parameter `pages_limit` is irrelevant: above that limit, other
    buffers are swapped out first, and then the allocation continues (ttm_tt_populate).
    """
    if total is None or kernel_driver not in _DRIVERS:
        return None
    if kernel_driver == "xe":
        match = re.match(r"[0-9]+\.[0-9]+", snapshot.text("proc/sys/kernel/osrelease"))
        release = version(match[0]) if match else None
        if release is None:
            return None
        total = total if release >= _XE_GIVES_ALL else total // 2
    return total * _SHARED_PERCENT // 100


def of_host(snapshot: Snapshot) -> dict[str, Any]:
    """Return the value of the host's field `level_zero`, as a mapping with that single key.

    The value says whether both the Level Zero loader and the driver are in one of the standard
    folders, or is None if this is unknown.
    """
    answers = []
    for library in _LEVEL_ZERO:
        found = [snapshot.has(f"{folder}/{library}") for folder in _LEVEL_ZERO_FOLDERS]
        lacking = None if None in found else False
        answers.append(any(found) or lacking)
    return {"level_zero": None if None in answers else all(answers)}


# What fits: whether PyTorch supports a GPU, and the runtime that native environments need


def judge(gpu: Gpu, needs: Needs, native: bool) -> list[Finding]:
    """Return findings about whether PyTorch supports a GPU, and whether its node is accessible.

    If PyTorch supports the GPU, also check whether the wheels have kernels for it.
    """
    if gpu.support == "validated" and gpu.render_node_readable is False and not native:
        # The engine opens the node as root, and the container joins the group that owns it.
        return [blocked("warning", gpu, _sentence(gpu))]
    if gpu.support == "unsupported" or gpu.state == "present":
        return [blocked("no", gpu, _sentence(gpu))]
    if gpu.state == "unknown":
        return [blocked("warning", gpu, _sentence(gpu))]
    if gpu.support != "validated":
        return [
            Finding(
                "warning",
                f"{gpu.name} is not on PyTorch's list of validated Intel GPUs, but may work",
                "unlisted",
                gpu,
            )
        ]
    kernels = set(needs.kernels)
    if kernels and not tables.intel_targets(gpu.family or "") & kernels:
        return [
            Finding(
                "warning",
                f"the wheels only have kernels for {', '.join(needs.kernels)}: for {named(gpu)},"
                " the driver would have to compile them at first use",
                "kernels-ptx",
                gpu,
            )
        ]
    return [Finding("note", f"{gpu.name} with the kernel driver {gpu.kernel_driver}")]


def capability(gpu: Gpu) -> tuple[float, ...]:
    """Return a sort key by which more capable GPUs rank higher.

    Supported GPUs rank above all others, then discrete GPUs above integrated ones, then GPUs with
    more memory above those with less.
    """
    support = ("unsupported", None, "unlisted", "validated").index(gpu.support)
    return support, gpu.memory_kind == "dedicated", gpu.memory_bytes or 0


def order(gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> Sequence[Gpu] | None:
    """Return the GPUs that Level Zero sees, in Level Zero's order, or None if the order is unknown.

    Return an empty sequence if torch.xpu uses the selected GPUs anyway. If there is a discrete GPU,
    torch.xpu uses only discrete GPUs (c10/xpu, note on device management). Level Zero numbers the
    discrete GPUs first, by PCI address, and then the integrated GPU.
    """
    seen = list(filter(_is_seen, gpus))
    discrete = [gpu for gpu in seen if gpu.memory_kind == "dedicated"]
    if discrete and all(gpu in selected for gpu in discrete):
        return ()
    if not all(gpu.bus for gpu in gpus):
        return None
    return [*sorted(discrete, key=pci.bus_of), *(gpu for gpu in seen if gpu not in discrete)]


def _is_seen(gpu: Gpu) -> bool:
    """Return whether Level Zero sees a GPU.

    Level Zero sees a GPU that has a driver and whose node can be opened.
    """
    driven = gpu.kernel_driver in _DRIVERS
    return gpu.state != "present" or (gpu.obstacle == "unsupported" and driven)


def _sentence(gpu: Gpu) -> str:
    detail = gpu.detail.rstrip(".")
    if detail.startswith(gpu.name.partition(" (")[0]):
        return detail
    return f"{gpu.name}: {detail}"


def native(host: Host) -> list[Finding]:
    """Return findings about the GPU runtime (Level Zero) that is installed on the host.

    Native environments use the host's runtime, while images contain their own.
    """
    if host.level_zero:
        return []
    if host.level_zero is None:
        return [
            Finding(
                "warning", "whether Level Zero is installed could not be read", "level-zero-unread"
            )
        ]
    return [
        Finding(
            "no",
            "Level Zero and Intel's GPU driver for it are not installed (libze1,"
            " libze-intel-gpu1), and no wheel contains them",
            "level-zero",
        )
    ]


# How to repair it


def install(gpu: Gpu, host: Host, needed: str) -> str:
    """Return instructions for installing or loading a kernel driver for an Intel GPU."""
    if host.container:
        return "Load i915 or xe on the machine itself, since a container uses the machine's kernel."
    family = gpu.family or ""
    if family.startswith(_OWN_PACKAGES):
        return "Install Intel's kernel driver for it (intel-i915-dkms, see dgpu-docs.intel.com)."
    since = _XE_SINCE.get(family)
    match = re.match(r"[0-9]+\.[0-9]+", host.kernel or "", re.ASCII)
    if since and match and (version(match[0]) or ()) < (version(since) or ()):
        return (
            f"Update Linux from {host.kernel} to {since} or later, whose xe supports this"
            f" GPU{_newer_kernel(host)}."
        )
    driver = "xe" if since else "i915"
    if not since and not family.startswith(_I915):
        return (
            "Update Linux: i915 or xe of a newer one may support this GPU (`sudo dmesg` shows why"
            " this one does not)."
        )
    return (
        f"Run `sudo modprobe {driver}`. If nothing changes, `sudo dmesg | grep {driver}` shows why."
    )


def _newer_kernel(host: Host) -> str:
    name, number = distribution_of(host)
    if (name, number) == ("Ubuntu", "24.04"):
        return " (`sudo apt install linux-generic-hwe-24.04` installs a newer one)"
    if name == "Debian":
        return " (backports have a newer one)"
    return ""


def fixes_of_host(host: Host) -> dict[str, str]:
    """Return instructions for installing the Level Zero loader and Intel's driver for it."""
    image = "use --backend docker, whose image contains both"
    if not host.containers.has_engine:
        image += ", once a container engine runs"
    name, number = distribution_of(host)
    text = (
        "Install the Level Zero loader and Intel's compute-runtime"
        f" (github.com/intel/compute-runtime), or {image}."
    )
    if commands := _level_zero_commands(name, number):
        text = f"Run {commands}, or {image}."
    elif name == "Debian":
        text = f"Debian {number} has no package for the driver: {image}, or update to Debian 14."
    return {"level-zero": text}


def _level_zero_commands(name: str, number: str) -> str:
    """Return the commands that install the Level Zero loader and driver on a distribution.

    The result is empty if the distribution has no packages for them.
    """
    current = version(number)
    packages = "`sudo apt install libze1 libze-intel-gpu1`"
    if name == "Debian" and (current is None or current >= _DEBIAN_HAS):
        return packages
    if name == "Ubuntu" and current and current >= _UBUNTU_HAS:
        return packages
    if name == "Ubuntu" and current and current >= _PPA_SERVES:
        return f"`{_PPA}` and {packages} (Ubuntu {number}'s own packages are too old)"
    if name == "Fedora":
        # The loader is oneapi-level-zero, the driver intel-level-zero.
        return "`sudo dnf install intel-compute-runtime intel-level-zero oneapi-level-zero`"
    return ""


XPU = Accelerator(
    name="xpu",
    vendor="intel",
    brand="Intel",
    aliases=("intel", "arc", "battlemage", "alchemist", "sycl", "oneapi", "xpu.*"),
    pci=pci.INTEL,
    read=read,
    decide=decide,
    of_host=of_host,
    judge=judge,
    capability=capability,
    native=native,
    choosing=("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
    passed=("ZE_FLAT_DEVICE_HIERARCHY",),
    order=order,
    install=install,
    fixes_of_host=fixes_of_host,
)
