"""What becomes of each node of a recorded run, with a recorded client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envbuilder.fleet import result as results
from envbuilder.fleet.kubernetes import collect
from envbuilder.fleet.model import LONGEST_REASON
from tests.support.kubernetes import OUTCOMES, RUN, Recorded, forged, job_name, stated, work


def collected(*nodes: str, source: Recorded | None = None) -> list[collect.Collected]:
    return collect.collect(work(), [*map(stated, nodes)], source or Recorded(), lambda: None)


def test_every_node_is_what_befell_it() -> None:
    outcomes = {each.judged.entry.node: each.judged.entry.outcome for each in collected(*OUTCOMES)}
    assert outcomes == OUTCOMES


def test_the_order_is_that_of_the_jobs_and_each_is_counted() -> None:
    done: list[int] = []
    nodes = ("oom", "right", "evicted")
    result = collect.collect(work(), [*map(stated, nodes)], Recorded(), lambda: done.append(1))
    assert [each.judged.entry.node for each in result] == list(nodes)
    assert len(done) == len(nodes)


def test_a_report_becomes_a_result_that_can_be_read_again() -> None:
    (each,) = collected("right")
    assert each.content is not None
    result = results.parse(each.content, "here", run=RUN, job=job_name("right"), node="right")
    report = results.report_of(result)
    assert report is not None
    assert report.profile == "cpu"
    assert report.backend == "docker"
    assert report.artifact.digest == f"sha256:{'5' * 64}"
    assert report.speed == "not_judged"
    entry = each.judged.entry
    assert entry.accelerator == "cpu"
    assert entry.framework == "torch 2.13.0+cpu"
    assert entry.accuracy is not None
    assert entry.accuracy > 0.9


def test_a_report_that_took_longer_than_its_container_lived_is_not_believed() -> None:
    (each,) = collected("forged")
    assert "not to be trusted" in each.judged.entry.detail
    assert each.content is not None
    sent = json.loads(each.content)
    assert sent["exit_code"] == 5
    assert sent["report"]["status"] == "failed"


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("silent", "no report"),
        ("mixed", f"{RUN}/right/"),
        ("elsewhere", "node right, expected elsewhere"),
        ("failing", "gradients"),
        ("wrong-device", "cpu, not on cuda"),
        ("bad-data", "exit code 2: /data/train-images-idx3-ubyte: is missing"),
        ("oom", "out of memory"),
        ("sigkill", "signal 9"),
        ("evicted", "Evicted: The node was low on resource: memory"),
        ("preempted", "PreemptionByScheduler"),
        ("shutdown", "imminent node shutdown"),
        ("hung", "stopped after 1,801 s"),
        ("slow-pull", "did not start in time: ContainerCreating"),
        ("no-image", "ImagePullBackOff: Back-off pulling image"),
        ("no-start", "StartError: failed to create containerd task"),
        ("not-admitted", "UnexpectedAdmissionError"),
        ("full", "Unschedulable: 0/12 nodes are available: 1 Insufficient cpu"),
        ("creating", "ContainerCreating"),
        ("running", "still running"),
        ("unreachable", "being deleted"),
        ("unknown", "unresponsive"),
        ("queued", "suspended"),
        ("too-late", "no place for it in time"),
        ("no-pod", "kubectl describe job envbuilder-4f1a2b-no-pod"),
        ("no-quota", "refused by the policy"),
        ("vanished", "no such job"),
    ],
)
def test_the_reason_is_the_clusters_own(node: str, words: str) -> None:
    (each,) = collected(node)
    assert words in each.judged.entry.detail


class Forger(Recorded):
    """A client whose pod `right` sends a report of its own making."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    def log(self, pod: str) -> str:
        return forged(super().log(pod), self._changes)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"status": "perfect"}, "failed"),
        ({"status": "failed"}, "mixed-up"),
        ({"schema": 1}, "failed"),
        ({"checks": []}, "failed"),
        ({"quick": False}, "failed"),
        ({"origins": None}, "failed"),
        ({"framework": {"name": "torch", "version": "2.12.0"}}, "failed"),
        ({"speedup": 1e300}, "failed"),
        ({"speedup": 10**30}, "failed"),
        ({"more": "x" * (5 << 20)}, "mixed-up"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_forged_report_is_not_believed(changes: dict[str, Any], outcome: str) -> None:
    (each,) = collected("right", source=Forger(**changes))
    assert each.judged.entry.outcome == outcome, each.judged.entry.detail
    assert len(each.judged.entry.detail) <= LONGEST_REASON


def test_a_log_that_cannot_be_read_is_one_nodes_loss() -> None:
    first, second = collected("right", "evicted", source=Recorded(without_logs=True))
    assert first.judged.entry.outcome == "lost"
    assert "does not allow access" in first.judged.entry.detail
    assert second.judged.entry.outcome == "killed"
