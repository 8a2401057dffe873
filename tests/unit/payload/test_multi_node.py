"""One node's part: its stages, what it tells the others, and what node 0 makes of all."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.payload.arguments import parser
from envbuilder.payload.events import Events
from envbuilder.payload.parallel import launch, multi_node, shares
from envbuilder.payload.parallel.agreement import Ended, check_distinct
from envbuilder.payload.parallel.multi_node import Folder
from envbuilder.payload.report import CheckError
from envbuilder.verify.report import model
from tests.support.sleeping import Time
from tests.unit.payload.test_parallel import ended, result

NUMBERS = b"\0\0\x80?"
FACTS = {"machine": "boot-1", "address": "10.1.0.1", "count": 1, "torch": "2", "payload": "p"}
GLOO, NCCL = launch.INTERFACE_VARIABLES


class Other(Folder):
    """Another node, as far as this one sees it: files in the shared folder."""

    def __init__(self, folder: Path, number: int = 1) -> None:
        super().__init__(folder, "7", 2, number)
        self.join()

    def come(self, rate: float | None = 64.0, **changes: Any) -> None:
        status = "passed" if rate else "failed"
        check = {"name": "run", "status": status, "seconds": 1.0, "detail": "ECC"}
        device = {"index": 0, "name": "GPU", "samples_per_second": rate, "checks": [check]}
        self.leave(name=f"n{self.number}", devices=[device], **{**FACTS, **changes})

    def train(self) -> None:
        leave_rank(self.path, self.number)

    def end(self, **content: Any) -> None:
        self.leave(ended={"reason": "ended", **content})

    def do_all(self) -> None:
        self.come()
        self.train()
        self.end(returncode=0, output="")


def leave_rank(folder: Path, number: int) -> None:
    (folder / f"rank-{number}.result.json").write_text(
        json.dumps(result(number, device="CPUs 0,1"))
    )
    for kind in ("gradients", "weights"):
        (folder / f"rank-{number}.{kind}").write_bytes(NUMBERS)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time, and everything else that a node needs; its own ranks do well."""

    def run(options: Any, indices: Any, index: Any = None, group: Any = None) -> Ended:
        if group is None:
            return ended(result(0))
        leave_rank(group.folder, group.first)
        return launch.collect(group.folder, [group.first], 0, "", options.limit)

    passing = Time()
    monkeypatch.setattr(multi_node, "time", passing)
    monkeypatch.setattr(launch, "run", run)
    for name, value in {
        "resolve": "10.1.0.1",
        "local_address": "10.1.0.1",
        "interfaces": [("10.1.0.1", "eno2")],
        "machine": "boot-0",
        "_digest": "p",
    }.items():
        monkeypatch.setattr(multi_node, name, lambda *_, value=value: value)
    monkeypatch.setattr(multi_node.facts, "installed", lambda name: "2")
    for name in launch.INTERFACE_VARIABLES:
        monkeypatch.setenv(name, "")
    return passing


@pytest.fixture
def other(time: Time, tmp_path: Path) -> Other:
    return Other(tmp_path)


def measured(folder: Path, number: int = 0, device: str = "cpu") -> Any:
    command = ["parallel-node", "--device", device, "--data", "x", "--limit", "60"]
    command += ["--nodes", "2", "--node-rank", str(number), "--node-name", f"n{number}"]
    command += ["--master-address", "n0", "--master-port", "2000"]
    command += ["--folder", str(folder), "--attempt", "7"]
    return multi_node.measure(parser().parse_args(command), Events(io.StringIO()))


def end_of(folder: Path, number: int) -> Any:
    return launch.read(folder / "attempt-7" / f"node-{number}/node.json").get("ended")


def test_two_nodes_in_step(other: Other, tmp_path: Path) -> None:
    other.do_all()
    report = measured(tmp_path)
    assert (report["reasons"], report["warnings"]) == ([], [])
    scaling = model.check_scaling(report)
    assert [(d.index, d.node) for d in scaling.devices] == [(0, "n0"), (1, "n1")]
    assert (scaling.ranks, scaling.batch, scaling.gradients_equal) == (2, 128, True)
    # Alone 640 and 64 images a second, together 1,280: the median block has 10 steps in 1 s.
    assert scaling.efficiency == pytest.approx(1280 / 704)
    details = {check.name: check.detail for check in scaling.checks}
    assert details["nodes"] == "n0, n1: 1 each; they meet at 10.1.0.1 through eno2"
    assert details["own devices"] == "rank 0: n0, CPUs 0,1; rank 1: n1, CPUs 0,1"
    assert end_of(tmp_path, 0) == {"reason": "ended", "returncode": 0, "output": ""}
    assert not list(other.path.glob("*.weights"))


def test_nodes_that_are_one_machine_are_named(other: Other, tmp_path: Path) -> None:
    other.do_all()
    other.come(machine="boot-0")
    report = measured(tmp_path)
    assert report["status"] == "passed"
    assert "nodes that are one machine share CPUs 0,1" in report["warnings"][0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"count": 2}, "the nodes differ in their number of devices: n0: 1, n1: 2"),
        ({"torch": "2.1"}, "the nodes differ in their version of torch: n0: 2, n1: 2.1"),
        ({"name": "n0"}, "two nodes have the same name"),
        ({"address": "?"}, "ValueError: '?' does not appear to be an IPv4 or IPv6 address"),
    ],
)
def test_nodes_that_differ_do_not_train(
    other: Other, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    other.come()
    other.leave(**changes)
    report = measured(tmp_path)
    assert report["reasons"] == [f"together: nodes: {reason}"]
    assert report["ranks"] == 0
    assert end_of(tmp_path, 0) == {"reason": f"together: nodes: {reason}"}


@pytest.mark.usefixtures("time")
def test_a_node_that_is_missing_is_named(tmp_path: Path) -> None:
    assert measured(tmp_path)["reasons"] == [
        "together: nodes: node 1 did not arrive within the limit"
    ]


def test_a_node_that_gave_up_is_not_awaited(other: Other, tmp_path: Path, time: Time) -> None:
    time.events[5.0] = lambda: other.end(reason="KeyboardInterrupt")
    assert measured(tmp_path)["reasons"] == ["together: nodes: node 1: KeyboardInterrupt"]
    assert time.now == 5.0


def test_a_node_that_is_gone_comes_first(other: Other, tmp_path: Path, time: Time) -> None:
    other.come()
    (reason,) = measured(tmp_path)["reasons"]
    assert reason.startswith("together: ranks: node 1 (n1) is gone: it did not report its end")
    assert 90.0 <= time.now < 92.0


def test_a_failed_rank_of_another_node_is_named(other: Other, tmp_path: Path) -> None:
    other.come()
    other.end(returncode=1, output="  rank      : 1 (local_rank: 0)\n  exitcode  : -11 (pid: 7)")
    (reason,) = measured(tmp_path)["reasons"]
    assert reason == "together: ranks: rank 1 on n1 was ended by signal 11 (last seen: start)"


@pytest.mark.usefixtures("time")
def test_another_node_reports_its_own_part(tmp_path: Path) -> None:
    Other(tmp_path, 0).come()
    report = measured(tmp_path, 1)
    assert (report["status"], report["ranks"], report["efficiency"]) == ("passed", 0, None)
    assert [check["name"] for check in report["checks"]] == ["devices", "nodes", "ranks"]
    assert end_of(tmp_path, 1) == {"reason": "ended", "returncode": 0, "output": ""}


@pytest.mark.usefixtures("time")
def test_a_node_that_was_stopped_for_another_is_not_called_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Other(tmp_path, 0)
    run = launch.run
    first.come()

    def stopped(options: Any, indices: Any, index: Any = None, group: Any = None) -> Ended:
        if group is None:
            return run(options, indices, index)
        assert not group.given_up()
        first.end(returncode=None)
        assert group.given_up()
        return launch.collect(group.folder, [group.first], None, "", options.limit)

    monkeypatch.setattr(launch, "run", stopped)
    (reason,) = measured(tmp_path, 1)["reasons"]
    assert reason.startswith("together: ranks: stopped, because node 0 did not finish")


@pytest.mark.usefixtures("other")
def test_others_learn_of_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "run", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path)
    assert end_of(tmp_path, 0) == {"reason": "KeyboardInterrupt"}


@pytest.mark.usefixtures("time")
def test_an_attempt_is_made_once(tmp_path: Path) -> None:
    assert "mps has one device" in measured(tmp_path, device="mps")["reasons"][0]
    assert end_of(tmp_path, 0) is None
    Other(tmp_path, 0).come()
    (reason,) = measured(tmp_path)["reasons"]
    assert "node 0 has taken part in attempt-7 before" in reason
    assert end_of(tmp_path, 0) is None


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        (4, 2, "number of devices: n0: 4, n1: 2"),
        (33, 33, "66 ranks: up to 64 can train together"),
    ],
)
def test_each_node_counts_its_devices(
    other: Other,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: int,
    there: int,
    reason: str,
) -> None:
    monkeypatch.setattr(launch, "count", lambda accelerator, limit: here)
    other.come(count=there)
    assert measured(tmp_path, device="cuda")["reasons"][-1].endswith(reason)


def test_the_end_of_all() -> None:
    ends = [{"returncode": None, "output": "a"}, {"returncode": 1, "output": "b\n"}]
    ends += [{"returncode": 2, "output": "c"}, {}]
    # The last words are those of the first that failed.
    assert multi_node.joined_output(ends) == "a\n\nc\nb"
    for codes, code in [([0, 0], 0), ([0, None], None), ([None, 1], 1), ([-9, 1], -9)]:
        assert multi_node.exit_code(codes) == code


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


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a b", "-n", "a\n", "ä", "a" * 65])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError):
        shares.name(text)


# ---- where they meet, and through which interface


@pytest.mark.parametrize(
    ("addresses", "machines", "point"),
    [
        (["10.1.0.1", "10.1.0.1"], "ab", "10.1.0.1"),
        # Each may resolve node 0's name in another way; node 0 knows best, if not only itself.
        (["10.1.0.1", "10.2.0.1"], "ab", "10.1.0.1"),
        (["127.0.1.1", "10.1.0.1"], "ab", "10.1.0.1"),
        (["127.0.0.1", "127.0.0.1"], "aa", "127.0.0.1"),
    ],
)
def test_where_they_meet(addresses: list[str], machines: str, point: str) -> None:
    pairs = zip(addresses, machines, strict=True)
    assert multi_node.meeting_point([{"address": a, "machine": m} for a, m in pairs]) == point


def test_several_machines_do_not_meet_on_loopback() -> None:
    nodes = [{"address": "127.0.0.1", "machine": machine} for machine in "ab"]
    with pytest.raises(CheckError, match=r"127\.0\.0\.1 on every node"):
        multi_node.meeting_point(nodes)


@pytest.mark.parametrize(
    ("local", "outside", "expected"),
    [
        ("10.1.0.1", {}, {GLOO: "eno2", NCCL: "eno2"}),
        # What the user set stays.
        ("10.1.0.1", {NCCL: "=ib0"}, {GLOO: "eno2", NCCL: "=ib0"}),
        ("10.9.9.9", {GLOO: "a", NCCL: "b"}, {GLOO: "a", NCCL: "b"}),
    ],
)
def test_ranks_are_bound_to_the_interface_with_the_local_address(
    monkeypatch: pytest.MonkeyPatch, local: str, outside: dict[str, str], expected: dict[str, str]
) -> None:
    held = [("127.0.0.1", "lo"), ("10.1.0.1", "eno2"), ("fd00::1", "ib0")]
    monkeypatch.setattr(multi_node, "interfaces", lambda: held)
    assert multi_node.variables(local, outside) == expected
    with pytest.raises(CheckError, match=r"no network interface has the address 10\.9\.9\.9"):
        multi_node.variables("10.9.9.9", {NCCL: "ib0"})


def test_a_device_that_fails_on_another_node_is_named(other: Other, tmp_path: Path) -> None:
    other.come(None)
    report = measured(tmp_path)
    assert report["reasons"] == ["device 1 on n1: run: ECC"]
    assert report["efficiency"] is report["samples_per_second"] is None
    assert "returncode" not in end_of(tmp_path, 0)


def test_this_machine_has_loopback(tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    table.write_text("fd000000000000000000000000000001 03 40 00 80     ib0\n")
    interfaces = dict(multi_node.interfaces(table))
    if "127.0.0.1" not in interfaces:
        pytest.skip("not Linux")
    assert (interfaces["127.0.0.1"], interfaces["fd00::1"]) == ("lo", "ib0")
    assert multi_node.local_address("127.0.0.1") == "127.0.0.1"
    assert multi_node.resolve("127.0.0.1") == "127.0.0.1"
