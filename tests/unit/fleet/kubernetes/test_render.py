"""The nodes of a cluster, and which profile is for which by their labels."""

from __future__ import annotations

from typing import Any

import pytest

from envbuilder.core import decoding, resources
from envbuilder.core.errors import InvalidError
from envbuilder.fleet.kubernetes import render
from envbuilder.fleet.settings import FleetSettings
from envbuilder.profiles import profile as profiles
from tests.support.kubernetes import DATA

RULES = [
    {"feature": "nvidia.com/gpu.present=true", "profile": "cuda"},
    {"feature": "feature.node.kubernetes.io/pci-0300_8086.present=true", "profile": "xpu"},
    {"node": "epyc-*", "profile": "zendnn"},
]
IMAGES = {name: f"registry.example/{name}:1" for name in ("cuda", "xpu", "zendnn")}


@pytest.fixture
def listed() -> tuple[Any, ...]:
    return render.nodes((DATA / "nodes.json").read_bytes(), "nodes.json")


def settings(**changes: Any) -> FleetSettings:
    stated = {"profiles": RULES, "kubernetes": {"images": IMAGES}, **changes}
    return decoding.decode(stated, FleetSettings, "fleet.yaml")


def test_labels_decide_and_unusable_nodes_are_left_out(listed: tuple[Any, ...]) -> None:
    selection = render.selected(settings(), listed, None)
    assert {p.node: p.profile for p in selection.promises} == {
        "gpu-a": "cuda",
        "arc-old": "xpu",
        "arc-new": "xpu",
        "epyc-1.example.internal": "zendnn",
    }
    assert {e.node: (e.outcome, e.detail) for e in selection.left_out} == {
        "epyc-2.example.internal": ("drained", "Ready,SchedulingDisabled: cordoned"),
        "epyc-3.example.internal": ("drained", "NotReady: Kubelet stopped posting node status."),
        "control-1": ("unmapped", "no rule in the settings is for it"),
    }


def test_a_node_offers_the_resource_of_its_kernel_driver(listed: tuple[Any, ...]) -> None:
    stated = settings()
    assert stated.kubernetes is not None
    selection = render.selected(stated, listed, None)
    loaded = {name: profiles.load(name, (resources.profiles_dir(),)) for name in IMAGES}
    jobs = render.node_jobs(selection, stated.kubernetes, loaded.__getitem__)
    assert {job.node: job.resources for job in jobs} == {
        "gpu-a": {"nvidia.com/gpu": 1},
        "arc-old": {"gpu.intel.com/i915": 1},
        "arc-new": {"gpu.intel.com/xe": 1},
        "epyc-1.example.internal": {},
    }


def test_one_profile_for_all(listed: tuple[Any, ...]) -> None:
    selection = render.selected(settings(profiles=[]), listed, "zendnn")
    assert {p.profile for p in selection.promises} == {"zendnn"}
    assert "control-1" in {p.node for p in selection.promises}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"profiles": []}, "nothing says which node is for which profile"),
        ({"profiles": [{"node": "other", "profile": "cuda"}]}, "no node is left"),
        ({"kubernetes": {"images": IMAGES, "nodes": {"a": "cuda"}}}, "both name nodes"),
    ],
)
def test_without_a_promise_nothing_is_rendered(
    listed: tuple[Any, ...], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidError, match=words):
        render.selected(settings(**changes), listed, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"items": {}}',
        b'{"items": [{"metadata": {"name": "../../x"}}]}',
        b'{"items": [{"metadata": {"name": 1}}]}',
        b"[" * 100_000,
        b'{"items": [' + b"[]," * 400_000 + b"1]}",
        b"\xff",
    ],
)
def test_what_is_no_list_of_nodes_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidError, match=r"nodes\.json: not a list"):
        render.nodes(content, "nodes.json")
