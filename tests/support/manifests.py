"""Settings to render, and what Kubernetes' schema accepts in manifests but a cluster does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

DIGEST = "sha256:" + "0123456789abcdef" * 4
LONG = "ip-10-0-0-1.eu-central-1.compute.internal"
FULL = {
    "images": {
        "cuda": f"registry.example/ml/envbuilder-cuda@{DIGEST}",
        "xpu": "registry.example/ml/envbuilder-xpu:1",
        "cpu": "registry.example/ml/envbuilder-cpu:1",
    },
    "nodes": {"gpu-1": "cuda", "arc-1": "xpu", LONG: "cpu"},
    "namespace": "ml",
    "queue": "team-a",
    "resources": {"xpu": {"gpu.intel.com/xe": 2}},
    "pull_secrets": ["registry-login"],
    "tolerations": [
        {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
        {"key": "dedicated", "value": "ml"},
    ],
    "groups": [44, 109],
    "data": {"claim": "mnist", "folder": "datasets/mnist"},
}
LEAST = {"images": FULL["images"], "nodes": {"gpu-1": "cuda", "cpu-1": "cpu"}}

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
