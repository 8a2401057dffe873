"""What Slurm's programs print."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core.errors import ToolError
from envbuilder.fleet.model import Resource
from envbuilder.fleet.slurm import parse


def test_a_node_is_read_with_features_resources_and_reason() -> None:
    (node,) = parse.nodes("gpu01|drained|h100,ib|gpu:h100:8(S:0-1),nvme:2|fan | slot 3\n")
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
    (node,) = parse.nodes(f"n1|{stated}|(null)|(null)|none\n")
    assert (node.usable, node.state, node.reason) == (usable, state, "")
    assert (node.features, node.resources) == ((), ())


def test_a_node_of_two_partitions_is_listed_once_and_in_natural_order() -> None:
    lines = [f"{name}|idle|(null)|(null)|none" for name in ("n10", "n2", "n10", "m1")]
    assert [n.name for n in parse.nodes("\n".join(lines))] == ["m1", "n2", "n10"]


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
    (node,) = parse.nodes(f"n1|idle|(null)|{text}|none\n")
    assert [(r.name, r.type, r.count) for r in node.resources] == resources


@pytest.mark.parametrize("line", ["n1|idle|x", "$(id)|idle|a|b|c", "a b|idle|a|b|c", "|||||"])
def test_a_line_that_is_none_of_sinfo_is_an_error(line: str) -> None:
    with pytest.raises(ToolError, match="sinfo printed"):
        parse.nodes(line)


def test_too_many_nodes_are_an_error() -> None:
    lines = (f"n{i}|idle|(null)|(null)|none" for i in range(parse.MOST_NODES + 1))
    with pytest.raises(ToolError, match="20,000"):
        parse.nodes("\n".join(lines))


@given(st.text())
def test_whatever_is_printed_is_read_or_an_error(text: str) -> None:
    for function in (parse.nodes, parse.jobs, parse.submitted):
        with contextlib.suppress(ToolError):
            function(text)


@pytest.mark.parametrize(
    ("line", "phase", "reason", "subject"),
    [
        ("7|PENDING|/s/n1.sbatch|ReqNodeNotAvail, | reserved", "waiting", "ReqNodeNotAvail", "n1"),
        ("7|RUNNING|/s/n1.sbatch|None", "running", "", "n1"),
        ("7|COMPLETING|/s/ddp-cpu-1f.sbatch|None", "ending", "", "ddp-cpu-1f"),
        ("7|NODE_FAIL|/s/n1.sbatch|NodeDown", "ended", "NodeDown", "n1"),
        ("7|SOMETHING_NEW|(null)|None", "running", "", "(null)"),
    ],
)
def test_states_of_jobs(line: str, phase: str, reason: str, subject: str) -> None:
    (state,) = parse.jobs(line).values()
    assert (state.job, state.phase, state.subject) == ("7", phase, subject)
    assert state.reason.startswith(reason)
    assert bool(reason) == bool(state.reason)


@pytest.mark.parametrize(("text", "job"), [("17\n", "17"), ("17;other\n", "17")])
def test_the_id_of_a_submitted_job(text: str, job: str) -> None:
    assert parse.submitted(text) == job


@pytest.mark.parametrize("text", ["", "Submitted batch job\n", "17 18", "../1"])
def test_no_id(text: str) -> None:
    with pytest.raises(ToolError, match="sbatch printed"):
        parse.submitted(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("JobId=1 ExitCode=3:0 DerivedExitCode=0:0", "3"),
        ("ExitCode=0:9", "signal 9"),
        ("JobId=1", ""),
    ],
)
def test_exit_codes(text: str, code: str) -> None:
    assert parse.exit_code(text) == code


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({"SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_GPUS": "0"}, 8),
        ({"SLURM_GPUS_ON_NODE": "0"}, 0),
        ({"SLURM_JOB_GPUS": "0,1,3"}, 3),
        ({"SLURM_JOB_GPUS": "0-3,6-7"}, 6),
        ({"SLURM_JOB_GPUS": "5"}, 1),
        ({"SLURM_GPUS_ON_NODE": "h100:8", "SLURM_JOB_GPUS": "0"}, 1),
        ({"SLURM_JOB_GPUS": "none"}, None),
        ({"SLURM_JOB_GPUS": ""}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        ({}, None),
    ],
)
def test_how_many_gpus_a_job_has(variables: dict[str, str], number: int | None) -> None:
    assert parse.given_gpus(variables) == number
