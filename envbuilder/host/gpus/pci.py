"""Read the display devices in `/sys/bus/pci`, and a process's access to them.

A container sees all of the host's devices.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from envbuilder.host.model import Gpu, Host, Link, Obstacle, State
from envbuilder.host.snapshot import Reader, Snapshot, clean, integer, lines

PCI = "sys/bus/pci/devices"
_DISPLAY = 0x03
_PROCESSING = 0x12  # PCI base classes
AMD = 0x1002
INTEL = 0x8086
NVIDIA = 0x10DE
_OTHER_BRIDGE = 0x0680  # PCI class of NVSwitch
SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
"""Transfers per second and lane of PCI Express generations 1 to 6, in billions (GT/s)."""
WIDTHS = (1, 2, 4, 8, 12, 16, 32)
"""Possible numbers of lanes; the kernel also writes 0, 63 and 255, for unknown."""
_LINK = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z", re.ASCII)
# Intel and AMD put a PCI Express switch on their cards. Behind it, the GPU's own link reports
# 2.5 GT/s x1 (Intel: Syllo/nvtop pull request 344; a B580 in geerlingguy/raspberry-pi-pcie-devices
# issue 695) or always the maximum (AMD: Linux amdgpu_device_gpu_bandwidth, which also reads the
# upstream link).
_OWN_SWITCH = (INTEL, AMD)
_MOST_MICROWATTS = 10**10


class Device(Struct, frozen=True, kw_only=True):
    """A device that is a GPU, or may be one."""

    bus: str
    vendor: int | None
    device_id: str | None
    certain: bool
    """Whether its class shows that it is a GPU, and not only that it may be one."""
    driver: str | None
    bound: bool | None
    """Whether a kernel driver is bound to it; None if unknown."""
    render_node: str | None
    """Path of its render node, as the kernel names it."""
    link: Link | None
    """The card's link to the machine; None if it has none or it could not be read."""


class Size(NamedTuple):
    """A GPU's memory, as in `host.Gpu`; bytes, and bytes per second."""

    kind: Literal["dedicated", "shared"] | None = None
    total: int | None = None
    usable: int | None = None
    bandwidth: int | None = None


def read(reader: Reader, processing: Collection[int]) -> None:
    """Read render nodes, and what sysfs reports about each display device.

    `processing`: the vendors whose processing accelerators count, too.
    """
    for name in reader.folder("dev/dri"):
        if name.startswith("renderD"):
            reader.node(f"dev/dri/{name}")
    if reader.groups:
        reader.file("etc/group")
    reader.folder("sys/bus")
    for address in reader.folder(PCI):
        device = f"{PCI}/{address}"
        kind = integer(reader.file(f"{device}/class"), 16)
        if kind is not None and kind >> 8 == _OTHER_BRIDGE:
            if integer(reader.file(f"{device}/vendor"), 16) != NVIDIA:
                del reader.files[f"{device}/class"]
                reader.files.pop(f"{device}/vendor", None)
            continue
        if kind is not None and kind >> 16 not in (_DISPLAY, _PROCESSING):
            del reader.files[f"{device}/class"]
            continue
        vendor = integer(reader.file(f"{device}/vendor"), 16)
        shows = _is_display(kind, vendor, processing)
        if shows is False:
            del reader.files[f"{device}/class"], reader.files[f"{device}/vendor"]
            continue
        reader.file(f"{device}/device")
        reader.link(f"{device}/driver")
        reader.folder(f"{device}/drm")
        if shows:
            _read_link(reader, device, vendor)


def _is_display(kind: int | None, vendor: int | None, processing: Collection[int]) -> bool | None:
    """Return whether a PCI class is a GPU's; None if unknown.

    Accelerators without display outputs have the class of processing accelerators, as NPUs have.
    """
    if kind is None or kind >> 16 != _PROCESSING:
        if kind is None:
            return None
        return kind >> 16 == _DISPLAY
    if vendor is None:
        return None
    return vendor in processing


def _read_link(reader: Reader, device: str, vendor: int | None) -> None:
    reader.file(f"{device}/power/runtime_status")
    if asleep(reader, device):
        return
    for name in _LINK:
        reader.file(f"{device}/{name}")
    if vendor not in _OWN_SWITCH:
        return
    bridges = _bridges(reader.link(device)) or ()
    for bridge in bridges[-2:]:
        reader.file(f"{bridge}/vendor")
    if len(bridges) > 2:
        for name in _LINK:
            reader.file(f"{bridges[-2]}/{name}")


def asleep(known: Reader | Snapshot, device: str) -> bool:
    """Return whether the device is suspended: reading its link or sensors would wake it."""
    return known.files.get(f"{device}/power/runtime_status", "").strip() == "suspended"


def display_devices(reader: Reader, vendor: int) -> list[str]:
    """Return the folders of a vendor's display devices: of others, `read` keeps no class."""
    folders = [f"{PCI}/{address}" for address in reader.folders.get(PCI, ())]
    return [
        folder
        for folder in folders
        if integer(reader.files.get(f"{folder}/vendor"), 16) == vendor
        and integer(reader.files.get(f"{folder}/class"), 16) is not None
    ]


def read_sensors(reader: Reader, device: str, names: tuple[str, ...]) -> None:
    """Read the named files of the device's sensor chips that exist, unless it is suspended."""
    for chip in reader.folder(f"{device}/hwmon"):
        there = reader.folder(f"{device}/hwmon/{chip}")
        for name in names:
            if name in there and not asleep(reader, device):
                reader.file(f"{device}/hwmon/{chip}/{name}")


def watts(snapshot: Snapshot, device: str, names: tuple[str, ...]) -> float | None:
    """Return the first power in the named sensor files, which state it in microwatts.

    0 means that the limit is off (Linux, sysfs-driver-intel-xe-hwmon).
    """
    for name in names:
        for chip in snapshot.folders.get(f"{device}/hwmon", ()):
            value = integer(snapshot.files.get(f"{device}/hwmon/{chip}/{name}"))
            if value and value <= _MOST_MICROWATTS:
                return value / 10**6
    return None


def node_group(snapshot: Snapshot, node: str | None) -> str | None:
    """Return the group that owns a device node, by name, else by number; None if unknown."""
    number = snapshot.groups.get((node or "").lstrip("/"))
    if number is None:
        return None
    for line in lines(snapshot.files.get("etc/group")):
        parts = line.split(":")
        if len(parts) > 2 and integer(parts[2]) == number:
            return clean(parts[0]) or str(number)
    return str(number)


def bus_of(gpu: Gpu) -> str:
    """Return where a GPU is on the bus, as a sort key."""
    return gpu.bus or ""


def devices(snapshot: Snapshot) -> tuple[Device, ...]:
    """Return all devices that are, or may be, GPUs."""
    return tuple(
        _device(snapshot, address)
        for address in snapshot.folders.get(PCI, ())
        if _is_candidate(snapshot, address)
    )


def _is_candidate(snapshot: Snapshot, address: str) -> bool:
    # `read` has already dropped everything that is neither a display device nor an NVSwitch.
    folder = f"{PCI}/{address}"
    if _is_nvswitch(snapshot, folder):
        return False
    keys = [f"{folder}/{name}" for name in ("class", "vendor", "device")]
    return any(key in snapshot.files or key in snapshot.unreadable for key in keys)


def has_nvswitch(snapshot: Snapshot) -> bool:
    """Return whether there is an NVSwitch, which connects NVIDIA's GPUs."""
    return any(_is_nvswitch(snapshot, f"{PCI}/{bus}") for bus in snapshot.folders.get(PCI, ()))


def _is_nvswitch(snapshot: Snapshot, folder: str) -> bool:
    kind = integer(snapshot.files.get(f"{folder}/class"), 16)
    return kind is not None and kind >> 8 == _OTHER_BRIDGE


def _device(snapshot: Snapshot, address: str) -> Device:
    folder = f"{PCI}/{address}"
    kind = integer(snapshot.files.get(f"{folder}/class"), 16)
    number = integer(snapshot.files.get(f"{folder}/device"), 16)
    vendor = integer(snapshot.files.get(f"{folder}/vendor"), 16)
    nodes = [n for n in snapshot.folders.get(f"{folder}/drm", ()) if n.startswith("renderD")]
    bound = snapshot.has(f"{folder}/driver")
    return Device(
        bus=clean(address) or "?",
        vendor=vendor,
        device_id=f"{number:04x}" if number is not None and number <= 0xFFFF else None,
        # `read` has dropped the classes of other devices.
        certain=kind is not None and (vendor is not None or kind >> 16 == _DISPLAY),
        driver=clean(snapshot.links.get(f"{folder}/driver", "").rpartition("/")[2]),
        bound=bound,
        render_node=f"/dev/dri/{clean(nodes[0])}" if nodes else None,
        link=_link(snapshot, folder, vendor),
    )


def _link(snapshot: Snapshot, folder: str, vendor: int | None) -> Link | None:
    link = _link_of(snapshot, folder)
    if vendor not in _OWN_SWITCH:
        return link
    bridges = _bridges(snapshot.links.get(folder))
    makers = [integer(snapshot.files.get(f"{b}/vendor"), 16) for b in (bridges or ())[-2:]]
    if not bridges or None in makers:
        # Part of the CPU, in a virtual machine, or unknown: the link is meaningless.
        return None
    if len(bridges) > 2 and makers == [vendor, vendor]:
        # The switch's upstream port; `bridges[0]` belongs to the CPU.
        return _link_of(snapshot, bridges[-2])
    # No GPU is built for one lane: this one is behind a switch that is not visible.
    if link is not None and (link.max_width or 1) > 1:
        return link
    return None


def _bridges(target: str | None) -> tuple[str, ...] | None:
    """Return the folders of the bridges above a device, the CPU's first, from its link target."""
    _, found, path = (target or "").partition("devices/")
    parts = path.split("/")
    if not found or not _ADDRESS.match(parts[-1]) or ".." in parts:
        return None
    return tuple(
        f"sys/devices/{'/'.join(parts[: index + 1])}"
        for index, part in enumerate(parts[:-1])
        if _ADDRESS.match(part)
    )


def _link_of(snapshot: Snapshot, folder: str) -> Link | None:
    texts = [snapshot.files.get(f"{folder}/{name}") for name in _LINK]
    link = Link(
        speed=_speed(texts[0]),
        width=_width(texts[1]),
        max_speed=_speed(texts[2]),
        max_width=_width(texts[3]),
    )
    if link != Link():
        return link
    return None


def _speed(text: str | None) -> float | None:
    """Parse a speed such as "16.0 GT/s PCIe"; the kernel writes "Unknown" for others."""
    match = re.match(r"([0-9]{1,2}(?:\.[0-9])?) GT/s", (text or "").strip(), re.ASCII)
    number = float(match[1]) if match else None
    if number in SPEEDS:
        return number
    return None


def _width(text: str | None) -> int | None:
    number = integer(text)
    if number in WIDTHS:
        return number
    return None


# udev assigns render nodes to `render`, systemd before 239 to `video` (50-udev-default.rules). Any
# other group may grant more than GPU access.
_GPU_GROUPS = ("render", "video")


def join_group(gpu: Gpu, host: Host, node: str) -> str:
    """Return how this user, or a container, gets to open a GPU's node."""
    group = gpu.render_node_group or "render"
    if host.container:
        return f"Start the container with --group-add $(stat -c %g {node})."
    if group not in _GPU_GROUPS:
        return f"Its group is {group}: udev should give it to render; see `ls -l {node}`."
    return f"Run `sudo usermod -aG {group} $USER`, then log in again."


class Access(NamedTuple):
    """The values of `state`, `detail` and `obstacle` in `host.Gpu`."""

    state: State
    detail: str = ""
    obstacle: Obstacle | None = None


USABLE = Access("usable")


def driver(device: Device, names: Sequence[str], framework: str) -> Access | None:
    """Return the problem of a GPU's kernel driver, which must be one of `names`."""
    needs = f"{framework} needs {' or '.join(names)}"
    if device.bound is False:
        detail = f"No kernel driver is bound to it: {needs}."
        return Access("present", detail, "driver-missing")
    if device.driver is None:
        return Access("unknown", "Its kernel driver could not be read.", "driver-unread")
    if device.driver not in names:
        detail = f"The kernel driver {device.driver} is bound to it; {needs}."
        return Access("present", detail, "driver-other")
    return None


def render_node(snapshot: Snapshot, node: str | None) -> Access | None:
    """Return the problem of a GPU's render node, such as /dev/dri/renderD128."""
    if node is None:
        detail = "Which node in /dev/dri is its render node could not be read."
        return Access("unknown", detail, "node-unread")
    is_missing = "dev/dri" in snapshot.folders or snapshot.has("dev/dri") is False
    return opened(snapshot, node, "--device /dev/dri", is_missing=is_missing)


def opened(snapshot: Snapshot, node: str, option: str, *, is_missing: bool) -> Access | None:
    """Return the problem of a device node; None if this user may open it.

    `option` is the one with which a container gets it. `is_missing` counts if it was not read.
    """
    readable = snapshot.nodes.get(node.lstrip("/"))
    if readable:
        return None
    if readable is None and is_missing:
        return Access("present", f"{node} is missing: a container needs {option}.", "node-missing")
    if readable is None:
        return Access("unknown", f"Whether {node} exists could not be read.", "node-unread")
    group = node_group(snapshot, node) or "render"
    return Access(
        "present",
        f"{node} is not readable: join its group with `sudo usermod -aG {group} $USER`,"
        " then log in again.",
        "node-closed",
    )
