"""`kubernetes:` in `fleet.yaml`: images, nodes, and what every pod needs on this cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from envbuilder.core import types
from envbuilder.fleet.model import NodeName

Namespace = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z",
        description="a namespace: at most 63 lower-case letters, digits and hyphens",
    ),
]
ObjectName = Annotated[
    str,
    Meta(
        pattern=r"^(?!.{254})[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z",
        description="a name in Kubernetes: lower-case letters, digits, hyphens and dots",
    ),
]
LabelValue = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z",
        description="a label's value: at most 63 letters, digits, dots, hyphens and underscores",
    ),
]
ExtendedResource = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9.-]{0,200}/[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z",
        description="a device plugin's resource, such as nvidia.com/gpu",
    ),
]
Memory = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]{0,8}(Mi|Gi|Ti)\Z",
        description="an amount of memory, such as 8Gi",
    ),
]
TaintText = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,252}\Z",
        description="the key or value of a taint, such as nvidia.com/gpu",
    ),
]
FolderInVolume = Annotated[
    str,
    Meta(
        pattern=r"^(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,200}\Z",
        description="a folder in a volume, without a slash at its beginning",
    ),
]
Count = Annotated[int, Meta(ge=1, le=1024)]
Group = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Toleration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A taint of nodes that pods may run on all the same; without `value`, whatever its value."""

    key: TaintText
    value: TaintText | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class Claim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder in a volume that several nodes can mount."""

    claim: ObjectName
    """A PersistentVolumeClaim in the same namespace."""
    folder: FolderInVolume | None = None
    """Without it, the top of the volume."""


class KubernetesSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a site says of its Kubernetes cluster."""

    images: dict[types.Name, types.ImageRef]
    """The image of each profile, which `envbuilder build` made; by digest, it stays the same."""
    nodes: dict[NodeName, types.Name] = {}
    """Which node is for which profile. Without it, `profiles:` decides by the nodes' labels."""
    namespace: Namespace | None = None
    """Without it, that of kubectl's context."""
    resources: dict[types.Accelerator, dict[ExtendedResource, Count]] = {}
    """What a pod requests of the device plugin, if not one device by its vendor's usual name."""
    cpus: Count = 2
    """CPUs to request."""
    memory: Memory = "8Gi"
    """Memory to request."""
    minutes: Annotated[int, Meta(ge=1, le=1440)] = 30
    """How long a pod may take from its start on the node, the pull of its image included."""
    wait_hours: Annotated[int, Meta(ge=1, le=720)] = 24
    """How long a job may wait for its node."""
    keep_hours: Annotated[int, Meta(ge=1, le=720)] = 24
    """How long a finished job stays, with its log."""
    queue: LabelValue | None = None
    """A LocalQueue of Kueue."""
    pull_secrets: Annotated[tuple[ObjectName, ...], Meta(max_length=20)] = ()
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=20)] = ()
    groups: Annotated[tuple[Group, ...], Meta(max_length=20)] = ()
    """Numbers of the groups that own AMD's and Intel's device nodes, such as that of `render`."""
    data: Claim | None = None
    """The four files of MNIST; without it, manifests carry the small subset, which is used then."""
    shared: Claim | None = None
    """For `--ddp`: a folder that all pods can write, in which the nodes meet."""
