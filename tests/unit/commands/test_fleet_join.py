"""`fleet join`: what is refused, what the payload is given, and what becomes of its report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds import mnist
from envbuilder.core import process
from envbuilder.host import probe
from envbuilder.profiles import choice
from tests.support.command_line import Command, Ended
from tests.support.folders import read_json
from tests.support.reports import report_line
from tests.unit.verify.test_parallel import FAILED, HERE, device, scaled

ACROSS = scaled(devices=[device(0, node="n0"), device(1, node="n1")], backend="gloo")
PART = {"status": "passed", "reasons": [], "devices": [device(0)], "ranks": 0}


class Payload:
    """Answers `parallel-node`."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.report: Any = ACROSS

    def run(self, argv: list[str], **options: Any) -> process.Completed:
        self.calls.append(argv[argv.index("--promise") + 2 :])
        options["on_stdout"](report_line(argv, self.report))
        code = 0 if self.report.get("status") == "passed" else 5
        return process.Completed(
            argv=tuple(argv), returncode=code, stdout="", stderr="torchrun said", seconds=1.0
        )


@pytest.fixture
def payload(monkeypatch: pytest.MonkeyPatch) -> Payload:
    pretended = Payload()
    monkeypatch.setattr(process, "run", pretended.run)
    monkeypatch.setattr(probe, "host", lambda *args, **options: HERE)
    return pretended


@pytest.fixture
def join(payload: Payload, envbuilder: Command) -> Command:
    """`join(*arguments, rank=0, profile="cpu", named=True, code=0)`."""

    def join(
        *arguments: str, rank: int = 0, profile: str = "cpu", named: bool = True, code: int = 0
    ) -> Ended:
        node_name = ["--node-name", f"n{rank}"] if named else []
        return envbuilder(
            "fleet",
            "join",
            "--profile",
            profile,
            "--folder",
            ".",
            "--attempt",
            "17",
            "--nodes",
            "2",
            "--node-rank",
            str(rank),
            *node_name,
            "--master-address",
            "10.1.0.1",
            "--master-port",
            "29500",
            "--limit",
            "300",
            "--output",
            "result.json",
            *arguments,
            code=code,
        )

    return join


def test_node_0_writes_the_result_of_all(payload: Payload, tmp_path: Path, join: Command) -> None:
    join("--python", sys.executable)
    (call,) = payload.calls
    run_id = call[call.index("--run-id") + 1]
    assert call == [
        "parallel-node",
        "--device",
        "cpu",
        "--data",
        str(mnist.subset().folder),
        "--nodes",
        "2",
        "--node-rank",
        "0",
        "--node-name",
        "n0",
        "--folder",
        str(tmp_path),
        "--attempt",
        "17",
        "--master-address",
        "10.1.0.1",
        "--master-port",
        "29500",
        "--limit",
        "300",
        "--run-id",
        run_id,
    ]
    result = read_json(tmp_path / "result.json")
    scaling = result.pop("scaling")
    assert result == {
        "schema": 1,
        "attempt": "17",
        "nodes": 2,
        "status": "passed",
        "reasons": [],
        "profile": "cpu",
        "backend": "external",
        "fingerprint": None,
    }
    assert (scaling["efficiency"], scaling["devices"][1]["node"]) == (0.9, "n1")


def test_other_nodes_write_nothing(payload: Payload, tmp_path: Path, join: Command) -> None:
    payload.report = PART
    join("--python", sys.executable, rank=1)
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("rank", "report", "reason"),
    [
        (0, FAILED, "was ended by signal 9"),
        (0, scaled(), "the report is about 1 nodes, not 2"),
        (0, PART, "passed with 0 ranks"),
        (0, {"status": "passed"}, "malformed"),
        (1, {**PART, "status": "failed", "reasons": ["no torch"]}, "no torch"),
        (1, {"status": "fine", "reasons": []}, "this node's part is malformed"),
        (1, {"status": "passed"}, "this node's part is malformed"),
    ],
)
def test_what_fails_says_why(
    payload: Payload,
    tmp_path: Path,
    join: Command,
    rank: int,
    report: Any,
    reason: str,
) -> None:
    payload.report = report
    shown = " ".join(join("--python", sys.executable, rank=rank, code=5).err.split())
    assert reason in shown
    assert "\x1b" not in shown
    if rank == 0:
        result = read_json(tmp_path / "result.json")
        assert result["status"] == "failed"
        assert any(reason in each for each in result["reasons"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--backend", "docker"), "training across nodes is not possible with the docker backend"),
        (("--nodes", "65"), "65 is not in the range 2<=x<=64"),
        (("--node-rank", "2"), "node 2 of 2: they are numbered from 0"),
        (("--attempt", "../7"), "is not 1 to 64 letters"),
        (("--node-name", "a/b"), "is not 1 to 64 letters"),
        (("--master-address", "-x"), "is not the name or the address of a host"),
    ],
)
def test_what_is_refused(
    payload: Payload, join: Command, arguments: tuple[str, ...], reason: str
) -> None:
    assert reason in " ".join(join(*arguments, code=2).err.split())
    assert payload.calls == []


@pytest.mark.parametrize(
    ("profile", "reason"),
    [("jax-cpu", "measures PyTorch alone"), ("mps", "mps has one device")],
)
def test_profiles_that_cannot_train_across_nodes(
    payload: Payload,
    join: Command,
    monkeypatch: pytest.MonkeyPatch,
    profile: str,
    reason: str,
) -> None:
    monkeypatch.setattr(choice, "require_host", lambda *args, **options: None)
    shown = join("--python", sys.executable, profile=profile, code=2).err
    assert reason in " ".join(shown.split())
    assert payload.calls == []


def test_slurm_names_the_node(
    payload: Payload, monkeypatch: pytest.MonkeyPatch, join: Command
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-7")
    payload.report = FAILED
    join("--master-address", "fd00::1", "--python", sys.executable, named=False, code=5)
    (call,) = payload.calls
    assert call[call.index("--node-name") + 1] == "gpu-7"
