"""A training across nodes: an Indexed Job, and the headless Service by which its pods meet. Pure.

One pod a node runs the payload's `parallel-node`, which starts torchrun. The job is complete only
if all of them trained in step; pod 0 prints the report on all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.build import conventions
from envbuilder.core.errors import InvalidError
from envbuilder.core.resources import MARK
from envbuilder.fleet import groups as members
from envbuilder.fleet.groups import Kind
from envbuilder.fleet.kubernetes import manifests
from envbuilder.fleet.kubernetes.jobs import (
    DATA,
    NODE_NAME,
    POD_NAME,
    NodeJob,
    program,
    run_id,
)
from envbuilder.fleet.kubernetes.names import (
    NODES,
    PROFILE,
    RUN,
    TOGETHER,
    label_value,
    together_name,
)
from envbuilder.payload.parallel.shares import MOST_RANKS
from envbuilder.profiles.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envbuilder.fleet.kubernetes.settings import Claim, KubernetesSettings

SHARED = "/shared"
"""Where pods find the folder in which they meet."""
PORT = 29500
_MEETING_SECONDS = 600
"""How long a pod waits for the address of the first one."""
_INDEX = "$(JOB_COMPLETION_INDEX)"
"""Set by the controller of Indexed Jobs; Kubernetes replaces it in arguments."""


class Group(Struct, frozen=True, kw_only=True):
    """Nodes that train together, as one Job."""

    name: str
    number: int
    profile: Profile
    jobs: tuple[NodeJob, ...]


def comments(group: Group) -> tuple[str, ...]:
    """Return what to know of a group's Job."""
    return (
        f"{MARK}: trains on {len(group.jobs)} nodes with the profile {group.profile.name}.",
        "The job is complete only if all of them trained in step.",
        *manifests.USE,
    )


def service_comments(group: Group) -> tuple[str, ...]:
    """Return what to know of a group's Service."""
    return (f"{MARK}: gives the pods of the job {group.name} names.",)


def groups(
    run: str,
    jobs: Iterable[NodeJob],
    profiles: Mapping[str, Profile],
    settings: KubernetesSettings,
) -> tuple[Group, ...]:
    """Return the nodes that train together, as on every scheduler: see `envbuilder.fleet.groups`.

    Raises `InvalidError` if there are none, or two of them have too many devices.
    """
    if settings.shared is None:
        raise InvalidError(
            "kubernetes.shared: nodes that train together meet in a folder that all can write",
            "Name a claim of a ReadWriteMany volume: shared: {claim: NAME}",
        )
    by_node = {job.promise.node: job for job in jobs}
    alike = members.alike(
        (node, _kind(job))
        for node, job in by_node.items()
        if profiles[job.profile].framework == "torch"
    )
    if not alike:
        raise InvalidError("--ddp: no two nodes have the same profile of PyTorch and devices")
    for each in alike:
        ranks = len(each.nodes) * max(1, each.gpus)
        if ranks > MOST_RANKS:
            raise InvalidError(
                f"--ddp: {ranks} ranks with the profile {each.profile}: up to {MOST_RANKS} can"
                " train together",
                "Request fewer devices of each node: kubernetes.resources",
            )
    return tuple(
        Group(
            name=together_name(run, number, each.profile),
            number=number,
            profile=profiles[each.profile],
            jobs=tuple(by_node[node] for node in each.nodes),
        )
        for number, each in enumerate(alike)
    )


def _kind(job: NodeJob) -> Kind:
    """Return what must be equal: all pods of a Job request the same resources."""
    resources = tuple(sorted(job.resources.items()))
    # Besides devices, a node may be asked for one thing more, such as a network adapter.
    return Kind(profile=job.profile, gpus=max(job.resources.values(), default=0), others=resources)


def service(run: str, group: Group, settings: KubernetesSettings) -> manifests.Manifest:
    """Return the headless Service that gives each pod a name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": group.name,
            **manifests.namespace(settings),
            "labels": {RUN: run},
        },
        "spec": {
            "clusterIP": "None",
            # Pods look each other up before they are ready.
            "publishNotReadyAddresses": True,
            "selector": {RUN: run, TOGETHER: group.name},
        },
    }


def indexed_job(run: str, group: Group, settings: KubernetesSettings) -> manifests.Manifest:
    """Return the Indexed Job, with one pod on each node."""
    first = group.jobs[0]
    one_node = manifests.job(run, first, settings)
    labels = {RUN: run, TOGETHER: group.name, PROFILE: label_value(first.profile)}
    nodes = len(group.jobs)
    metadata = {
        "name": group.name,
        **manifests.namespace(settings),
        "labels": {**labels, **manifests.queue(settings)},
        "annotations": {
            NODES: ",".join(job.promise.node for job in group.jobs),
            PROFILE: first.profile,
            manifests.IMAGES: manifests.images(settings),
        },
    }
    spec = {
        **one_node["spec"],
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "template": {
            "metadata": {"labels": labels},
            "spec": _pod(run, group, one_node["spec"]["template"]["spec"], settings),
        },
    }
    return {**one_node, "metadata": metadata, "spec": spec}


def _pod(
    run: str, group: Group, of_one: dict[str, Any], settings: KubernetesSettings
) -> dict[str, Any]:
    """Return the pods' specification, which differs little from that of one node's pod."""
    assert settings.shared is not None
    (container,) = of_one["containers"]
    mount = {"name": "shared", "mountPath": SHARED, **manifests.sub_path(settings.shared)}
    first = f"{group.name}-0.{group.name}"
    return {
        **of_one,
        "subdomain": group.name,
        "affinity": {
            "nodeAffinity": manifests.on_nodes([job.promise.node for job in group.jobs]),
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": {RUN: run, TOGETHER: group.name}},
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            },
        },
        "securityContext": {**of_one["securityContext"], "fsGroup": conventions.ID},
        "initContainers": [_wait_for(first, container["image"])],
        "containers": [
            {
                **container,
                "args": list(_arguments(run, group, first, settings)),
                "volumeMounts": [*container["volumeMounts"], mount],
            }
        ],
        "volumes": [*of_one["volumes"], _shared(settings.shared)],
    }


def _wait_for(name: str, image: str) -> dict[str, Any]:
    """Return a container that ends when a name has an address: pods start one after the other."""
    until = 'until getent hosts "$0"; do sleep 1; done'
    return {
        "name": "wait",
        "image": image,
        "args": ["timeout", str(_MEETING_SECONDS), "sh", "-c", until, name],
        "securityContext": manifests.no_rights(),
    }


def _arguments(run: str, group: Group, first: str, settings: KubernetesSettings) -> tuple[str, ...]:
    return (
        *program(group.profile),
        *("parallel-node", "--device", group.profile.expects.device, "--data", DATA),
        *("--nodes", str(len(group.jobs)), "--node-rank", _INDEX),
        *("--node-name", f"$({NODE_NAME})", "--folder", SHARED, "--attempt", group.name),
        *("--master-address", first, "--master-port", str(PORT)),
        # The rest of a pod's time is for its image, and for others to arrive.
        *("--limit", str(60 * settings.minutes * 2 // 3)),
        *("--run-id", run_id(run, f"$({NODE_NAME})", f"$({POD_NAME})")),
    )


def _shared(claim: Claim) -> dict[str, Any]:
    return {"name": "shared", "persistentVolumeClaim": {"claimName": claim.claim}}
