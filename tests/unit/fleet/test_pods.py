"""The saved logs of pods, in which anything may stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from envbuilder.builds import conventions, isolation
from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.fleet import pods
from envbuilder.fleet.model import LONGEST_REASON, PROVEN, Entry, Summary
from envbuilder.payload.report import UNREPEATED
from envbuilder.payload.training.dataset import load
from envbuilder.verify.run import SUBSET, payload_arguments, pod_job
from tests.support.kubernetes import DATA, RUN, job_name, job_text, log_of, pod_name
from tests.support.shipped import shipped_profile


def lay(folder: Path, *nodes: str, run: str = RUN) -> None:
    for node in nodes:
        (folder / f"job-{node}.yaml").write_text(job_text(node, "cpu", run))
    (folder / "results").mkdir(exist_ok=True)


def shown(folder: Path) -> Summary:
    data = load(resources.mnist_subset_dir(), SUBSET)
    return pods.judge_run(folder, pods.read_jobs(folder), shipped_profile, data)


def entry(folder: Path, log: str) -> Entry:
    """The row of the node `n1` with this log."""
    lay(folder, "n1")
    (folder / f"results/{job_name('n1')}.json").write_text(log)
    (each,) = shown(folder).entries
    assert len(each.detail) <= LONGEST_REASON
    return each


@pytest.mark.parametrize("status", ["unproven", "passed"])
def test_what_a_real_container_printed_is_unproven_and_not_attested(
    status: str, tmp_path: Path
) -> None:
    """Payloads said `passed` until steps were repeated outside; such an image may still run."""
    each = entry(tmp_path, log_of("n1", status=status, reasons=[UNREPEATED]))
    assert (each.outcome, each.detail) == ("unproven", UNREPEATED)
    assert (each.node, each.job, each.pod) == ("n1", job_name("n1"), pod_name("n1"))
    assert (each.profile, each.backend, each.accelerator) == ("cpu", "docker", "cpu")
    assert (each.framework, each.promised) == ("torch 2.13.0+cpu", "cpu")
    assert each.accuracy > 0.9
    summary = shown(tmp_path)
    assert (summary.attested, summary.passed, summary.quick) == (False, False, True)
    assert (summary.run, summary.scheduler) == (RUN, "kubernetes")
    assert summary.started == "20261123T091500Z"


OTHERS_POD = f"{RUN}/other/{pod_name('other')}"
ERROR = json.dumps({"event": "error", "message": "/data/train-images-idx3-ubyte: is missing"})


@pytest.mark.parametrize(
    ("log", "outcome", "words"),
    [
        ("", "lost", "the log holds no report; save it again when the pod has ended: it is empty"),
        ("Traceback\nKilled\n", "lost", "when the pod has ended: Killed"),
        (f"warning\n{ERROR}\nwarning\n", "broken", "/data/train-images-idx3-ubyte: is missing"),
        (log_of("n1", run_id=OTHERS_POD), "mixed-up", f"is of {OTHERS_POD}"),
        (log_of("n1", run_id=f"{RUN[:-1]}0/n1/pod"), "mixed-up", "0/n1/pod"),
        (log_of("n1", run_id=f"{RUN}/n1/"), "mixed-up", f"is of {RUN}/n1/"),
        (log_of("n1", run_id="\x1b[2J"), "mixed-up", "is of ?[2J"),
        (log_of("n1", status="failed", reasons=["gradients: 3.1 apart"]), "failed", "3.1 apart"),
    ],
)
def test_a_node_without_a_report_of_its_own_is_not_proven(
    log: str, outcome: str, words: str, tmp_path: Path
) -> None:
    each = entry(tmp_path, log)
    assert each.outcome == outcome
    assert words in each.detail


def test_a_node_that_trained_elsewhere_is_wrong(tmp_path: Path) -> None:
    log = json.loads(log_of("n1").splitlines()[-1])
    log["report"] |= {"status": "failed", "reasons": ["device used: no GPU"]}
    log["report"]["device"] |= {"requested": "cuda", "used": "cpu"}
    assert entry(tmp_path, json.dumps(log)).outcome == "wrong"


@pytest.mark.parametrize("status", ["unproven", "passed"])
@pytest.mark.parametrize(
    "changes",
    [
        {"status": "perfect"},
        {"schema": 1},
        {"checks": []},
        {"quick": False},
        {"origins": None},
        {"framework": {"name": "torch", "version": "2.12.0"}},
        {"speedup": 1e300},
        {"speedup": 10**30},
        {"baseline": {"seconds": 2000.0}},
    ],
    ids=str,
)
def test_a_report_that_contradicts_the_request_or_itself_has_failed(
    changes: dict[str, Any], status: str, tmp_path: Path
) -> None:
    each = entry(tmp_path, log_of("n1", **{"status": status, "reasons": ["x"], **changes}))
    assert each.outcome == "failed", each.detail
    assert each.outcome not in PROVEN


def test_a_log_that_is_missing_unreadable_or_too_large_is_one_nodes_loss(tmp_path: Path) -> None:
    lay(tmp_path, "n1", "n2", "n10", "n3")
    path = tmp_path / f"results/{job_name('n2')}.json"
    path.mkdir()
    with (tmp_path / f"results/{job_name('n3')}.json").open("wb") as stream:
        stream.truncate((16 << 20) + 1)
    (tmp_path / f"results/{job_name('n10')}.json").write_text(log_of("n10"))
    rows = {each.node: (each.outcome, each.detail) for each in shown(tmp_path).entries}
    assert list(rows) == ["n1", "n2", "n3", "n10"]
    assert {node: outcome for node, (outcome, _) in rows.items()} == {
        **dict.fromkeys(("n1", "n2", "n3"), "lost"),
        "n10": "unproven",
    }
    assert f"there is no results/{job_name('n1')}.json: save its log" in rows["n1"][1]
    assert "cannot be read" in rows["n2"][1]
    assert "larger than 16 MiB" in rows["n3"][1]


def test_only_the_files_of_one_run_are_read(tmp_path: Path) -> None:
    assert not pods.has_jobs(tmp_path)
    with pytest.raises(InvalidError, match="it has none"):
        pods.read_jobs(tmp_path)
    lay(tmp_path, "n1", "n2")
    assert pods.has_jobs(tmp_path)
    jobs = pods.read_jobs(tmp_path)
    assert [(job.node, job.profile, job.subset, job.seconds) for job in jobs] == [
        (node, "cpu", True, 1800) for node in ("n1", "n2")
    ]
    lay(tmp_path, "n2", run=f"{RUN[:-1]}0")
    with pytest.raises(InvalidError, match=f"one run, it has {RUN[:-1]}0, {RUN}"):
        pods.read_jobs(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("envbuilder/run: ", "other: ", "envbuilder/run"),
        ("envbuilder/node: n1", "envbuilder/node: -n1", "$.node"),
        ("envbuilder/node: n1", "other: x", "envbuilder/node"),
        ("name: envbuilder-n1", "name: ../x", "name"),
    ],
)
def test_a_job_that_was_damaged_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    lay(tmp_path, "n1")
    path = tmp_path / "job-n1.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InvalidError) as caught:
        pods.read_jobs(tmp_path)
    assert str(path) in caught.value.message
    assert words in caught.value.message


def test_the_guides_job_starts_what_a_verification_of_its_profile_starts() -> None:
    profile = shipped_profile("cuda")
    (container,) = yaml.safe_load(job_text())["spec"]["template"]["spec"]["containers"]
    promise = isolation.container_start(conventions.variables(profile)).text()
    assert container["args"] == [
        *isolation.python(f"{conventions.PREFIX}/bin/python", isolation.CONTAINER_BYTECODE),
        conventions.PAYLOAD,
        "--promise",
        promise,
        *payload_arguments(pod_job(profile, "/data", small=True), {"data": "/data"}),
        "--run-id",
        f"{RUN}/$(ENVBUILDER_NODE)/$(ENVBUILDER_POD)",
    ]


def event(run_id: str = "run", **report: object) -> str:
    return json.dumps({"event": "report", "run_id": run_id, "report": report})


def test_a_real_log_has_its_report_between_other_lines() -> None:
    log = pods.parse_log((DATA / "verified.log").read_text())
    assert (log.run_id, log.report["status"]) == ("RUN_ID", "passed")


def test_the_last_report_counts() -> None:
    log = pods.parse_log(f"{event('first', a=1)}\n0 x\n{event('second', a=2)}\n1 x\n")
    assert log == pods.Log(report={"a": 2}, run_id="second")


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        '{"event": "report"',
        '{"event": "report", "report": []}',
        '{"event": "report", "report": {"a": 1, "a": 2}}',
        '{"event": "report", "report": {"a": NaN}}',
        '{"event": "phase", "name": "report"}',
        event(a=1)[:-3],
        f" {event(a=1)}",
        '{"event": "report", "report": ' + "[" * 100_000,
    ],
)
def test_what_is_no_report_is_none(text: str) -> None:
    assert not isinstance(pods.parse_log(text), pods.Log)


@given(st.text() | st.text().map(lambda text: '{"event": "report", ' + text))
def test_whatever_is_printed_is_read(text: str) -> None:
    assert not isinstance(pods.parse_log(text), pods.Log)
