"""Who gets which part of the machine, and what the ranks' files are judged to show."""

from __future__ import annotations

import argparse
import io
import json
import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.payload.arguments import parser
from envbuilder.payload.events import Events
from envbuilder.payload.machine import device
from envbuilder.payload.machine.accelerators import ACCELERATORS
from envbuilder.payload.parallel import agreement, launch, parallel, shares
from envbuilder.payload.parallel.agreement import Ended
from envbuilder.payload.report import PASSED, CheckError
from tests.support.repositories import lay
from tests.unit.payload.test_threads import siblings

# ---- which devices


@pytest.mark.parametrize(
    ("text", "numbers"), [("all", None), ("0", (0,)), ("1,0", (1, 0)), (" 0 , 3 ", (0, 3))]
)
def test_devices_are_all_or_numbers(text: str, numbers: Any) -> None:
    assert shares.parse(text) == numbers


@pytest.mark.parametrize("text", ["", "-1", "0,", "1-2", "two", "ALL", "0,0", "²", "9" * 9, "1.0"])
def test_anything_else_is_no_choice(text: str) -> None:
    with pytest.raises(shares.ChoiceError):
        shares.parse(text)
    with pytest.raises(SystemExit):
        parser().parse_args(["parallel", "--device", "cpu", "--data", "x", f"--devices={text}"])


@pytest.mark.parametrize(
    ("accelerator", "asked", "count", "chosen"),
    [
        ("cuda", None, 3, (0, 1, 2)),
        ("cuda", (2, 0), 3, (2, 0)),
        ("cpu", None, 0, (0, 1)),
        ("cpu", (3,), 0, (0, 1, 2)),
    ],
)
def test_the_devices_to_use(accelerator: str, asked: Any, count: int, chosen: Any) -> None:
    assert shares.choose(accelerator, asked, count) == chosen


@pytest.mark.parametrize(
    ("accelerator", "asked", "count", "said"),
    [
        ("mps", None, 1, "mps has one device"),
        ("cuda", None, 0, "torch sees no cuda device"),
        ("cuda", (0, 2), 2, "device 2 was requested, but torch sees 2"),
        ("cpu", (65,), 0, "1 to 64"),
        ("cpu", (0, 1), 0, "not chosen one by one"),
    ],
)
def test_what_cannot_be_had_is_said(accelerator: str, asked: Any, count: int, said: str) -> None:
    with pytest.raises(shares.ChoiceError, match=said):
        shares.choose(accelerator, asked, count)


def test_devices_are_counted_among_those_that_were_visible() -> None:
    assert shares.visible("cuda", [1], {}) == {"CUDA_VISIBLE_DEVICES": "1"}
    seen = {"CUDA_VISIBLE_DEVICES": "GPU-aa, 5,GPU-cc"}
    assert shares.visible("cuda", [2, 0], seen) == {"CUDA_VISIBLE_DEVICES": "GPU-cc,GPU-aa"}
    assert shares.visible("xpu", [1], {"ZE_AFFINITY_MASK": "0.0,0.1"}) == {
        "ZE_AFFINITY_MASK": "0.1"
    }
    assert shares.visible("cpu", [1], seen) == {}
    assert shares.visible("rocm", [1], {}) == {"HIP_VISIBLE_DEVICES": "1"}
    # HIP's driver reads CUDA's variable if its own is not set.
    both = {"HIP_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "4,5"}
    assert shares.visible("rocm", [1], both) == {"HIP_VISIBLE_DEVICES": "3"}
    del both["HIP_VISIBLE_DEVICES"]
    assert shares.visible("rocm", [1], both) == {"HIP_VISIBLE_DEVICES": "5"}


def test_ranks_get_an_environment_of_their_own() -> None:
    outside = {"RANK": "7", "MASTER_PORT": "1", "PET_NNODES": "3", "HOME": "/h"}
    outside |= {"OMP_NUM_THREADS": "7", "NCCL_SOCKET_IFNAME": "eth0"}
    inside = shares.environment_for("cuda", [1, 3], 2, outside, launch.NETWORK)
    assert inside == {
        "HOME": "/h",
        "OMP_NUM_THREADS": "3",
        "CUDA_VISIBLE_DEVICES": "1,3",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    many = shares.environment_for("cpu", [0], 64, {"OMP_NUM_THREADS": "8"}, {})
    assert many["OMP_NUM_THREADS"] == "1"
    assert int(shares.environment_for("cpu", [0], 1, {}, {})["OMP_NUM_THREADS"]) >= 1


@given(st.integers(1, 70), st.integers(1, 12))
def test_cores_go_whole_to_one_rank_each(cores: int, ranks: int) -> None:
    # SMT as Linux numbers it: siblings are far apart.
    parts = shares.split([(n, n + cores) for n in range(cores)], ranks)
    assert len(parts) == ranks
    if cores < ranks:
        assert {len(part) for part in parts} == {2 * cores}
        return
    given_out = [cpu for part in parts for cpu in part]
    assert sorted(given_out) == list(range(2 * cores))
    sizes = {len(part) // 2 for part in parts}
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        assert {cpu % cores for cpu in part} == set(part[::2])


def test_cores_are_read_from_the_topology(tmp_path: Path) -> None:
    lay(tmp_path, siblings("0,2", "1,3"))
    everything = frozenset(range(4))
    assert shares.fetch_cores(tmp_path, everything) == [(0, 2), (1, 3)]
    # One that may not be used, and one that nothing is known about.
    assert shares.fetch_cores(tmp_path, frozenset({1, 2, 3, 9})) == [(2,), (1, 3), (9,)]


# ---- what they left


def floats(*values: float) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def result(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "pid": 100 + number,
        "name": "A GPU",
        "device": f"UUID {number}",
        "threads": 1,
        "gradient": "conv1.weight" if number == 0 else "",
        "gradient_error": 1e-5 if number == 0 else 0.0,
        "gradient_tolerance": 5e-3,
        "block_steps": 10,
        "block_seconds": [1.0, 1.0, 4.0],
        "loss": 0.5,
        **changes,
    }


def ended(*results: dict[str, Any], **changes: Any) -> Ended:
    numbers = floats(1.0, 2.0)
    fields: dict[str, Any] = {
        "returncode": 0,
        "output": "",
        "results": list(results),
        "states": [{"pid": 1, "phase": "train: block 2 of 5"} for _ in results],
        "gradients": [numbers for _ in results],
        "weights": [numbers for _ in results],
        "limit": 60.0,
        **changes,
    }
    return Ended(**fields)


def summary(root: str, *others: str) -> str:
    """torchrun's last words, with each rank's number and exit code as "RANK EXITCODE"."""
    return "Failures:\n{}\nRoot Cause (first observed failure):\n{}".format(
        "\n".join(map(failure, others)) or "  <NO_OTHER_FAILURES>", failure(root)
    )


def failure(words: str) -> str:
    rank, code = words.split()
    return f"""[0]:
  time      : 2026-11-20_10:00:00
  host      : here
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 7)
  error_file: <N/A>"""


LOST = {"error": "lost rank 1", "time": 1}


def scaled(part: Ended | None = None) -> dict[str, Any]:
    """The report of two devices alone, then together."""
    scaling = parallel.Scaling("cuda", ranks=2)
    for index in range(2):
        parallel.run_alone(scaling, index, lambda: ended(result(0)))
    if part is not None:
        parallel.run_together(scaling, lambda: part)
    return scaling.report()


def test_ranks_of_rocm_meet_by_rccl() -> None:
    """torch calls it nccl."""
    assert ACCELERATORS["rocm"].collective == "nccl"
    assert parallel.Scaling("rocm", ranks=2).report()["backend"] == "rccl"
    assert parallel.Scaling("rocm", ranks=1).report()["backend"] is None


def test_two_good_ranks() -> None:
    slower = result(1, block_seconds=[1.25, 0.5, 0.5])
    report = scaled(ended(result(0), slower))
    assert (report["status"], report["reasons"], report["warnings"]) == (PASSED, [], [])
    assert [d["samples_per_second"] for d in report["devices"]] == [640.0, 640.0]
    # The median block of the slower rank in each: 1.25, 1.0 and 4.0 s.
    assert report["samples_per_second"] == 2 * 64 * 10 / 1.25
    assert report["efficiency"] == pytest.approx(1024 / 1280)
    assert (report["backend"], report["batch"], report["gradients_equal"]) == ("nccl", 128, True)
    assert [d["name"] for d in report["devices"]] == ["A GPU", "A GPU"]


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (ended(result(0), {}, returncode=None), "hung: not finished after 60 s"),
        (ended(result(0), {}, returncode=None), "rank 1: train: block 2 of 5"),
        (
            ended({"error": "lost", "time": 2}, {"error": "bad", "time": 1}, returncode=1),
            "rank 1: bad; rank 0: lost",
        ),
        (
            # Within the second by which torchrun tells which was first.
            ended(LOST, {}, returncode=1, output=summary("0 1", "1 3")),
            "ranks: rank 1 ended with exit code 3 (last seen: train: block 2 of 5); rank 0: lost",
        ),
        (
            ended(LOST, {}, {}, returncode=1, output=summary("0 1", "1 -15", "2 -9")),
            "ranks: rank 2 was ended by signal 9 (last seen: train: block 2 of 5); rank 0: lost",
        ),
        (
            ended(LOST, {}, returncode=1, output=summary("0 1", "1 -15")),
            "together: ranks: rank 0: lost rank 1",
        ),
        (
            ended({}, {}, returncode=1, output="no such module: torch\n"),
            "exit code 1 before it was done: no such module: torch",
        ),
        # 0 says nothing where there is no result.
        (ended(result(0), {}), "exit code 0 before it was done"),
        (ended(result(0), result(1, loss=None)), "rank 1: the loss is not a finite number"),
        (ended(result(0), result(1, device="UUID 0")), "on the same device: UUID 0; UUID 0"),
        (ended(result(0, gradient_error=0.3), result(1)), "conv1.weight differs by 3.0e-01"),
        (
            ended(result(0), result(1), gradients=[floats(1, 2), floats(1, 2.1)]),
            "the gradients of rank 1 differ from rank 0's by 4.5e-02",
        ),
        (ended(result(0), result(1), weights=[floats(1, 2), floats(1)]), "weights of rank 1"),
    ],
)
def test_what_is_wrong_fails_and_says_why(spoilt: Ended, said: str) -> None:
    report = scaled(spoilt)
    assert report["status"] == "failed"
    assert any(said in reason for reason in report["reasons"]), report["reasons"]
    for reason in report["reasons"]:
        assert reason.startswith("together: ")


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (ended(result(0), result(1), returncode=-6), "the exit failed (exit code -6)"),
        (ended(result(0), result(1), returncode=None), "the exit failed (hung)"),
        (
            ended(result(0, device="CPUs 0"), result(1, device="CPUs 0")),
            "fewer cores than ranks: all share CPUs 0",
        ),
        (ended(result(0, device=""), result(1, device="")), "they may have shared some"),
    ],
)
def test_what_changes_no_number_is_a_warning(odd: Ended, said: str) -> None:
    report = scaled(odd)
    assert report["status"] == PASSED
    (warning,) = report["warnings"]
    assert said in warning


def test_rounding_of_another_order_of_sums_is_equal() -> None:
    assert agreement.difference(floats(1, 2), floats(1, 2)) == 0
    assert 0 < agreement.difference(floats(1, 2), floats(1, 2.0000005)) < agreement.SAME
    assert agreement.difference(floats(1, 2), floats(1, math.nan)) == math.inf
    assert agreement.difference(floats(0, 0), floats(0, 1)) == math.inf
    assert agreement.difference(b"123", b"12") == math.inf
    # The same NaN on both is equal; that no number is one is for the loss and the reference.
    status, detail = agreement.check_same("weights", [floats(1, 2), floats(1, 2.0000005)])
    assert (status, "within" in detail) == (PASSED, True)
    with pytest.raises(CheckError):
        agreement.check_same("weights", [floats(1), floats(1), floats(1.1)])


def test_a_device_that_fails_alone_has_no_speed() -> None:
    scaling = parallel.Scaling("cuda", ranks=1)
    parallel.run_alone(scaling, 3, lambda: ended({"error": "ECC", "time": 1}, returncode=1))
    report = scaling.report()
    assert report["reasons"] == ["device 3: run: rank 0: ECC"]
    assert report["devices"][0]["samples_per_second"] is None
    assert report["devices"][0]["name"] is None


# ---- the whole


def measured(monkeypatch: pytest.MonkeyPatch, *arguments: str, count: int = 2) -> Any:
    """The report, the parts that were started, and the phases that were told."""
    started: list[Any] = []

    def run(options: argparse.Namespace, indices: Any, index: Any) -> Ended:
        started.append((tuple(indices), index))
        if index == 9:
            raise FileNotFoundError("no interpreter")
        return ended(result(0)) if index is not None else ended(*map(result, range(len(indices))))

    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr(launch, "count", lambda accelerator, limit: count)
    options = parser().parse_args(["parallel", "--data", "x", *arguments])
    stream = io.StringIO()
    report = parallel.measure(options, Events(stream))
    phases = [json.loads(line)["name"] for line in stream.getvalue().splitlines()]
    return report, started, phases


def test_each_alone_then_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    report, started, phases = measured(monkeypatch, "--device", "cuda", count=3)
    everyone = (0, 1, 2)
    assert started == [(everyone, 0), (everyone, 1), (everyone, 2), (everyone, None)]
    assert phases == [
        "count devices",
        "device 0 alone",
        "device 1 alone",
        "device 2 alone",
        "3 ranks together",
    ]
    assert (report["status"], report["ranks"], report["batch"]) == (PASSED, 3, 192)


def test_a_start_that_is_impossible_is_a_failure_and_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, started, _ = measured(monkeypatch, "--device", "cuda", "--devices", "0,9,1", count=10)
    assert [index for _, index in started] == [0, 9, 1], "the others are tried; not all together"
    assert report["reasons"] == ["device 9: run: FileNotFoundError: no interpreter"]


def test_ranks_are_started_as_the_payload_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/payload.pyz", "parallel"])
    assert launch._program() == [sys.executable, "/opt/payload.pyz"]
    monkeypatch.setattr(sys, "argv", ["/src/envbuilder/payload/__main__.py", "parallel"])
    assert launch._program() == [sys.executable, "-m", "envbuilder.payload"]


def test_devices_are_not_counted_where_torch_could_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(accelerator: str) -> None:
        raise CheckError(f"there is no node for {accelerator}")

    monkeypatch.setattr(device, "require_nodes", refuse)
    with pytest.raises(CheckError, match="there is no node for rocm"):
        launch.count("rocm", 1.0)


def test_a_count_that_does_not_end_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **rest: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(device, "require_nodes", lambda accelerator: None)
    monkeypatch.setattr(launch.subprocess, "run", hang)
    with pytest.raises(CheckError, match="torch did not count the devices within 7 s"):
        launch.count("rocm", 7.0)
