"""Read the nodes of a cluster from what `kubectl get nodes -o json` printed. Pure."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from envbuilder.core.text import printable
from envbuilder.fleet.kubernetes.objects import Conditions, Texts
from envbuilder.fleet.model import LONGEST_REASON, Node, NodeName, Resource


class _Metadata(Struct, frozen=True):
    name: NodeName
    labels: Texts = {}


class _Spec(Struct, frozen=True):
    unschedulable: bool = False


class _Status(Struct, frozen=True):
    allocatable: Annotated[dict[str, str | int], Meta(max_length=1000)] = {}
    conditions: Conditions = ()


class NodeObject(Struct, frozen=True):
    """A node, as far as it is needed."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class NodeList(Struct, frozen=True):
    """What `kubectl get nodes -o json` prints."""

    items: tuple[NodeObject, ...]


def nodes(listed: NodeList) -> tuple[Node, ...]:
    """Return the nodes of a cluster, in its order.

    A node has each label as two features, `key` and `key=value`: device plugins and node feature
    discovery write what it has.
    """
    return tuple(_node(each) for each in listed.items)


def _node(listed: NodeObject) -> Node:
    ready = next((c for c in listed.status.conditions if c.type == "Ready"), None)
    is_ready = ready is not None and ready.status == "True"
    reason = ready.message if ready is not None and not is_ready else ""
    state = "Ready" if is_ready else "NotReady"
    if listed.spec.unschedulable:
        state += ",SchedulingDisabled"
        reason = reason or "cordoned"
    return Node(
        name=listed.metadata.name,
        state=state,
        usable=is_ready and not listed.spec.unschedulable,
        features=tuple(
            feature
            for key, value in listed.metadata.labels.items()
            for feature in (key, f"{key}={value}")
        ),
        resources=tuple(
            Resource(name=name, count=int(count))
            for name, count in listed.status.allocatable.items()
            if "/" in name and str(count).isdecimal() and len(str(count)) < 6 and int(count)
        ),
        reason=printable(reason, LONGEST_REASON),
    )
