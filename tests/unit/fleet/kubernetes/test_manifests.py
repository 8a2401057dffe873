"""Manifests: what the schema cannot check, what is in them, and how the payload reads them."""

from __future__ import annotations

import base64
import copy
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from envbuilder.core import resources, schema
from envbuilder.core.errors import InvalidError
from envbuilder.fleet.kubernetes import render
from envbuilder.fleet.kubernetes.manifests import LONGEST, job_name, label_value
from envbuilder.fleet.settings import FleetSettings
from envbuilder.payload import arguments
from envbuilder.profiles import profile as profiles
from tests.support.kubernetes import RUN
from tests.support.manifests import FULL, LEAST, LONG, problems

if TYPE_CHECKING:
    from pathlib import Path


def rendered(stated_settings: Any) -> dict[str, dict[str, Any]]:
    """Return the manifests by the name of their file, as another program reads them."""
    settings = schema.decode({"kubernetes": stated_settings}, FleetSettings, "fleet.yaml")
    assert settings.kubernetes is not None
    selection = render.selected(settings, None, None)
    subset = {p.name: p.read_bytes() for p in resources.mnist_subset_dir().glob("*.gz")}
    return {
        file.name: yaml.safe_load(file.content)
        for file in render.files(RUN, selection, settings.kubernetes, shipped, subset)
        if file.name.endswith(".yaml")
    }


def shipped(name: str) -> profiles.Profile:
    return profiles.load(name, (resources.profiles_dir(),))


def test_rendered_files_are_the_golden_ones(repository: Path, rewrite_golden: bool) -> None:
    folder = repository / "tests" / "golden" / "fleet" / "kubernetes"
    settings = schema.decode({"kubernetes": FULL}, FleetSettings, "fleet.yaml")
    assert settings.kubernetes is not None
    selection = render.selected(settings, None, None)
    files = tuple(render.files(RUN, selection, settings.kubernetes, shipped, {}))
    if rewrite_golden:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            (folder / file.name).write_bytes(file.content)
    golden = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {file.name: file.content for file in files} == golden


def pod(manifest: dict[str, Any]) -> Any:
    return manifest["spec"]["template"]["spec"]


@pytest.mark.parametrize("settings", [FULL, LEAST])
def test_a_cluster_accepts_what_the_schema_cannot_check(settings: Any) -> None:
    for name, manifest in rendered(settings).items():
        assert problems(manifest) == [], name


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("spec", "completionMode"), "Indexd", "completionMode"),
        (("spec", "template", "spec", "restartPolicy"), "Always", "restartPolicy"),
        (("spec", "activeDeadlineSeconds"), -1, "activeDeadlineSeconds"),
        (("metadata", "name"), "x" * 64, "name"),
        (("metadata", "namespace"), "Ml", "namespace"),
        (("metadata", "labels", "envbuilder/node"), "n" * 64, "label"),
    ],
)
def test_the_checks_notice(place: tuple[str, ...], value: Any, words: str) -> None:
    manifest = copy.deepcopy(rendered(FULL)["job-gpu-1.yaml"])
    *parents, key = place
    inner = manifest
    for parent in parents:
        inner = inner[parent]
    inner[key] = value
    assert words in " ".join(problems(manifest))


@pytest.mark.parametrize("amount", [1, "one", "1.5", ""])
def test_the_checks_notice_what_is_no_number_of_devices(amount: Any) -> None:
    manifest = rendered(FULL)["job-gpu-1.yaml"]
    for part in pod(manifest)["containers"][0]["resources"].values():
        if "nvidia.com/gpu" in part:
            part["nvidia.com/gpu"] = amount
    assert any("nvidia.com/gpu" in problem for problem in problems(manifest))


def test_each_vendor_has_its_resource_and_a_cpu_none() -> None:
    manifests = rendered(FULL)
    limits = {
        name: pod(manifest)["containers"][0]["resources"].get("limits")
        for name, manifest in manifests.items()
    }
    assert limits == {
        "job-gpu-1.yaml": {"nvidia.com/gpu": "1"},
        "job-arc-1.yaml": {"gpu.intel.com/xe": "2"},
        f"job-{LONG}.yaml": None,
    }


def test_a_pod_has_no_right_that_it_does_not_need() -> None:
    spec = pod(rendered(FULL)["job-gpu-1.yaml"])
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["supplementalGroups"] == [44, 109]
    (container,) = spec["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(
        mount.get("readOnly") for mount in container["volumeMounts"] if mount["name"] != "shm"
    )


def test_a_job_runs_once_on_its_node_alone() -> None:
    manifest = rendered(LEAST)["job-gpu-1.yaml"]
    spec, of_pod = manifest["spec"], pod(manifest)
    assert (spec["backoffLimit"], spec["completions"], spec["parallelism"]) == (0, 1, 1)
    assert of_pod["restartPolicy"] == "Never"
    rule = of_pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (field,) = rule["nodeSelectorTerms"][0]["matchFields"]
    assert field == {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}
    # The pod's own deadline, which keeps its log, comes before that of the job.
    assert of_pod["activeDeadlineSeconds"] < spec["activeDeadlineSeconds"]


def test_the_payload_is_told_which_pod_it_is_in() -> None:
    (container,) = pod(rendered(LEAST)["job-cpu-1.yaml"])["containers"]
    assert container["args"][-2:] == ["--run-id", f"{RUN}/$(ENVBUILDER_NODE)/$(ENVBUILDER_POD)"]
    fields = {v["name"]: v["valueFrom"]["fieldRef"]["fieldPath"] for v in container["env"]}
    assert fields == {"ENVBUILDER_NODE": "spec.nodeName", "ENVBUILDER_POD": "metadata.name"}


@pytest.mark.parametrize("settings", [FULL, LEAST], ids=["full", "least"])
def test_the_payload_understands_its_arguments(settings: Any) -> None:
    jobs = [m for m in rendered(settings).values() if m["kind"] == "Job"]
    for job in jobs:
        words = pod(job)["containers"][0]["args"]
        options = arguments.parser().parse_args(words[words.index("--promise") :])
        assert options.command == "verify"
        assert options.start.prefix == words[0].removesuffix("/bin/python")


def test_without_a_claim_the_manifests_carry_the_small_subset() -> None:
    manifests = rendered(LEAST)
    held = manifests["data.yaml"]["binaryData"]
    folder = resources.mnist_subset_dir()
    assert {name: base64.b64decode(text) for name, text in held.items()} == {
        path.name: path.read_bytes() for path in folder.glob("*.gz")
    }
    spec = pod(manifests["job-cpu-1.yaml"])
    assert spec["volumes"][0]["configMap"]["name"] == manifests["data.yaml"]["metadata"]["name"]
    assert "--quick" in spec["containers"][0]["args"]


def test_a_claim_is_mounted_read_only_and_trained_on_in_full() -> None:
    manifests = rendered(FULL)
    assert "data.yaml" not in manifests
    spec = pod(manifests["job-gpu-1.yaml"])
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "mnist", "readOnly": True}
    (container,) = spec["containers"]
    assert container["volumeMounts"][0]["subPath"] == "datasets/mnist"
    assert "--quick" not in container["args"]
    assert "--min-accuracy" not in container["args"], "the measured gates hold"


def test_kueue_starts_what_has_a_queue() -> None:
    with_queue, without = rendered(FULL)["job-gpu-1.yaml"], rendered(LEAST)["job-gpu-1.yaml"]
    assert with_queue["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert with_queue["spec"]["suspend"] is True
    assert "suspend" not in without["spec"]
    assert not any("kueue" in key for key in without["metadata"]["labels"])


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ({"m": "mps"}, "no images of this profile"),
        ({"m": "rocm"}, "no image for the profile rocm"),
        ({}, "no node is named"),
    ],
)
def test_what_cannot_be_rendered_is_refused(nodes: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        rendered({**LEAST, "nodes": nodes})


def test_which_of_intels_resources_must_be_stated() -> None:
    with pytest.raises(InvalidError, match=r"gpu\.intel\.com/xe or gpu\.intel\.com/i915"):
        rendered({**LEAST, "nodes": {"arc-1": "xpu"}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("images", {"cpu": "image with blanks"}),
        ("namespace", "a" * 64),
        ("namespace", "-ml"),
        ("resources", {"cuda": {"gpu": 1}}),
        ("resources", {"cuda": {"nvidia.com/gpu": "one"}}),
        ("resources", {"cuda": {"nvidia.com/gpu": 0}}),
        ("memory", "8 GB"),
        ("memory", 8),
        ("cpus", 0),
        ("queue", "x" * 64),
        ("tolerations", [{"key": "gpu", "effect": "Never"}]),
        ("data", {"claim": "mnist", "folder": "../etc"}),
        ("data", {"claim": "mnist", "folder": "/etc"}),
        ("groups", [0]),
        ("nodes", {"a b": "cpu"}),
        ("image", {"cpu": "r.example/cpu:1"}),
    ],
)
def test_settings_that_a_cluster_would_refuse_are_refused_first(key: str, value: Any) -> None:
    with pytest.raises(InvalidError, match=f"kubernetes.{key}"):
        schema.decode({"kubernetes": {**LEAST, key: value}}, FleetSettings, "fleet.yaml")


@pytest.mark.parametrize(
    "node",
    ["gpu-1", LONG, "n" * 253, "UPPER", "a.b", "a-b", "a_b", "-".join(["node"] * 30), "1"],
)
def test_names_are_valid_and_different(node: str) -> None:
    name = job_name(RUN, node)
    assert len(name) <= LONGEST
    assert problems({"kind": "Job", "metadata": {"name": name}} | NO_SPEC) == []
    assert label_value(node) == node or len(label_value(node)) <= LONGEST
    assert name != job_name(RUN, f"{node}x")
    assert name != job_name(f"{RUN[:-1]}0", node)


NO_SPEC = {
    "spec": {"template": {"spec": {"restartPolicy": "Never", "volumes": [], "containers": []}}}
}


def test_names_that_only_differ_in_what_is_replaced_stay_different() -> None:
    nodes = ("a-b", "a.b", "a_b", "A-B")
    assert len({job_name(RUN, node) for node in nodes}) == len(nodes)
