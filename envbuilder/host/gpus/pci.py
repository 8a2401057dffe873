"""Read the display devices in `/sys/bus/pci`, and determine whether this process can use them.

This folder lists all of the host's devices, even inside a container.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from envbuilder.host.snapshot import Reader, Snapshot, clean, integer, lines

if TYPE_CHECKING:
    from envbuilder.host.model import Gpu, Host, Obstacle, State

PCI = "sys/bus/pci/devices"
_DISPLAY = 0x03
_PROCESSING = 0x12  # PCI base classes
AMD = 0x1002
INTEL = 0x8086
NVIDIA = 0x10DE
_OTHER_BRIDGE = 0x0680  # PCI class of NVSwitch


class Device(Struct, frozen=True, kw_only=True):
    """A PCI device that is a GPU or could be a GPU."""

    bus: str
    vendor: int | None
    device_id: str | None
    certain: bool
    """Whether the device's class proves that it is a GPU."""
    driver: str | None
    bound: bool | None
    """Whether a kernel driver is bound to the device, or None if that is unknown."""
    render_node: str | None
    """Path of the device's render node, as the kernel names it."""


class Size(NamedTuple):
    """The size and bandwidth of a GPU's memory, as in `host.Gpu`.

    Sizes are in bytes, and the bandwidth is in bytes per second.
    """

    kind: Literal["dedicated", "shared"] | None = None
    total: int | None = None
    usable: int | None = None
    bandwidth: int | None = None


def read(reader: Reader, processing: Collection[int]) -> None:
    """Read the render nodes, and the data that sysfs reports about each display device.

    `processing` contains the vendors whose devices of the PCI class "processing accelerator" are
    GPUs.
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
        if _is_display(kind, integer(reader.file(f"{device}/vendor"), 16), processing) is False:
            del reader.files[f"{device}/class"], reader.files[f"{device}/vendor"]
            continue
        reader.file(f"{device}/device")
        reader.link(f"{device}/driver")
        reader.folder(f"{device}/drm")


def _is_display(kind: int | None, vendor: int | None, processing: Collection[int]) -> bool | None:
    """Return whether a device's PCI class shows that it is a GPU, or None if this is unknown.

    `kind` is the PCI class. GPUs without display outputs and NPUs both have the class of processing
    accelerators. `processing` contains the vendors whose devices of that class are GPUs.
    """
    if kind is None or kind >> 16 != _PROCESSING:
        if kind is None:
            return None
        return kind >> 16 == _DISPLAY
    if vendor is None:
        return None
    return vendor in processing


def display_devices(reader: Reader, vendor: int) -> list[str]:
    """Return the sysfs folders of a vendor's display devices.

    Call this function after `read`, which has dropped the PCI class of all other devices.
    """
    folders = []
    for address in reader.folders.get(PCI, ()):
        folder = f"{PCI}/{address}"
        kind = integer(reader.files.get(f"{folder}/class"), 16)
        if kind is not None and integer(reader.files.get(f"{folder}/vendor"), 16) == vendor:
            folders.append(folder)
    return folders


def node_group(snapshot: Snapshot, node: str | None) -> str | None:
    """Return the group that owns a device node, or None if the group is unknown.

    The result is the group's name, or its number if the name is unknown.
    """
    number = snapshot.groups.get((node or "").lstrip("/"))
    if number is None:
        return None
    for line in lines(snapshot.text("etc/group")):
        parts = line.split(":")
        if len(parts) > 2 and integer(parts[2]) == number:
            return clean(parts[0]) or str(number)
    return str(number)


def bus_of(gpu: Gpu) -> str:
    """Return a GPU's location on the bus, for use as a sort key."""
    return gpu.bus or ""


def devices(snapshot: Snapshot) -> tuple[Device, ...]:
    """Return all PCI devices that are GPUs or could be GPUs."""
    return tuple(
        _device(snapshot, address)
        for address in snapshot.names(PCI)
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
    """Return whether the machine has an NVSwitch, a chip that interconnects NVIDIA GPUs."""
    return any(_is_nvswitch(snapshot, f"{PCI}/{bus}") for bus in snapshot.names(PCI))


def _is_nvswitch(snapshot: Snapshot, folder: str) -> bool:
    kind = snapshot.number(f"{folder}/class", 16)
    return kind is not None and kind >> 8 == _OTHER_BRIDGE


def _device(snapshot: Snapshot, address: str) -> Device:
    folder = f"{PCI}/{address}"
    kind = snapshot.number(f"{folder}/class", 16)
    number = snapshot.number(f"{folder}/device", 16)
    vendor = snapshot.number(f"{folder}/vendor", 16)
    nodes = [n for n in snapshot.names(f"{folder}/drm") if n.startswith("renderD")]
    return Device(
        bus=clean(address) or "?",
        vendor=vendor,
        device_id=f"{number:04x}" if number is not None and number <= 0xFFFF else None,
        # `read` has dropped the classes of other devices.
        certain=kind is not None and (vendor is not None or kind >> 16 == _DISPLAY),
        driver=clean(snapshot.links.get(f"{folder}/driver", "").rpartition("/")[2]),
        bound=snapshot.has(f"{folder}/driver"),
        render_node=f"/dev/dri/{clean(nodes[0])}" if nodes else None,
    )


# udev assigns render nodes to `render`, systemd before 239 to `video` (50-udev-default.rules). Any
# other group may grant more than GPU access.
_GPU_GROUPS = ("render", "video")


def join_group(gpu: Gpu, host: Host, node: str) -> str:
    """Return instructions for giving this user, or a container, access to a GPU's device node."""
    group = gpu.render_node_group or "render"
    if host.container:
        return f"Start the container with --group-add $(stat -c %g {node})."
    if group not in _GPU_GROUPS:
        return f"Its group is {group}, but udev should set it to render: see `ls -l {node}`."
    return f"Run `sudo usermod -aG {group} $USER`, then log in again."


class Access(NamedTuple):
    """The access of this process to a GPU: `state`, `detail` and `obstacle` of `host.Gpu`."""

    state: State
    detail: str = ""
    obstacle: Obstacle | None = None


USABLE = Access("usable")


def driver(device: Device, names: Sequence[str], framework: str) -> Access | None:
    """Return the problem with the kernel driver of a GPU, or None if there is none.

    The driver must be one of `names`. `framework` is the framework that needs the driver.
    """
    needs = f"{framework} needs {' or '.join(names)}"
    if device.bound is False:
        return Access("present", f"No kernel driver is bound to it: {needs}.", "driver-missing")
    if device.driver is None:
        return Access("unknown", "Its kernel driver could not be read.", "driver-unread")
    if device.driver not in names:
        return Access(
            "present",
            f"The kernel driver {device.driver} is bound to it, but {needs}.",
            "driver-other",
        )
    return None


def render_node(snapshot: Snapshot, node: str | None) -> Access | None:
    """Return the problem with a GPU's render node, or None if there is none.

    `node` is the path of the render node, for example /dev/dri/renderD128, or None if the path is
    unknown.
    """
    if node is None:
        return Access(
            "unknown", "The name of its render node in /dev/dri could not be read.", "node-unread"
        )
    is_missing = "dev/dri" in snapshot.folders or snapshot.has("dev/dri") is False
    return opened(snapshot, node, "--device /dev/dri", is_missing=is_missing)


def opened(snapshot: Snapshot, node: str, option: str, *, is_missing: bool) -> Access | None:
    """Return the problem with a device node, or None if this user may open the node.

    `option` is the option with which a container is given the node. `is_missing` says whether the
    node counts as missing if nothing was recorded about it.
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
