"""Several nodes train together: an Indexed Job and its headless Service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from envbuilder.core import resources, schema
from envbuilder.core.errors import InvalidError
from envbuilder.fleet.kubernetes import render
from envbuilder.fleet.kubernetes.manifests import LONGEST, together_name
from envbuilder.fleet.settings import FleetSettings
from envbuilder.payload import arguments
from envbuilder.profiles import profile as profiles
from tests.support.kubernetes import RUN
from tests.support.manifests import problems

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS: dict[str, Any] = {
    "images": {name: f"r.example/{name}:1" for name in ("cuda", "cpu", "jax-cuda")},
    "nodes": {"gpu-1": "cuda", "gpu-2": "cuda", "cpu-1": "cpu", "cpu-2": "cpu", "cpu-3": "cpu"},
    "shared": {"claim": "scratch", "folder": "envbuilder"},
    "queue": "team-a",
}


def shipped(name: str) -> profiles.Profile:
    return profiles.load(name, (resources.profiles_dir(),))


def rendered(**changes: Any) -> dict[str, bytes]:
    data = {"kubernetes": {**SETTINGS, **changes}}
    settings = schema.decode(data, FleetSettings, "fleet.yaml")
    assert settings.kubernetes is not None
    selection = render.selected(settings, None, None)
    files = render.files(RUN, selection, settings.kubernetes, shipped, {}, ddp=True)
    return {file.name: file.content for file in files}


@pytest.fixture
def pair() -> tuple[Any, Any]:
    """The Service and the Job of two nodes with a GPU."""
    files = rendered()
    return yaml.safe_load(files["service-ddp0-cuda.yaml"]), yaml.safe_load(files["ddp0-cuda.yaml"])


def test_rendered_files_are_the_golden_ones(repository: Path, rewrite_golden: bool) -> None:
    folder = repository / "tests" / "golden" / "fleet" / "kubernetes-ddp"
    files = {
        name: content
        for name, content in rendered().items()
        if "ddp0" in name or name == "README.md"
    }
    if rewrite_golden:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    assert files == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_there_is_one_job_for_each_profile_and_none_for_a_node() -> None:
    assert list(rendered()) == [
        *("data.yaml", "README.md"),
        *("ddp0-cuda.yaml", "service-ddp0-cuda.yaml"),
        *("ddp1-cpu.yaml", "service-ddp1-cpu.yaml"),
    ]


def test_a_cluster_accepts_what_the_schema_cannot_check(pair: tuple[Any, Any]) -> None:
    assert [problems(manifest) for manifest in pair] == [[], []]


def test_every_value_stands_where_it_is_used() -> None:
    """YAML's anchors, which PyYAML writes for equal objects, are hard to review."""
    assert all(b"&id" not in content for content in rendered().values())


def test_one_pod_runs_on_each_node(pair: tuple[Any, Any]) -> None:
    _, job = pair
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    rule = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    # The API server refuses a field with several values.
    values = [term["matchFields"][0]["values"] for term in rule["nodeSelectorTerms"]]
    assert values == [["gpu-1"], ["gpu-2"]]
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert apart["labelSelector"]["matchLabels"].items() <= labels.items()
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"


def test_pods_find_the_first_one_by_the_service(pair: tuple[Any, Any]) -> None:
    service, job = pair
    pod = job["spec"]["template"]["spec"]
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["args"][container["args"].index("--master-address") + 1] == first
    assert pod["initContainers"][0]["args"][-1] == first


def test_the_payload_understands_its_arguments(pair: tuple[Any, Any]) -> None:
    _, job = pair
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    values = {"$(JOB_COMPLETION_INDEX)": "1", "$(ENVBUILDER_NODE)": "gpu-2"}
    options = arguments.parser().parse_args(
        [values.get(word, word) for word in words[words.index("--promise") :]]
    )
    assert (options.command, options.nodes, options.node_rank) == ("parallel-node", 2, 1)
    assert options.start.as_found is False
    assert options.limit < job["spec"]["template"]["spec"]["activeDeadlineSeconds"]


def test_the_folder_that_they_share_can_be_written(pair: tuple[Any, Any]) -> None:
    _, job = pair
    pod = job["spec"]["template"]["spec"]
    mount = {m["name"]: m for m in pod["containers"][0]["volumeMounts"]}["shared"]
    assert mount == {"name": "shared", "mountPath": "/shared", "subPath": "envbuilder"}
    volume = {v["name"]: v for v in pod["volumes"]}["shared"]
    assert volume["persistentVolumeClaim"] == {"claimName": "scratch"}
    assert pod["securityContext"]["fsGroup"] == 1000


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
        rendered(**changes)


@pytest.mark.parametrize(
    ("nodes", "profile", "gpus", "sizes"), [(65, "cpu", 0, [32, 33]), (9, "cuda", 8, [4, 5])]
)
def test_more_nodes_than_can_train_together_are_divided(
    nodes: int, profile: str, gpus: int, sizes: list[int]
) -> None:
    named = {f"n{number}": profile for number in range(nodes)}
    files = rendered(nodes=named, resources={"cuda": {"nvidia.com/gpu": gpus or 1}})
    jobs = [yaml.safe_load(text) for name, text in files.items() if name.startswith("ddp")]
    assert [job["spec"]["completions"] for job in jobs] == sizes
    on = [
        term["matchFields"][0]["values"][0]
        for job in jobs
        for term in job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
    ]
    assert on == list(named)


def test_the_names_of_pods_are_labels_of_dns() -> None:
    name = together_name(RUN, 12, "a-profile-of-a-project-with-a-very-long-name-and-more")
    assert len(f"{name}-63") <= LONGEST
