"""Kubernetes objects as data, and as YAML for the user to review and apply. Pure.

Every quantity is text: clients reject `nvidia.com/gpu: 1`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from envbuilder.fleet.kubernetes.jobs import DATA, NODE_NAME, POD_NAME
from envbuilder.fleet.kubernetes.names import NODE, PROFILE, RUN, data_name, label_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.fleet.kubernetes.jobs import NodeJob
    from envbuilder.fleet.kubernetes.settings import Claim, KubernetesSettings, Toleration

Manifest = dict[str, Any]
CONTAINER = "verify"
WHY, IMAGES = "envbuilder/why", "envbuilder/images"
"""Keys of annotations: what promises the profile, and whether all images of MNIST are used."""
USE = ("How to create it and to show its result: README.md",)
"""Comments of each Job's file."""
_QUEUE = "kueue.x-k8s.io/queue-name"
_VOLUME = "mnist"


def job(run: str, node_job: NodeJob, settings: KubernetesSettings) -> Manifest:
    """Return the Job for one node."""
    labels = {
        RUN: run,
        NODE: label_value(node_job.promise.node),
        PROFILE: label_value(node_job.profile),
    }
    seconds = 60 * settings.minutes
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": node_job.name,
            **namespace(settings),
            "labels": {**labels, **queue(settings)},
            "annotations": {
                NODE: node_job.promise.node,
                PROFILE: node_job.profile,
                WHY: node_job.promise.why,
                IMAGES: images(settings),
            },
        },
        "spec": {
            # Kueue starts it when it is admitted.
            **({"suspend": True} if settings.queue else {}),
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": 3600 * settings.wait_hours + seconds,
            "ttlSecondsAfterFinished": 3600 * settings.keep_hours,
            "template": {
                "metadata": {"labels": labels},
                "spec": _pod(run, node_job, settings, seconds),
            },
        },
    }


def data(run: str, files: Mapping[str, bytes], settings: KubernetesSettings) -> Manifest:
    """Return the ConfigMap with the small subset of MNIST; `files` by name."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": data_name(run), **namespace(settings), "labels": {RUN: run}},
        "immutable": True,
        "binaryData": {
            name: base64.b64encode(content).decode("ascii")
            for name, content in sorted(files.items())
        },
    }


def text(manifest: Manifest, comments: tuple[str, ...]) -> str:
    """Return a manifest as a YAML file, which begins with `comments`."""
    import yaml

    lines = "".join(f"# {line}\n" for line in comments)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    body: str = yaml.dump(
        manifest, Dumper=dumper, sort_keys=False, width=110, default_flow_style=False
    )
    return lines + body


def namespace(settings: KubernetesSettings) -> dict[str, str]:
    """Return the entry of an object's metadata; empty for that of kubectl's context."""
    return {"namespace": settings.namespace} if settings.namespace else {}


def images(settings: KubernetesSettings) -> str:
    """Return which images of MNIST pods train on, as an annotation says it."""
    return "all" if settings.data else "subset"


def queue(settings: KubernetesSettings) -> dict[str, str]:
    """Return the label of a job by which Kueue manages it; empty without a queue."""
    return {_QUEUE: settings.queue} if settings.queue else {}


def on_nodes(nodes: Sequence[str]) -> dict[str, Any]:
    """Return the affinity to nodes, by their names: labels may differ from those."""
    # One term each: a term takes one name only.
    terms = [{"matchFields": [_is_node(node)]} for node in nodes]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def sub_path(claim: Claim | None) -> dict[str, str]:
    """Return the entry of a mount; empty for the top of the volume."""
    return {"subPath": claim.folder} if claim and claim.folder else {}


def no_rights() -> dict[str, Any]:
    """Return the security context of a container that needs no right at all."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _pod(run: str, node_job: NodeJob, settings: KubernetesSettings, seconds: int) -> dict[str, Any]:
    secrets = [{"name": name} for name in settings.pull_secrets]
    tolerations = [_toleration(each) for each in settings.tolerations]
    return {
        "restartPolicy": "Never",
        # Of the pod, which is kept with its log; a job that is over its own deadline loses its pod.
        "activeDeadlineSeconds": seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # By the scheduler, as DaemonSets do, so that it waits for room.
        "affinity": {"nodeAffinity": on_nodes([node_job.promise.node])},
        **({"tolerations": tolerations} if tolerations else {}),
        **({"imagePullSecrets": secrets} if secrets else {}),
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            **({"supplementalGroups": list(settings.groups)} if settings.groups else {}),
        },
        "containers": [_container(node_job, settings)],
        "volumes": [_volume(run, settings.data), _shared_memory()],
    }


def _is_node(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


def _container(node_job: NodeJob, settings: KubernetesSettings) -> dict[str, Any]:
    devices = {name: str(count) for name, count in node_job.resources.items()}
    requests = {"cpu": str(settings.cpus), "memory": settings.memory}
    mount = {"name": _VOLUME, "mountPath": DATA, "readOnly": True}
    return {
        "name": CONTAINER,
        "image": node_job.image,
        # The image's entrypoint sets the number of threads, and then becomes this.
        "args": list(node_job.arguments),
        "env": [_from_pod(NODE_NAME, "spec.nodeName"), _from_pod(POD_NAME, "metadata.name")],
        "resources": {
            "requests": {**requests, **devices},
            **({"limits": devices} if devices else {}),
        },
        "securityContext": no_rights(),
        "volumeMounts": [
            {**mount, **sub_path(settings.data)},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 (in a container)
        ],
    }


def _from_pod(name: str, field: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _volume(run: str, claim: Claim | None) -> dict[str, Any]:
    if claim is None:
        return {"name": _VOLUME, "configMap": {"name": data_name(run)}}
    source = {"claimName": claim.claim, "readOnly": True}
    return {"name": _VOLUME, "persistentVolumeClaim": source}


def _shared_memory() -> dict[str, Any]:
    """Return a /dev/shm for DataLoader's workers, as large as in a container of `verify`."""
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}


def _toleration(stated: Toleration) -> dict[str, str]:
    value = {"operator": "Exists"}
    if stated.value is not None:
        value = {"operator": "Equal", "value": stated.value}
    return {"key": stated.key, **value, **({"effect": stated.effect} if stated.effect else {})}
