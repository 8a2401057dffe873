"""Decide whether an NVIDIA GPU whose nodes can be opened accepts CUDA programs.

A card in MIG mode accepts none until it has instances (canonical/lxd issue 11804), nor does a card
on NVSwitch until the fabric manager has set up its links (CUDA error 802, cudaErrorSystemNotReady).
NVML lists both kinds as if they worked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.host.gpus import pci
from envbuilder.host.gpus.access import Access
from envbuilder.host.text import integer

if TYPE_CHECKING:
    from envbuilder.host.gpus.nvml import Device
    from envbuilder.host.snapshot import Reader, Snapshot

# Below it, the driver has a folder gpuN/mig/giN/ciN for each compute instance.
_CAPABILITIES = "proc/driver/nvidia/capabilities"
_INSTANCE = re.compile(r"[gc]i[0-9]{1,3}\Z", re.ASCII)
# If this file exists, nodes in /dev/nvidia-caps control access to MIG instances; otherwise, files
# in /proc do (NVIDIA, MIG User Guide, "Device Nodes and Capabilities").
_INSTANCE_MINORS, _INSTANCE_NODES = "proc/driver/nvidia-caps/mig-minors", "dev/nvidia-caps"
_NODE = re.compile(r"nvidia-cap([0-9]{1,4})\Z", re.ASCII)
_MONITOR = 2
"""Number of the last node that is of no instance: 1 configures MIG, 2 monitors it."""
_MANAGER = "run/nvidia-fabricmanager/nv-fabricmanager.pid"
"""The fabric manager's file while it runs (its unit file; Fabric Manager User Guide)."""
_SWITCH = re.compile(r"nvidia-nvswitch[0-9]{1,2}\Z", re.ASCII)
_UNSUPPORTED, _COMPLETED = 0, 3  # nvmlGpuFabricState_t; between them: not started, in progress


def read(reader: Reader) -> None:
    """Read MIG instances, their nodes, and whether a fabric manager runs."""
    for card in reader.folder(_CAPABILITIES):
        for instance in reader.folder(f"{_CAPABILITIES}/{card}/mig"):
            if _INSTANCE.match(instance):
                reader.folder(f"{_CAPABILITIES}/{card}/mig/{instance}")
    reader.exists(_INSTANCE_MINORS)
    reader.folder(_INSTANCE_NODES)
    reader.exists(_MANAGER)


def access(snapshot: Snapshot, device: Device, minor: int | None) -> Access | None:
    """Return what keeps CUDA programs from a card, or limits them; None if nothing does."""
    return _of_instances(snapshot, device, minor) if device.mig else _of_fabric(snapshot, device)


def _of_instances(snapshot: Snapshot, device: Device, minor: int | None) -> Access:
    count = device.instances
    if count is None:
        count = _given(snapshot) or _instances(snapshot, minor)
    closed = snapshot.has(_INSTANCE_MINORS) and snapshot.has(_INSTANCE_NODES) is False
    if count == 0:
        return Access(
            "present",
            "MIG is on, and it has no instances: CUDA finds no device. Create some"
            " (nvidia-smi mig -cgi … -C), or turn MIG off (nvidia-smi -mig 0).",
            "no-instances",
        )
    if count is None and not closed:
        detail = "MIG is on, and whether it has instances could not be read."
        return Access("unknown", detail, "no-instances")
    if closed:
        detail = "It is split into MIG instances, and their nodes in /dev/nvidia-caps are missing."
        return Access("unknown", detail, "node-missing")
    detail = "It is split into MIG instances: a process gets one of them, not all of its memory."
    return Access("usable", detail)


def _instances(snapshot: Snapshot, minor: int | None) -> int | None:
    """Return the number of compute instances that the driver lists; None if it is unknown."""
    folder = f"{_CAPABILITIES}/gpu{minor}/mig"
    instances = snapshot.folders.get(folder)
    if minor is None or instances is None:
        return None
    return sum(
        bool(_INSTANCE.match(name))
        for instance in instances
        for name in snapshot.folders.get(f"{folder}/{instance}", ())
    )


def _given(snapshot: Snapshot) -> int:
    """Return the number of nodes of instances, which containers get for theirs."""
    names = snapshot.folders.get(_INSTANCE_NODES, ())
    numbers = (integer(m[1]) for name in names if (m := _NODE.match(name)))
    return sum(number is not None and number > _MONITOR for number in numbers)


def _of_fabric(snapshot: Snapshot, device: Device) -> Access | None:
    if device.fabric == _COMPLETED:
        return None
    if device.fabric in (None, _UNSUPPORTED):
        # Before Hopper, cards do not report the state.
        if not _has_switches(snapshot) or snapshot.has(_MANAGER):
            return None
        what = "It is connected by NVSwitch, and no running fabric manager was found"
    else:
        what = "The fabric manager has not set up its NVLink fabric"
    detail = f"{what}: without one, CUDA fails with error 802 (system not yet initialized)."
    return Access("unknown", detail, "fabric")


def _has_switches(snapshot: Snapshot) -> bool:
    nodes = snapshot.folders.get("dev", ())
    return any(_SWITCH.match(name) for name in nodes) or pci.has_nvswitch(snapshot)
