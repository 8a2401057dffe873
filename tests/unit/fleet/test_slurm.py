"""How Slurm's programs are called, what they print, and what their failures are."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import process
from envbuilder.core.errors import ToolError
from envbuilder.fleet import slurm
from envbuilder.fleet.model import Resource
from tests.support.fleets import RUN


class Programs:
    """Answers for each of Slurm's programs, and what they were asked."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], **options: Any) -> process.Completed:
        assert options["timeout"] == 60.0
        self.calls.append(tuple(argv))
        facts = {"returncode": 0, "stdout": "", "stderr": "", "seconds": 0.1}
        return process.Completed(argv=tuple(argv), **{**facts, **self.answers.get(argv[0], {})})


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    answering = Programs()
    monkeypatch.setattr(process, "run", answering.run)
    return answering


def test_a_refusal_is_in_slurms_words(programs: Programs) -> None:
    programs.answers["sbatch"] = {
        "returncode": 1,
        "stderr": "sbatch: error: Batch job submission failed: Invalid feature specification\n",
    }
    with pytest.raises(slurm.RefusedError) as caught:
        slurm.Slurm().submit(Path("x.sbatch"))
    assert str(caught.value) == "Batch job submission failed: Invalid feature specification"


def test_the_partition_is_asked_for_everywhere(programs: Programs) -> None:
    programs.answers["sbatch"] = {"stdout": "7\n"}
    cluster = slurm.Slurm("gpu")
    assert cluster.submit(Path("x.sbatch")) == "7"
    assert cluster.nodes() == ()
    for call in programs.calls:
        assert " --partition gpu " in f"{' '.join(call)} "


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"returncode": 1, "stderr": "Unable to contact slurm controller"}, "Unable to contact"),
        ({"returncode": -9, "timed_out": True}, "no answer within 60 s"),
        ({"returncode": 1}, "exit code 1"),
    ],
)
def test_a_scheduler_that_does_not_answer(
    answer: dict[str, Any], message: str, programs: Programs
) -> None:
    programs.answers["squeue"] = answer
    with pytest.raises(ToolError, match=message):
        slurm.Slurm().jobs(RUN)


def test_many_jobs_are_cancelled_in_several_calls(programs: Programs) -> None:
    slurm.Slurm().cancel([str(number) for number in range(1001)])
    assert [len(call) - 1 for call in programs.calls] == [500, 500, 1]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"returncode": 1, "stderr": "Invalid job id specified"}, ""),
        ({"stdout": "JobId=7 JobState=FAILED ExitCode=3:0 DerivedExitCode=0:0"}, "3"),
        ({"stdout": "ExitCode=0:9"}, "signal 9"),
        ({"stdout": "JobId=1"}, ""),
    ],
)
def test_exit_codes(answer: dict[str, Any], code: str, programs: Programs) -> None:
    programs.answers["scontrol"] = answer
    assert slurm.Slurm().exit_code("7") == code


def test_a_users_preferences_do_not_change_what_is_asked() -> None:
    mine = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SBATCH_ACCOUNT": "ml",
        "SBATCH_JOB_NAME": "mine",
        "SBATCH_EXPORT": "ALL",
        "SQUEUE_USERS": "somebody",
        "SINFO_PARTITION": "other",
    }
    assert set(slurm.environment(mine)) == {"PATH", "SLURM_CONF", "SBATCH_ACCOUNT"}


def test_a_node_is_read_with_features_resources_and_reason() -> None:
    (node,) = slurm.parse_nodes("gpu01|drained|h100,ib|gpu:h100:8(S:0-1),nvme:2|fan | slot 3\n")
    assert (node.name, node.state, node.usable) == ("gpu01", "drained", False)
    assert node.features == ("h100", "ib")
    assert node.resources == (
        Resource(name="gpu", type="h100", count=8),
        Resource(name="nvme", count=2),
    )
    assert node.reason == "fan | slot 3"


@pytest.mark.parametrize(
    ("stated", "usable", "state"),
    [
        ("idle", True, "idle"),
        ("idle~", True, "idle"),
        ("mixed-", True, "mixed"),
        ("allocated+", True, "allocated"),
        ("idle*", False, "idle, not responding"),
        ("down*", False, "down, not responding"),
        ("draining@", False, "draining"),
        ("maint", False, "maint"),
        ("what's new", False, "what's new"),
    ],
)
def test_marks_of_states(stated: str, usable: bool, state: str) -> None:
    (node,) = slurm.parse_nodes(f"n1|{stated}|(null)|(null)|none\n")
    assert (node.usable, node.state, node.reason) == (usable, state, "")
    assert (node.features, node.resources) == ((), ())


def test_a_node_of_two_partitions_is_listed_once_and_in_natural_order() -> None:
    lines = [f"{name}|idle|(null)|(null)|none" for name in ("n10", "n2", "n10", "m1")]
    assert [n.name for n in slurm.parse_nodes("\n".join(lines))] == ["m1", "n2", "n10"]


@pytest.mark.parametrize(
    ("text", "resources"),
    [
        ("gpu", [("gpu", "", 1)]),
        ("gpu:4", [("gpu", "", 4)]),
        ("gpu:a100", [("gpu", "a100", 1)]),
        ("gpu:tesla:2(IDX:0-1)", [("gpu", "tesla", 2)]),
        ("bandwidth:lustre:no_consume:4G", []),
        ("tmpdisk:100G", [("tmpdisk", "", 100)]),
    ],
)
def test_resources(text: str, resources: list[tuple[str, str, int]]) -> None:
    (node,) = slurm.parse_nodes(f"n1|idle|(null)|{text}|none\n")
    assert [(r.name, r.type, r.count) for r in node.resources] == resources


@pytest.mark.parametrize("line", ["n1|idle|x", "$(id)|idle|a|b|c", "a b|idle|a|b|c", "|||||"])
def test_a_line_that_is_none_of_sinfo_is_an_error(line: str) -> None:
    with pytest.raises(ToolError, match="the output of sinfo"):
        slurm.parse_nodes(line)


def test_too_many_nodes_are_an_error() -> None:
    lines = (f"n{i}|idle|(null)|(null)|none" for i in range(slurm.MOST_NODES + 1))
    with pytest.raises(ToolError, match="20,000"):
        slurm.parse_nodes("\n".join(lines))


@given(st.text())
def test_whatever_is_printed_is_read_or_an_error(text: str) -> None:
    for function in (slurm.parse_nodes, slurm.parse_jobs):
        with contextlib.suppress(ToolError):
            function(text)


@pytest.mark.parametrize(
    ("line", "phase", "reason", "node"),
    [
        ("7|PENDING|/s/n1.sbatch|ReqNodeNotAvail, | reserved", "waiting", "ReqNodeNotAvail", "n1"),
        ("7|RUNNING|/s/n1.sbatch|None", "running", "", "n1"),
        ("7|COMPLETING|/s/n1.sbatch|None", "ending", "", "n1"),
        ("7|NODE_FAIL|/s/n1.sbatch|NodeDown", "ended", "NodeDown", "n1"),
        ("7|SOMETHING_NEW|(null)|None", "running", "", "(null)"),
    ],
)
def test_states_of_jobs(line: str, phase: str, reason: str, node: str) -> None:
    (state,) = slurm.parse_jobs(line).values()
    assert (state.job, state.phase, state.node) == ("7", phase, node)
    assert state.reason.startswith(reason)
    assert bool(reason) == bool(state.reason)


@pytest.mark.parametrize(("text", "job"), [("17\n", "17"), ("17;other\n", "17")])
def test_the_id_of_a_submitted_job(text: str, job: str, programs: Programs) -> None:
    programs.answers["sbatch"] = {"stdout": text}
    assert slurm.Slurm().submit(Path("x.sbatch")) == job


@pytest.mark.parametrize("text", ["", "Submitted batch job\n", "17 18", "../1"])
def test_no_id(text: str, programs: Programs) -> None:
    programs.answers["sbatch"] = {"stdout": text}
    with pytest.raises(ToolError, match="the output of sbatch"):
        slurm.Slurm().submit(Path("x.sbatch"))


@pytest.mark.parametrize(("text", "number"), [("8", 8), ("0", 0), ("h100:8", None), ("", None)])
def test_how_many_gpus_a_job_has(text: str, number: int | None) -> None:
    assert slurm.given_gpus({"SLURM_GPUS_ON_NODE": text}) == number
    assert slurm.given_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}) is None
