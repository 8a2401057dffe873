"""Manifests: what the schema cannot check, what is in them, and how the payload reads them."""

from __future__ import annotations

import base64
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuilder.core import decoding, resources
from envbuilder.core.errors import InvalidError
from envbuilder.fleet.kubernetes import render
from envbuilder.fleet.kubernetes.manifests import LONGEST, job_name, label_value, together_name
from envbuilder.fleet.settings import FleetSettings
from envbuilder.payload import arguments
from envbuilder.profiles import profile as profiles
from tests.support.kubernetes import RUN
from tests.support.manifests import FULL, LEAST, LONG, problems


def files(settings: Any, subset: dict[str, bytes], *, ddp: bool = False) -> dict[str, bytes]:
    """Return the content of the rendered files by name."""
    fleet = decoding.decode({"kubernetes": settings}, FleetSettings, "fleet.yaml")
    assert fleet.kubernetes is not None
    selection = render.selected(fleet, None, None)
    made = render.files(RUN, selection, fleet.kubernetes, shipped, subset, ddp=ddp)
    return {file.name: file.content for file in made}


def rendered(settings: Any) -> dict[str, dict[str, Any]]:
    """Return the manifests by the name of their file, as another program reads them."""
    subset = {p.name: p.read_bytes() for p in resources.mnist_subset_dir().glob("*.gz")}
    made = files(settings, subset)
    return {name: yaml.safe_load(text) for name, text in made.items() if name.endswith(".yaml")}


def shipped(name: str) -> profiles.Profile:
    return profiles.load(name, (resources.profiles_dir(),))


def require_golden(folder: Path, made: dict[str, bytes], *, rewrite: bool) -> None:
    if rewrite:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in made.items():
            (folder / name).write_bytes(content)
    assert made == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_rendered_files_are_the_golden_ones(repository: Path, rewrite_golden: bool) -> None:
    folder = repository / "tests" / "golden" / "fleet" / "kubernetes"
    require_golden(folder, files(FULL, {}), rewrite=rewrite_golden)


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
        decoding.decode({"kubernetes": {**LEAST, key: value}}, FleetSettings, "fleet.yaml")


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
    # Pods have a hyphen and a number more, and are labels of DNS.
    name = together_name(RUN, 12, "a-profile-of-a-project-with-a-very-long-name-and-more")
    assert len(f"{name}-63") <= LONGEST


TOGETHER: dict[str, Any] = {
    "images": {name: f"r.example/{name}:1" for name in ("cuda", "cpu", "jax-cuda")},
    "nodes": {"gpu-1": "cuda", "gpu-2": "cuda", "cpu-1": "cpu", "cpu-2": "cpu", "cpu-3": "cpu"},
    "shared": {"claim": "scratch", "folder": "envbuilder"},
    "queue": "team-a",
}


def together(**changes: Any) -> dict[str, bytes]:
    return files({**TOGETHER, **changes}, {}, ddp=True)


@pytest.fixture
def pair() -> tuple[Any, Any]:
    """The Service and the Job of two nodes with a GPU."""
    made = together()
    return yaml.safe_load(made["service-ddp0-cuda.yaml"]), yaml.safe_load(made["ddp0-cuda.yaml"])


def test_files_of_groups_are_the_golden_ones(repository: Path, rewrite_golden: bool) -> None:
    folder = repository / "tests" / "golden" / "fleet" / "kubernetes-ddp"
    made = together().items()
    some = {name: text for name, text in made if "ddp0" in name or name == "README.md"}
    require_golden(folder, some, rewrite=rewrite_golden)


def test_there_is_one_job_for_each_profile_and_none_for_a_node() -> None:
    assert list(together()) == [
        *("data.yaml", "README.md"),
        *("ddp0-cuda.yaml", "service-ddp0-cuda.yaml"),
        *("ddp1-cpu.yaml", "service-ddp1-cpu.yaml"),
    ]


def test_a_cluster_accepts_groups_too(pair: tuple[Any, Any]) -> None:
    assert [problems(manifest) for manifest in pair] == [[], []]


def test_every_value_stands_where_it_is_used() -> None:
    """YAML's anchors, which PyYAML writes for equal objects, are hard to review."""
    assert all(b"&id" not in content for content in together().values())


def test_the_payload_understands_the_arguments_of_groups(pair: tuple[Any, Any]) -> None:
    _, job = pair
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    values = {"$(JOB_COMPLETION_INDEX)": "1", "$(ENVBUILDER_NODE)": "gpu-2"}
    options = arguments.parser().parse_args(
        [values.get(word, word) for word in words[words.index("--promise") :]]
    )
    assert (options.command, options.nodes, options.node_rank) == ("parallel-node", 2, 1)
    assert options.start.as_found is False
    assert options.limit < job["spec"]["template"]["spec"]["activeDeadlineSeconds"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shared": None}, "kubernetes.shared"),
        ({"nodes": {"gpu-1": "cuda", "cpu-1": "cpu"}}, "no two nodes"),
        ({"nodes": {"gpu-1": "jax-cuda", "gpu-2": "jax-cuda"}}, "no two nodes"),
        ({"resources": {"cuda": {"nvidia.com/gpu": 33}}}, "66 ranks"),
    ],
)
def test_nodes_that_cannot_train_together_are_refused(changes: Any, words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        together(**changes)


@pytest.mark.parametrize(
    ("nodes", "profile", "gpus", "sizes"), [(65, "cpu", 0, [32, 33]), (9, "cuda", 8, [4, 5])]
)
def test_more_nodes_than_can_train_together_are_divided(
    nodes: int, profile: str, gpus: int, sizes: list[int]
) -> None:
    named = {f"n{number}": profile for number in range(nodes)}
    made = together(nodes=named, resources={"cuda": {"nvidia.com/gpu": gpus or 1}})
    jobs = [yaml.safe_load(text) for name, text in made.items() if name.startswith("ddp")]
    assert [job["spec"]["completions"] for job in jobs] == sizes
    on = [
        term["matchFields"][0]["values"][0]
        for job in jobs
        for term in job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
    ]
    assert on == list(named)
