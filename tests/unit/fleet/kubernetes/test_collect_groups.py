"""What becomes of each group of a recorded run, with a recorded client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envbuilder.fleet.kubernetes.collect_groups import CollectedGroup, collect_groups
from envbuilder.fleet.model import LONGEST_REASON
from tests.support.kubernetes import RUN, forged
from tests.support.kubernetes_groups import OUTCOMES, RecordedGroups, stated


def collected(*names: str, source: RecordedGroups | None = None) -> list[CollectedGroup]:
    done: list[int] = []
    source = source or RecordedGroups()
    result = collect_groups(RUN, [*map(stated, names)], source, lambda: done.append(1))
    assert len(done) == len(names)
    return result


def test_every_group_is_what_befell_it() -> None:
    outcomes = {each.group.nodes[0]: each.group.outcome for each in collected(*OUTCOMES)}
    assert outcomes == {f"{name}-1": outcome for name, outcome in OUTCOMES.items()}


def test_a_group_in_step_has_what_its_first_pod_measured() -> None:
    (each,) = collected("in-step")
    group = each.group
    assert (group.name, group.job) == (stated("in-step").members.name, "envbuilder-4f1a2b-in-step")
    assert (group.ranks, group.detail) == (2, "2 ranks in step")
    assert group.images_per_second == pytest.approx(1131.26, abs=0.01)
    assert group.efficiency == pytest.approx(1.049, abs=0.001)
    assert (group.profile, group.device) == ("cpu", "Intel(R) Xeon(R) Processor")
    assert each.content is not None
    sent = json.loads(each.content)
    assert (sent["backend"], sent["nodes"], sent["status"]) == ("docker", 2, "passed")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("apart", "together: weights: 3.1 apart"),
        ("broken", "exit code 1: cpu = _conversion_method_template"),
        ("mute", "its first pod passed, and has no report"),
        ("mixed", f"is of {RUN}/in-step-1/envbuilder-4f1a2b-in-step-0-x7k2p"),
        ("contrary", "its first pod ended with 5, and its report says passed"),
        ("elsewhere", "its devices are those of elsewhere-1, in-step-2"),
        ("hung", "stopped after 1,801 s"),
        ("oom", "out of memory"),
        ("no-image", "pod 1: ImagePullBackOff: Back-off pulling image"),
        ("running", "still running"),
        ("vanished", "no such job"),
    ],
)
def test_the_reason_is_the_clusters_own(name: str, words: str) -> None:
    (each,) = collected(name)
    assert words in each.group.detail


class Forger(RecordedGroups):
    """A client whose pods send a report of their own making."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    def log(self, pod: str) -> str:
        return forged(super().log(pod), self._changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "perfect"},
        {"status": "failed"},
        {"status": ["passed"]},
        {"reasons": "none"},
        {"devices": []},
        {"ranks": 3},
        {"efficiency": None},
        {"gradients_equal": False},
        {"samples_per_second": -1},
        {"samples_per_second": 10**30},
        {"more": "x" * (5 << 20), "status": "x" * (1 << 20)},
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_forged_report_is_not_believed(changes: dict[str, Any]) -> None:
    (each,) = collected("in-step", source=Forger(**changes))
    assert each.group.outcome == "mixed-up"
    assert len(each.group.detail) <= LONGEST_REASON


def test_a_log_that_cannot_be_read_is_one_groups_loss() -> None:
    first, second = collected("in-step", "oom", source=RecordedGroups(without_logs=True))
    assert (first.group.outcome, second.group.outcome) == ("lost", "killed")
    assert "does not allow access" in first.group.detail


def test_nothing_is_asked_of_a_cluster_without_groups() -> None:
    class Silent(RecordedGroups):
        def jobs(self, run: str) -> Any:
            pytest.fail(f"the jobs of {run} were asked for")

    assert collected(source=Silent()) == []
