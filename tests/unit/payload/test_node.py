"""One node's part: its stages, what it tells the others, and what node 0 makes of all."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.payload.arguments import parser
from envbuilder.payload.events import Events
from envbuilder.payload.parallel import launch, meeting, network, node
from envbuilder.payload.parallel.agreement import check_distinct
from envbuilder.payload.report import CheckError
from envbuilder.verify.report import model
from tests.support.sleeping import Time
from tests.unit.payload.test_parallel import ended, result

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.payload.parallel.agreement import Ended

NUMBERS = b"\0\0\x80?"
FACTS = {"machine": "boot-1", "address": "10.1.0.1", "devices": 1, "torch": "2", "payload": "p"}


class Other:
    """Node 1, as far as node 0 sees it: files in the shared folder."""

    def __init__(self, folder: Path) -> None:
        self.meeting = meeting.Meeting(folder, "7", 2, 1)
        self.meeting.join()

    def come(self, **changes: Any) -> None:
        self.meeting.leave(meeting.JOINED, {"name": "n1", **FACTS, **changes})

    def run_alone(self, rate: float | None = 64.0) -> None:
        status = "passed" if rate else "failed"
        check = {"name": "run", "status": status, "seconds": 1.0, "detail": "ECC"}
        device = {"index": 0, "name": "GPU", "samples_per_second": rate, "checks": [check]}
        self.meeting.leave(meeting.ALONE, {"devices": [device]})

    def train(self, number: int = 1, **changes: Any) -> None:
        leave_rank(self.meeting.folder, number, **changes)

    def end(self, **content: Any) -> None:
        self.meeting.leave(meeting.ENDED, {"reason": "ended", **content})

    def do_all(self) -> None:
        self.come()
        self.run_alone()
        self.train()
        self.end(returncode=0, output="")


def leave_rank(folder: Path, number: int, **changes: Any) -> None:
    content = result(number, device="CPUs 0,1", **changes)
    (folder / f"rank-{number}.result.json").write_text(json.dumps(content))
    for kind in ("gradients", "weights"):
        (folder / f"rank-{number}.{kind}").write_bytes(NUMBERS)


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Other:
    """Everything else that node 0 needs; its own ranks do well."""

    def group(options: Any, indices: Any, folder: Path, group: launch.Group) -> Ended:
        leave_rank(folder, group.first)
        return launch.collect(folder, [group.first], 0, "", options.limit)

    time = Time()
    monkeypatch.setattr(meeting, "time", time)
    monkeypatch.setattr(node, "time", time)
    monkeypatch.setattr(launch, "run_group", group)
    monkeypatch.setattr(launch, "run", lambda options, indices, index: ended(result(0)))
    monkeypatch.setattr(network, "resolve", lambda name: "10.1.0.1")
    monkeypatch.setattr(network, "local_address", lambda address: "10.1.0.1")
    monkeypatch.setattr(network, "variables", lambda address, outside: {"IFNAME": "eno2"})
    monkeypatch.setattr(meeting, "machine", lambda: "boot-0")
    monkeypatch.setattr(node, "_torch_version", lambda: "2")
    monkeypatch.setattr(node, "_digest", lambda program: "p")
    return Other(tmp_path)


def measured(folder: Path, number: int = 0, device: str = "cpu", attempt: str = "7") -> Any:
    command = ["parallel-node", "--device", device, "--data", "x", "--limit", "60"]
    command += ["--nodes", "2", "--node-rank", str(number), "--node-name", f"n{number}"]
    command += ["--master-address", "n0", "--master-port", "2000"]
    command += ["--folder", str(folder), "--attempt", attempt]
    return node.measure(parser().parse_args(command), Events(io.StringIO()))


def end_of(folder: Path, number: int) -> dict[str, Any]:
    return meeting.read(folder / "attempt-7" / f"node-{number}" / "ended.json")


def test_two_nodes_in_step(other: Other, tmp_path: Path) -> None:
    other.do_all()
    report = measured(tmp_path)
    assert (report["reasons"], report["warnings"]) == ([], [])
    scaling = model.check_scaling(report)
    assert [(d.index, d.node) for d in scaling.devices] == [(0, "n0"), (1, "n1")]
    assert (scaling.ranks, scaling.batch, scaling.gradients_equal) == (2, 128, True)
    # Alone 640 and 64 images a second, together 1,280: the median block has 10 steps in 1 s.
    assert scaling.efficiency == pytest.approx(1280 / 704)
    assert scaling.checks[0].detail == "n0, n1: 1 each; they meet at 10.1.0.1 through eno2"
    assert scaling.checks[3].detail == "rank 0: n0, CPUs 0,1; rank 1: n1, CPUs 0,1"
    assert end_of(tmp_path, 0) == {"reason": "ended", "returncode": 0, "output": ""}
    assert not list(other.meeting.folder.glob("*.weights"))


def test_nodes_that_are_one_machine_are_named(other: Other, tmp_path: Path) -> None:
    other.do_all()
    other.come(machine="boot-0")
    report = measured(tmp_path)
    assert report["status"] == "passed"
    assert "nodes that are one machine share CPUs 0,1" in report["warnings"][0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"devices": 2}, "the nodes differ in their number of devices: n0: 1, n1: 2"),
        ({"torch": "2.1"}, "the nodes differ in their version of torch: n0: 2, n1: 2.1"),
        ({"payload": "q"}, "the nodes differ in their envbuilder: n0: p, n1: q"),
        ({"name": "n0"}, "two nodes have the same name"),
        ({"address": "?"}, "ValueError: '?' does not appear to be an IPv4 or IPv6 address"),
    ],
)
def test_nodes_that_differ_do_not_train(
    other: Other, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    other.come(**changes)
    report = measured(tmp_path)
    assert report["reasons"] == [f"together: nodes: {reason}"]
    assert report["devices"] == []
    assert end_of(tmp_path, 0) == {"reason": f"together: nodes: {reason}"}


@pytest.mark.usefixtures("other")
def test_a_node_that_is_missing_is_named(tmp_path: Path) -> None:
    assert measured(tmp_path)["reasons"] == [
        "together: nodes: node 1 did not arrive within the limit"
    ]


def test_a_device_that_fails_on_another_node_is_named(other: Other, tmp_path: Path) -> None:
    other.come()
    other.run_alone(None)
    report = measured(tmp_path)
    assert report["reasons"] == ["device 1 on n1: run: ECC"]
    assert report["efficiency"] is report["samples_per_second"] is None
    assert "returncode" not in end_of(tmp_path, 0)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda other: (other.meeting.folder / "rank-1.weights").write_bytes(b"\0\0\0\0"),
            "weights equal: the weights of rank 1 on n1 differ from rank 0's by 1.0e+00",
        ),
        (
            lambda other: (other.meeting.folder / "rank-1.gradients").unlink(),
            "gradients equal: the gradients of rank 1 on n1 differ from rank 0's by inf",
        ),
    ],
)
def test_results_of_another_node_are_judged(
    other: Other, tmp_path: Path, spoil: Any, reason: str
) -> None:
    other.do_all()
    spoil(other)
    assert measured(tmp_path)["reasons"] == [f"together: {reason}"]


def test_a_node_that_is_gone_comes_first(other: Other, tmp_path: Path) -> None:
    other.come()
    other.run_alone()
    report = measured(tmp_path)
    (reason,) = report["reasons"]
    assert reason.startswith("together: ranks: node 1 (n1) is gone: it did not report its end")


def test_a_node_that_did_all_but_report_its_end_is_a_warning(other: Other, tmp_path: Path) -> None:
    other.come()
    other.run_alone()
    other.train()
    report = measured(tmp_path)
    assert report["status"] == "passed"
    assert report["warnings"] == [
        "together: ranks: all work was done, but the exit failed (hung)",
    ]


def test_a_failed_rank_of_another_node_is_named(other: Other, tmp_path: Path) -> None:
    other.come()
    other.run_alone()
    other.end(returncode=1, output="  rank      : 1 (local_rank: 0)\n  exitcode  : -11 (pid: 7)")
    (reason,) = measured(tmp_path)["reasons"]
    assert reason == "together: ranks: rank 1 on n1 was ended by signal 11 (last seen: start)"


@pytest.mark.usefixtures("other")
def test_another_node_reports_its_own_part(tmp_path: Path) -> None:
    first = meeting.Meeting(tmp_path, "8", 2, 0)
    first.join()
    first.leave(meeting.JOINED, {"name": "n0", **FACTS})
    first.leave(meeting.ALONE, {"devices": []})
    report = measured(tmp_path, 1, attempt="8")
    assert (report["status"], report["ranks"], report["efficiency"]) == ("passed", 0, None)
    assert [check["name"] for check in report["checks"]] == ["nodes", "each alone", "ranks"]
    left = meeting.read(tmp_path / "attempt-8" / "node-1" / "ended.json")
    assert left == {"reason": "ended", "returncode": 0, "output": ""}


@pytest.mark.usefixtures("other")
def test_a_node_that_was_stopped_for_another_is_not_called_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = meeting.Meeting(tmp_path, "8", 2, 0)
    first.join()
    first.leave(meeting.JOINED, {"name": "n0", **FACTS})
    first.leave(meeting.ALONE, {"devices": []})

    def stopped(options: Any, indices: Any, folder: Path, group: launch.Group) -> Ended:
        assert not group.given_up()
        first.leave(meeting.ENDED, {"reason": "?", "returncode": 1})
        assert group.given_up()
        return launch.collect(folder, [group.first], None, "", options.limit)

    monkeypatch.setattr(launch, "run_group", stopped)
    (reason,) = measured(tmp_path, 1, attempt="8")["reasons"]
    assert reason.startswith("together: ranks: stopped, because node 0 did not finish")


def test_the_last_words_are_those_of_the_first_that_failed() -> None:
    ends = [{"returncode": None, "output": "a"}, {"returncode": 1, "output": "b\n"}]
    ends += [{"returncode": 2, "output": "c"}, {}]
    assert node.joined_output(ends) == "a\n\nc\nb"


def test_others_learn_of_an_interruption(
    other: Other, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    other.come()
    monkeypatch.setattr(launch, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path)
    assert end_of(tmp_path, 0) == {"reason": "KeyboardInterrupt"}


@pytest.mark.usefixtures("other")
def test_an_accelerator_without_collectives_is_refused(tmp_path: Path) -> None:
    report = measured(tmp_path, device="mps")
    assert "mps has one device" in report["reasons"][0]
    assert end_of(tmp_path, 0) == {}


def test_each_node_counts_its_devices(
    other: Other, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "count", lambda accelerator, limit: 4)
    other.come(devices=2)
    (reason,) = measured(tmp_path, device="cuda")["reasons"]
    assert reason.endswith("number of devices: n0: 4, n1: 2")


def test_more_ranks_than_can_be_compared_are_refused(
    other: Other, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "count", lambda accelerator, limit: 33)
    other.come(devices=33)
    (reason,) = measured(tmp_path, device="cuda")["reasons"]
    assert reason == "together: nodes: 66 ranks: up to 64 can train together"


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([0, None], None), ([None, 1], 1), ([-9, 1], -9), ([0, 3], 3)],
)
def test_the_exit_code_of_all(codes: list[Any], code: Any) -> None:
    assert node.exit_code(codes) == code


def test_devices_of_all_nodes_are_numbered_as_their_ranks() -> None:
    devices = [[{"index": 0}, {"index": 1}], [{"index": 0}, {"index": 1}]]
    assert node.merged(devices, ["a", "b"]) == [
        {"index": 0, "node": "a"},
        {"index": 1, "node": "a"},
        {"index": 2, "node": "b"},
        {"index": 3, "node": "b"},
    ]


def test_one_gpu_of_one_machine_is_not_two() -> None:
    def on(number: int, machine: str, **changes: Any) -> dict[str, Any]:
        place = {"node": f"n{number}", "machine": machine, "pid": 20, "device": "UUID 1"}
        return result(number, **{**place, **changes})

    # Intel's UUIDs are made of the place in the machine.
    check_distinct([on(0, "a"), on(1, "b")])
    with pytest.raises(CheckError, match="on the same device"):
        check_distinct([on(0, "a"), on(1, "a")])
    with pytest.raises(CheckError, match="two ranks are one process"):
        check_distinct([on(0, "a"), on(0, "a", device="UUID 2")])
