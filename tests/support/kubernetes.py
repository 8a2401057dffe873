"""A recorded run on Kubernetes (tests/data/kubernetes), in which nodes are called what befell them.

And what the schema of Kubernetes lets pass in manifests, and a cluster does not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.core import resources
from envbuilder.core.errors import ToolError
from envbuilder.fleet.kubernetes import objects
from envbuilder.fleet.kubernetes.collect import Work
from envbuilder.fleet.kubernetes.jobs import SUBSET
from envbuilder.fleet.kubernetes.stated import Stated
from envbuilder.fleet.model import Promise
from envbuilder.payload.training.dataset import load
from envbuilder.profiles import profile as profiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.fleet.kubernetes.objects import JobObject, PodObject

DATA = Path(__file__).resolve().parent.parent / "data" / "kubernetes"
RUN = "20261123t091500z-4f1a2b"
OUTCOMES = {
    # The machine was busy when the log was recorded.
    "right": "busy",
    "silent": "mixed-up",
    "mixed": "mixed-up",
    "forged": "failed",
    "elsewhere": "mixed-up",
    "failing": "failed",
    "wrong-device": "wrong",
    "bad-data": "broken",
    "oom": "killed",
    "sigkill": "killed",
    "evicted": "killed",
    "preempted": "killed",
    "shutdown": "killed",
    "hung": "timed-out",
    "slow-pull": "timed-out",
    "no-image": "broken",
    "no-start": "broken",
    "not-admitted": "refused",
    "full": "pending",
    "creating": "pending",
    "running": "pending",
    "unreachable": "lost",
    "unknown": "lost",
    "queued": "pending",
    "too-late": "pending",
    "no-pod": "lost",
    "no-quota": "lost",
    "vanished": "lost",
}
"""What is to become of each node. `vanished` has neither job nor pod."""


def job_name(node: str) -> str:
    return f"envbuilder-4f1a2b-{node}"


def pod_name(node: str) -> str:
    return f"{job_name(node)}-x7k2p"


def stated(node: str) -> Stated:
    """A node's job as it was rendered."""
    return Stated(
        run=RUN,
        job=job_name(node),
        promise=Promise(node=node, profile="cpu", why="kubernetes.nodes"),
        profile="cpu",
        image=f"registry.example/ml/envbuilder-cpu@sha256:{'5' * 64}",
        subset=True,
        namespace="ml",
    )


def work() -> Work:
    """What all nodes were to do."""
    return Work(
        run=RUN,
        subset=True,
        data=load(resources.mnist_subset_dir(), SUBSET),
        profiles={"cpu": profiles.load("cpu", (resources.profiles_dir(),))},
    )


def log_of(node: str) -> str:
    """What a node's pod printed: the recorded log, or a part or a variant of it."""
    text = (DATA / "verified.log").read_text()
    report = json.loads(text.splitlines()[-1])
    events = "".join(text.splitlines(keepends=True)[:-1])
    report["run_id"] = f"{RUN}/{node}/{pod_name(node)}"
    match node:
        case "silent":
            return events
        case "hung":
            return f"{events}no more\n"
        case "bad-data":
            problem = "/data/train-images-idx3-ubyte: is missing"
            event = json.dumps({"event": "error", "message": problem})
            return f"payload: {problem}\n{event}\n"
        case "mixed":
            report["run_id"] = f"{RUN}/right/{pod_name('right')}"
        case "elsewhere":
            report["run_id"] = f"{RUN}/right/{pod_name('elsewhere')}"
        case "failing":
            report["report"] |= {"status": "failed", "reasons": ["gradients: 3.1 apart"]}
        case "wrong-device":
            report["report"] |= {"status": "failed", "reasons": ["device used: no GPU"]}
            report["report"]["device"] |= {"requested": "cuda", "used": "cpu"}
        case _:
            pass
    return f"{events}{json.dumps(report)}\n"


class Recorded:
    """A client that answers from the recorded run."""

    def __init__(self, *, without_logs: bool = False) -> None:
        self._without_logs = without_logs

    def jobs(self, run: str) -> tuple[JobObject, ...]:
        assert run == RUN
        content = (DATA / "run" / "jobs.json").read_bytes()
        return objects.parse(content, objects.JobList, "jobs.json").items

    def pods(self, run: str) -> tuple[PodObject, ...]:
        assert run == RUN
        content = (DATA / "run" / "pods.json").read_bytes()
        return objects.parse(content, objects.PodList, "pods.json").items

    def log(self, pod: str) -> str:
        if self._without_logs:
            raise ToolError("kubectl logs: the server does not allow access to it")
        return log_of(pod.removeprefix("envbuilder-4f1a2b-").removesuffix("-x7k2p"))


_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_CHOICES = {
    "restartPolicy": {"Never", "OnFailure"},
    "completionMode": {"NonIndexed", "Indexed"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
    "operator": {"Exists", "Equal", "In"},
    "medium": {"", "Memory"},
}
_LARGEST = 1 << 20
"""Bytes that a ConfigMap may hold."""


def problems(manifest: dict[str, Any]) -> list[str]:
    """Return what a cluster would refuse in a manifest that the schema accepts."""
    return [*_metadata(manifest), *_values(manifest, ""), *_parts(manifest)]


def _metadata(manifest: dict[str, Any]) -> Iterator[str]:
    metadata = manifest["metadata"]
    pattern = _NAME if manifest["kind"] in {"Job", "Service"} else _SUBDOMAIN
    if not pattern.fullmatch(metadata["name"]):
        yield f"name: {metadata['name']}"
    if not _NAME.fullmatch(metadata.get("namespace", "default")):
        yield f"namespace: {metadata['namespace']}"
    template = manifest.get("spec", {}).get("template", {}).get("metadata", {})
    for labels in (metadata.get("labels", {}), template.get("labels", {})):
        for key, value in labels.items():
            if not _KEY.fullmatch(key) or not _LABEL.fullmatch(value):
                yield f"label: {key}={value}"
    for key, value in metadata.get("annotations", {}).items():
        if not _KEY.fullmatch(key) or not isinstance(value, str):
            yield f"annotation: {key}={value}"


def _values(value: Any, place: str) -> Iterator[str]:
    """Yield wrong choices and quantities at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from _values(item, place)
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        if key in _CHOICES and inner not in _CHOICES[key]:
            yield f"{place}.{key}: {inner}"
        if key in {"requests", "limits"}:
            yield from _quantities(inner, f"{place}.{key}")
        if key.endswith(("Seconds", "Limit")) and isinstance(inner, int) and inner < 0:
            yield f"{place}.{key}: {inner}"
        yield from _values(inner, f"{place}.{key}")


def _quantities(resources: dict[str, Any], place: str) -> Iterator[str]:
    for name, amount in resources.items():
        whole = "/" in name
        if not isinstance(amount, str) or not _QUANTITY.fullmatch(amount):
            yield f"{place}.{name}: {amount!r} is not a quantity in quotes"
        elif whole and not amount.isdecimal():
            yield f"{place}.{name}: {amount} is not a whole number of devices"


def _parts(manifest: dict[str, Any]) -> Iterator[str]:
    if manifest["kind"] == "ConfigMap":
        held = sum(len(text) * 3 // 4 for text in manifest["binaryData"].values())
        if held > _LARGEST:
            yield f"binaryData: {held} bytes"
    if manifest["kind"] != "Job":
        return
    spec = manifest["spec"]["template"]["spec"]
    if "restartPolicy" not in spec:
        yield "restartPolicy: a Job has no default"
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in spec["containers"]:
        limits = container["resources"].get("limits", {})
        requests = container["resources"]["requests"]
        for name in {n for n in (*limits, *requests) if "/" in n}:
            if limits.get(name) != requests.get(name, limits.get(name)):
                yield f"{name}: limit and request of a device differ"
        for mount in container["volumeMounts"]:
            if mount["name"] not in volumes:
                yield f"volumeMounts: no volume {mount['name']}"
