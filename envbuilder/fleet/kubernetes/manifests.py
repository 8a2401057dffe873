"""Kubernetes objects as data, and as YAML for the user to review and apply. Pure.

A node is verified by a Job of its own. Nodes that train together are one Indexed Job, with a
headless Service by which its pods meet: one pod a node runs the payload's `parallel-node`, which
starts torchrun. The Job is complete only if all of them trained in step; pod 0 prints the report
on all.

Every quantity is text: clients reject `nvidia.com/gpu: 1`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from envbuilder.build import conventions, isolation
from envbuilder.fleet.settings import Claim, KubernetesSettings, Toleration
from envbuilder.profiles.profile import Profile
from envbuilder.verify.run import payload_arguments, pod_job

Manifest = dict[str, Any]
DATA, SHARED = "/data", "/shared"
"""Where pods find the four files of MNIST, and the folder in which they meet."""
RUN, NODE, PROFILE = "envbuilder/run", "envbuilder/node", "envbuilder/profile"
"""Keys of labels, and of annotations, which hold values of any length."""
NODES, WHY, IMAGES = "envbuilder/nodes", "envbuilder/why", "envbuilder/images"
"""Keys of annotations: the nodes that train together, separated by commas; what promises the
profile; whether all images of MNIST are used."""
LONGEST = 63
"""Characters in a label's value, and in the name of a job, which is a label of its pods."""
_TOGETHER = "envbuilder/together"
"""Key of the label of pods that train together."""
_LONGEST_INDEX = 4
"""Characters that the names of an Indexed Job's pods have in addition: a hyphen and a number."""
_SUFFIX = 6
"""Hexadecimal digits that make a shortened name unique."""
_IN_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NODE_NAME, _POD_NAME = "ENVBUILDER_NODE", "ENVBUILDER_POD"
"""Variables that the kubelet fills in."""
_INDEX = "$(JOB_COMPLETION_INDEX)"
"""Set by the controller of Indexed Jobs; Kubernetes replaces it in arguments."""
_PORT = 29500
_MEETING_SECONDS = 600
"""How long a pod waits for the address of the first one."""
_QUEUE = "kueue.x-k8s.io/queue-name"
_VOLUME = "mnist"


class NodeJob(Struct, frozen=True, kw_only=True):
    """The verification of one node."""

    node: str
    why: str
    """What promises the profile."""
    profile: Profile
    image: str
    resources: dict[str, int]


class Objects(Struct, frozen=True, kw_only=True):
    """The objects of a run."""

    run: str
    settings: KubernetesSettings

    def job(self, node_job: NodeJob) -> Manifest:
        """Return the Job for one node."""
        profile = node_job.profile
        labels = {NODE: label_value(node_job.node), PROFILE: label_value(profile.name)}
        notes = {NODE: node_job.node, PROFILE: profile.name, WHY: node_job.why}
        # Kubernetes replaces $(NAME) by the value of that variable.
        run_id = f"{self.run}/$({_NODE_NAME})/$({_POD_NAME})"
        arguments = (
            *_program(profile),
            *payload_arguments(pod_job(profile, DATA, self.settings.data is None), {"data": DATA}),
            *("--run-id", run_id),
        )
        pod = self._pod(node_job, arguments, [node_job.node])
        return self._job(job_name(self.run, node_job.node), labels, notes, 1, pod)

    def indexed_job(self, name: str, jobs: tuple[NodeJob, ...]) -> Manifest:
        """Return the Indexed Job with one pod on the node of each job, which are alike."""
        assert self.settings.shared is not None
        nodes, profile = [job.node for job in jobs], jobs[0].profile
        labels = {_TOGETHER: name, PROFILE: label_value(profile.name)}
        first = f"{name}-0.{name}"
        arguments = (
            *_program(profile),
            *("parallel-node", "--device", profile.expects.device, "--data", DATA),
            *("--nodes", str(len(nodes)), "--node-rank", _INDEX),
            *("--node-name", f"$({_NODE_NAME})", "--folder", SHARED, "--attempt", name),
            *("--master-address", first, "--master-port", str(_PORT)),
            # The rest of a pod's time is for its image, and for others to arrive.
            *("--limit", str(60 * self.settings.minutes * 2 // 3)),
            *("--run-id", f"{self.run}/$({_NODE_NAME})/$({_POD_NAME})"),
        )
        pod = self._pod(jobs[0], arguments, nodes)
        pod["affinity"]["podAntiAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {RUN: self.run, _TOGETHER: name}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
        pod["securityContext"]["fsGroup"] = conventions.ID
        (container,) = pod["containers"]
        mount = {"name": "shared", "mountPath": SHARED, **_sub_path(self.settings.shared)}
        container["volumeMounts"].append(mount)
        claim = {"claimName": self.settings.shared.claim}
        pod["volumes"].append({"name": "shared", "persistentVolumeClaim": claim})
        pod["subdomain"] = name
        pod["initContainers"] = [_wait_for(first, jobs[0].image)]
        notes = {NODES: ",".join(nodes), PROFILE: profile.name}
        return self._job(name, labels, notes, len(nodes), pod)

    def service(self, name: str) -> Manifest:
        """Return the headless Service that gives each pod of an Indexed Job a name."""
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(name, {}),
            "spec": {
                "clusterIP": "None",
                # Pods look each other up before they are ready.
                "publishNotReadyAddresses": True,
                "selector": {RUN: self.run, _TOGETHER: name},
            },
        }

    def data(self, files: Mapping[str, bytes]) -> Manifest:
        """Return the ConfigMap with the small subset of MNIST; `files` by name."""
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self._metadata(self._data_name, {}),
            "immutable": True,
            "binaryData": {
                name: base64.b64encode(content).decode("ascii")
                for name, content in sorted(files.items())
            },
        }

    @property
    def _data_name(self) -> str:
        return f"envbuilder-{self.run[-6:]}-mnist"

    def _metadata(self, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
        namespace = self.settings.namespace
        return {
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            "labels": {RUN: self.run, **labels},
        }

    def _job(
        self, name: str, labels: dict[str, str], notes: dict[str, str], nodes: int, pod: Manifest
    ) -> Manifest:
        settings = self.settings
        queue = {_QUEUE: settings.queue} if settings.queue else {}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                **self._metadata(name, {**labels, **queue}),
                "annotations": {**notes, IMAGES: "all" if settings.data else "subset"},
            },
            "spec": {
                # Kueue starts it when it is admitted.
                **({"suspend": True} if settings.queue else {}),
                "completions": nodes,
                "parallelism": nodes,
                "backoffLimit": 0,
                "activeDeadlineSeconds": 3600 * settings.wait_hours + 60 * settings.minutes,
                "ttlSecondsAfterFinished": 3600 * settings.keep_hours,
                "template": {"metadata": {"labels": {RUN: self.run, **labels}}, "spec": pod},
                **({"completionMode": "Indexed"} if nodes > 1 else {}),
            },
        }

    def _pod(self, job: NodeJob, arguments: Iterable[str], nodes: Iterable[str]) -> Manifest:
        settings = self.settings
        secrets = [{"name": name} for name in settings.pull_secrets]
        tolerations = [_toleration(each) for each in settings.tolerations]
        # By their names: labels may differ from those. One term each: a term takes one name only.
        terms = [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
            for node in nodes
        ]
        volume: dict[str, Any] = {"configMap": {"name": self._data_name}}
        if settings.data is not None:
            claim = {"claimName": settings.data.claim, "readOnly": True}
            volume = {"persistentVolumeClaim": claim}
        return {
            "restartPolicy": "Never",
            # Of the pod, which is kept with its log; a job over its own deadline loses its pod.
            "activeDeadlineSeconds": 60 * settings.minutes,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # By the scheduler, as DaemonSets do, so that it waits for room.
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
                }
            },
            **({"tolerations": tolerations} if tolerations else {}),
            **({"imagePullSecrets": secrets} if secrets else {}),
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
                **({"supplementalGroups": list(settings.groups)} if settings.groups else {}),
            },
            "containers": [self._container(job, arguments)],
            "volumes": [
                {"name": _VOLUME, **volume},
                # For DataLoader's workers, as large as in a container of `verify`.
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            ],
        }

    def _container(self, job: NodeJob, arguments: Iterable[str]) -> Manifest:
        devices = {name: str(count) for name, count in job.resources.items()}
        requests = {"cpu": str(self.settings.cpus), "memory": self.settings.memory}
        mount = {"name": _VOLUME, "mountPath": DATA, "readOnly": True}
        return {
            "name": "verify",
            "image": job.image,
            # The image's entrypoint sets the number of threads, and then becomes this.
            "args": list(arguments),
            "env": [_from_pod(_NODE_NAME, "spec.nodeName"), _from_pod(_POD_NAME, "metadata.name")],
            "resources": {
                "requests": {**requests, **devices},
                **({"limits": devices} if devices else {}),
            },
            "securityContext": _no_rights(),
            "volumeMounts": [
                {**mount, **_sub_path(self.settings.data)},
                {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 (in a container)
            ],
        }


def text(manifest: Manifest, *comments: str) -> str:
    """Return a manifest as a YAML file, which begins with `comments`."""
    import yaml

    lines = "".join(f"# {line}\n" for line in comments)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    body: str = yaml.dump(
        manifest, Dumper=dumper, sort_keys=False, width=110, default_flow_style=False
    )
    return lines + body


def job_name(run: str, node: str) -> str:
    """Return the name of the Job for a node: readable, and different for every run and node."""
    return _unique(f"envbuilder-{run[-6:]}-", node)


def together_name(run: str, number: int, profile: str) -> str:
    """Return the name of the Job in which several nodes train, and of its Service."""
    return _unique(f"envbuilder-{run[-6:]}-ddp{number}-", profile, LONGEST - _LONGEST_INDEX)


def label_value(value: str) -> str:
    """Return text as the value of a label: as it is if it may be one, else shortened."""
    return value if _IN_LABEL.fullmatch(value) else _unique("", value)


def _unique(prefix: str, name: str, longest: int = LONGEST) -> str:
    simple = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if simple == name and len(prefix + name) <= longest:
        return prefix + name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_SUFFIX]
    short = simple[: longest - len(prefix) - _SUFFIX - 1].strip("-")
    return f"{prefix}{short}-{digest}" if short else f"{prefix}{digest}"


def _program(profile: Profile) -> tuple[str, ...]:
    """Return the command of the payload in an image, isolated as the docker backend starts it."""
    python = f"{conventions.PREFIX}/bin/python"
    return (
        *isolation.python(python, isolation.CONTAINER_BYTECODE),
        conventions.PAYLOAD,
        *("--promise", isolation.container_start(conventions.variables(profile)).text()),
    )


def _wait_for(name: str, image: str) -> Manifest:
    """Return a container that ends when a name has an address: pods start one after the other."""
    until = 'until getent hosts "$0"; do sleep 1; done'
    return {
        "name": "wait",
        "image": image,
        "args": ["timeout", str(_MEETING_SECONDS), "sh", "-c", until, name],
        "securityContext": _no_rights(),
    }


def _no_rights() -> dict[str, Any]:
    """Return the security context of a container that needs no right at all."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _from_pod(name: str, field: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _sub_path(claim: Claim | None) -> dict[str, str]:
    """Return the entry of a mount; empty for the top of the volume."""
    return {"subPath": claim.folder} if claim and claim.folder else {}


def _toleration(taint: Toleration) -> dict[str, str]:
    value = {"operator": "Exists"}
    if taint.value is not None:
        value = {"operator": "Equal", "value": taint.value}
    return {"key": taint.key, **value, **({"effect": taint.effect} if taint.effect else {})}
