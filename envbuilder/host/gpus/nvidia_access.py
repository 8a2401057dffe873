"""Decide whether a CUDA program can use an NVIDIA GPU, given its device nodes, MIG and NVSwitch.

All cards share the nodes /dev/nvidiactl and /dev/nvidia-uvm, and each card has its own
/dev/nvidiaN. Under WSL, /dev/dxg replaces all of these nodes. NVML does not need /dev/nvidia-uvm,
so `nvidia-smi` can work even if CUDA does not (NVIDIA/nvidia-docker issue 1085). A container can
have the node of only one card and still see all cards in /sys.

A card in MIG mode accepts no program until it has MIG instances (canonical/lxd issue 11804). A card
on NVSwitch accepts no program until the fabric manager has set up the card's links (CUDA error 802,
cudaErrorSystemNotReady). NVML lists both kinds of cards as if they worked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.host.gpus import pci
from envbuilder.host.snapshot import Reader, Snapshot, fields, integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envbuilder.host.gpus.nvml import Device

_CONTROL = "dev/nvidiactl"
_MEMORY = "dev/nvidia-uvm"
_WINDOWS = "dev/dxg"
_CARD = re.compile(r"nvidia([0-9]{1,3})\Z", re.ASCII)
_MODPROBE = "usr/bin/nvidia-modprobe"
"""Path at which NVIDIA's libraries look for nvidia-modprobe (nvidia-modprobe,
modprobe-utils/nvidia-modprobe-utils.c). The program is setuid root. It loads missing modules and
creates missing nodes for the libraries."""
# Below it, the driver has a folder gpuN/mig/giN/ciN for each compute instance.
_CAPABILITIES = "proc/driver/nvidia/capabilities"
_INSTANCE = re.compile(r"[gc]i[0-9]{1,3}\Z", re.ASCII)
# If this file exists, nodes in /dev/nvidia-caps control access to MIG instances; otherwise, files
# in /proc do (NVIDIA, MIG User Guide, "Device Nodes and Capabilities").
_INSTANCE_MINORS = "proc/driver/nvidia-caps/mig-minors"
_INSTANCE_NODES = "dev/nvidia-caps"
_NODE = re.compile(r"nvidia-cap([0-9]{1,4})\Z", re.ASCII)
_MONITOR = 2
"""Highest number of a node that is not a MIG instance. Node 1 configures MIG, and node 2 monitors
it."""
_MANAGER = "run/nvidia-fabricmanager/nv-fabricmanager.pid"
"""A file that exists while the fabric manager is running (its unit file; Fabric Manager User
Guide)."""
_SWITCH = re.compile(r"nvidia-nvswitch[0-9]{1,2}\Z", re.ASCII)
_UNSUPPORTED = 0
_COMPLETED = 3  # nvmlGpuFabricState_t; between them: not started, in progress


def read(reader: Reader) -> None:
    """Read the device nodes and MIG instances, and whether a fabric manager is running.

    Call this function after `/dev` and the kernel driver's files about each card have been read.
    """
    for path in (_CONTROL, _MEMORY, _WINDOWS):
        reader.opened(path)
    numbers = {match[1] for name in reader.folders.get("dev", ()) if (match := _CARD.match(name))}
    for path, text in reader.files.items():
        if path.startswith("proc/driver/nvidia/gpus/"):
            minor = integer(fields(text).get("Device Minor"))
            numbers |= {str(minor)} if minor is not None else set()
    for number in sorted(numbers):
        # Opening a card's own node would wake it.
        reader.node(f"dev/nvidia{number}")
    reader.exists(_MODPROBE)
    for card in reader.folder(_CAPABILITIES):
        for instance in reader.folder(f"{_CAPABILITIES}/{card}/mig"):
            if _INSTANCE.match(instance):
                reader.folder(f"{_CAPABILITIES}/{card}/mig/{instance}")
    reader.exists(_INSTANCE_MINORS)
    reader.folder(_INSTANCE_NODES)
    reader.exists(_MANAGER)


def shared(snapshot: Snapshot, *, wsl: bool, container: bool) -> pci.Access | None:
    """Return the problem with the nodes that every CUDA program opens, or None if there is none."""
    if wsl:
        return _node(snapshot, _WINDOWS, container=container)
    problem = _node(snapshot, _CONTROL, container=container)
    return problem or _node(snapshot, _MEMORY, container=container)


def of_cards(
    snapshot: Snapshot,
    minors: Mapping[str, int | None],
    by_nvml: frozenset[str],
    *,
    container: bool,
) -> dict[str, pci.Access]:
    """Return the access that each card's device node allows, keyed by the card's PCI address.

    `minors` maps the address of each card to the number of its device node, or to None if that
    number is unknown. `by_nvml` contains the addresses of the cards that NVML lists, which are the
    cards that NVML could open.
    """
    present = {
        int(m[1]) for path in snapshot.nodes if (m := _CARD.match(path.removeprefix("dev/")))
    }
    unnamed = [bus for bus, minor in minors.items() if minor is None]
    unclaimed = present - {minor for minor in minors.values() if minor is not None}
    return {
        bus: _of_unnamed(
            snapshot, unclaimed, len(unnamed), by_nvml=bool(by_nvml), container=container
        )
        if minor is None
        else _of_named(snapshot, minor, others=bool(present - {minor}), container=container)
        for bus, minor in minors.items()
    }


def _of_named(snapshot: Snapshot, minor: int, *, others: bool, container: bool) -> pci.Access:
    path = f"dev/nvidia{minor}"
    if others and container and snapshot.has(path) is False:
        return pci.Access(
            "present",
            f"/{path} is missing: this container was given other GPUs, not this one.",
            "not-given",
        )
    return _node(snapshot, path, container=container) or pci.USABLE


def _of_unnamed(
    snapshot: Snapshot, unclaimed: Iterable[int], cards: int, *, by_nvml: bool, container: bool
) -> pci.Access:
    """Return the access to a card whose device node is unknown.

    `unclaimed` contains the numbers of the device nodes that belong to no known card. `cards` is
    the number of cards whose node is unknown. If NVML lists cards (`by_nvml`), the cards that NVML
    does not list were not given to this process.
    """
    paths = [f"dev/nvidia{minor}" for minor in sorted(unclaimed)]
    if not paths and "dev" in snapshot.folders:
        return _missing(snapshot, "dev/nvidia0", container=container)
    closed = [path for path in paths if not snapshot.nodes[path]]
    if len(closed) == len(paths) and closed:
        return _closed(closed[0])
    if not closed and paths and (len(paths) >= cards or by_nvml):
        return pci.USABLE
    return pci.Access(
        "unknown", "The number of its /dev/nvidia* node could not be read.", "node-unread"
    )


def _node(snapshot: Snapshot, path: str, *, container: bool) -> pci.Access | None:
    if snapshot.has(path) is False:
        return _missing(snapshot, path, container=container)
    if path not in snapshot.nodes:
        return pci.Access("unknown", f"Whether /{path} exists could not be read.", "node-unread")
    if snapshot.nodes[path]:
        return None
    return _closed(path)


def _closed(path: str) -> pci.Access:
    return pci.Access("present", f"/{path} may not be opened by this user.", "node-closed")


def _missing(snapshot: Snapshot, path: str, *, container: bool) -> pci.Access:
    if container:
        advice = "start the container with --gpus all"
        if path == _MEMORY:
            advice = "the container must be started with --gpus all, once the machine itself has it"
        return pci.Access("present", f"/{path} is missing: {advice}.", "node-missing")
    # Outside containers, NVIDIA's libraries call nvidia-modprobe to create missing nodes. The
    # unified memory node rarely exists before its first use; all others are created at boot.
    helps = snapshot.has(_MODPROBE)
    if helps or (path == _MEMORY and helps is None):
        return pci.Access(
            "unknown",
            f"/{path} is missing: CUDA creates it on first use, through nvidia-modprobe.",
            "node-missing",
        )
    return pci.Access("present", f"/{path} is missing: run nvidia-modprobe.", "node-missing")


def of_modes(snapshot: Snapshot, device: Device, minor: int | None) -> pci.Access | None:
    """Return the access that a card's MIG mode or NVSwitch allows, or None if neither matters."""
    if device.mig:
        return _of_instances(snapshot, device, minor)
    return _of_fabric(snapshot, device)


def _of_instances(snapshot: Snapshot, device: Device, minor: int | None) -> pci.Access:
    count = device.instances
    if count is None:
        count = _given(snapshot) or _instances(snapshot, minor)
    closed = snapshot.has(_INSTANCE_MINORS) and snapshot.has(_INSTANCE_NODES) is False
    if count == 0:
        return pci.Access(
            "present",
            "MIG is on, and it has no instances: CUDA finds no device. Create some"
            " (nvidia-smi mig -cgi … -C), or turn MIG off (nvidia-smi -mig 0).",
            "no-instances",
        )
    if count is None and not closed:
        return pci.Access(
            "unknown", "MIG is on, and whether it has instances could not be read.", "no-instances"
        )
    if closed:
        return pci.Access(
            "unknown",
            "It is split into MIG instances, and their nodes in /dev/nvidia-caps are missing.",
            "node-missing",
        )
    return pci.Access(
        "usable",
        "It is split into MIG instances: a process gets one instance, not all of its memory.",
    )


def _instances(snapshot: Snapshot, minor: int | None) -> int | None:
    """Return the number of a card's compute instances that the driver lists, or None if unknown."""
    folder = f"{_CAPABILITIES}/gpu{minor}/mig"
    instances = snapshot.folders.get(folder)
    if minor is None or instances is None:
        return None
    number = 0
    for instance in instances:
        number += len([*filter(_INSTANCE.match, snapshot.names(f"{folder}/{instance}"))])
    return number


def _given(snapshot: Snapshot) -> int:
    """Return the number of MIG instances whose device nodes are available to this process.

    A container has only the nodes of the instances that were given to it.
    """
    names = snapshot.names(_INSTANCE_NODES)
    numbers = (integer(m[1]) for name in names if (m := _NODE.match(name)))
    return sum(number is not None and number > _MONITOR for number in numbers)


def _of_fabric(snapshot: Snapshot, device: Device) -> pci.Access | None:
    if device.fabric == _COMPLETED:
        return None
    if device.fabric in (None, _UNSUPPORTED):
        # Before Hopper, cards do not report the state.
        has_switches = any(map(_SWITCH.match, snapshot.names("dev"))) or pci.has_nvswitch(snapshot)
        if not has_switches or snapshot.has(_MANAGER):
            return None
        what = "It is connected by NVSwitch, and no running fabric manager was found"
    else:
        what = "The fabric manager has not set up its NVLink fabric"
    return pci.Access(
        "unknown",
        f"{what}: without one, CUDA fails with error 802 (system not yet initialized).",
        "fabric",
    )
