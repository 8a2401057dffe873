"""The access of a process to a GPU: its state and, if unusable, why, in words and as a code."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from envbuilder.host.gpus import pci

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.host.gpus.pci import Device
    from envbuilder.host.model import Obstacle, State
    from envbuilder.host.snapshot import Snapshot


class Access(NamedTuple):
    """The values of `state`, `detail` and `obstacle` in `host.Gpu`."""

    state: State
    detail: str = ""
    obstacle: Obstacle | None = None


USABLE = Access("usable")


def driver(device: Device, names: Sequence[str], framework: str) -> Access | None:
    """Return what is wrong with the kernel driver of a GPU, which must be one of `names`."""
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
    """Return what is wrong with the render node of a GPU, such as /dev/dri/renderD128."""
    if node is None:
        detail = "Which node in /dev/dri is its render node could not be read."
        return Access("unknown", detail, "node-unread")
    readable = snapshot.nodes.get(node.lstrip("/"))
    if readable is None:
        if "dev/dri" in snapshot.folders or snapshot.has("dev/dri") is False:
            detail = f"{node} is missing: a container needs --device /dev/dri."
            return Access("present", detail, "node-missing")
        return Access("unknown", f"Whether {node} exists could not be read.", "node-unread")
    return None if readable else closed(snapshot, node)


def closed(snapshot: Snapshot, node: str) -> Access:
    """Return the access to a GPU whose device node this user may not open."""
    group = pci.node_group(snapshot, node) or "render"
    return Access(
        "present",
        f"{node} is not readable: join its group with `sudo usermod -aG {group} $USER`,"
        " then log in again.",
        "node-closed",
    )
