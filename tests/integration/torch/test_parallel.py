"""Two ranks on the CPU, with gloo and torchrun as they are: what they show, and what stops them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

import envbuilder
from envbuilder.core import resources
from envbuilder.verify.report import model as report
from tests.conftest import ran, succeeded
from tests.integration.conftest import Cli
from tests.support.left_over import left_over, wait_for

SUBSET = resources.mnist_subset_dir()
ROOT = Path(envbuilder.__file__).parents[1]
FEW = ("--steps", "5")


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
needs_two = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="fewer than two CPUs, or no affinity",
)


class Run:
    """A `parallel` that has ended."""

    def __init__(self, code: int, out: str, err: str, mark: str) -> None:
        self.code = code
        self.err = err
        self.mark = mark
        self.report: dict[str, Any] = json.loads(out.splitlines()[-1])["report"]

    def check(self, name: str) -> dict[str, Any]:
        return next(check for check in self.report["checks"] if check["name"] == name)


class Starter:
    """Starts `parallel` on two ranks, from a script that first runs some code."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python = python
        self.folder = folder

    def command(self, code: str, *arguments: str) -> list[str]:
        script = self.folder / "script.py"
        last = "from envbuilder.payload.cli import main\nraise SystemExit(main())\n"
        script.write_text(f"import os\n{code}\n{last}")
        fixed = ["parallel", "--device", "cpu", "--devices", "2", "--data", str(SUBSET), *FEW]
        return [str(self.python), str(script), *fixed, *arguments]

    def environment(self, mark: str) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT), "EB_MARK": mark}

    def __call__(
        self, code: str = "", *arguments: str, cpus: set[int] | None = None, **variables: str
    ) -> Run:
        mark = uuid.uuid4().hex
        done = ran(
            self.command(code, *arguments),
            env={**self.environment(mark), **variables},
            preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
        )
        return Run(done.returncode, done.stdout, done.stderr, mark)


@pytest.fixture
def parallel(torch_python: Path, tmp_path: Path) -> Starter:
    return Starter(torch_python, tmp_path)


IN_RANK_1 = """
if os.environ.get("RANK") == "1":
    from envbuilder.payload.parallel import ranks
    from envbuilder.payload.training import eager
    real = eager.step
    calls = []
    def step(job, images, labels):
        calls.append(1)
        if len(calls) == 5:
            {fault}
        return real(job, images, labels)
    eager.step = step
"""


@pytest.mark.soak
@needs_proc
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("os._exit(3)", "rank 1 ended with exit code 3 (last seen: train: block"),
        ("os.kill(os.getpid(), 11)", "rank 1 was ended by signal 11"),
        ("raise RuntimeError('injected')", "rank 1: RuntimeError: injected"),
    ],
)
def test_a_rank_that_dies_fails_and_leaves_nobody_behind(
    parallel: Starter, fault: str, said: str
) -> None:
    run = parallel(IN_RANK_1.format(fault=fault))
    assert run.code == 5
    assert said in run.report["reasons"][0]
    assert run.report["reasons"][0].startswith("together: ranks: ")
    assert run.report["samples_per_second"] is run.report["efficiency"] is None
    for device in run.report["devices"]:
        assert device["samples_per_second"] > 0
    assert left_over(run.mark) == []


@needs_proc
@pytest.mark.soak
def test_a_rank_that_hangs_and_ignores_signals_is_ended(parallel: Starter) -> None:
    fault = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"
    run = parallel(IN_RANK_1.format(fault=fault), "--limit", "90")
    assert run.code == 5
    (reason,) = run.report["reasons"]
    assert "hung: not finished after 90 s" in reason
    assert "rank 1: train: block" in reason
    assert left_over(run.mark) == []


WRONG_BEFORE_THE_AVERAGE = """
if os.environ.get("RANK") == "1":
    import torch
    real = torch.nn.functional.nll_loss
    torch.nn.functional.nll_loss = lambda *arguments: 1.1 * real(*arguments)
"""
NOT_AVERAGED = """
from envbuilder.payload.parallel import ranks
ranks._wrapped = lambda torch, rank, accelerator, net: net
"""
OTHER_STEP = """
from envbuilder.payload.training import eager
eager.LEARNING_RATE = 1.01 if os.environ.get("RANK") == "1" else 1.0
"""
SAME_IMAGES = """
if os.environ.get("RANK") == "1":
    from envbuilder.payload.training import eager
    real = eager.batches
    eager.batches = lambda data, count: real(data, count)[:1] * count
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("code", "failing"),
    [
        (WRONG_BEFORE_THE_AVERAGE, {"gradients"}),
        (NOT_AVERAGED, {"gradients equal", "gradients", "weights equal"}),
        (OTHER_STEP, {"weights equal"}),
        (SAME_IMAGES, {"gradients"}),
    ],
)
def test_a_rank_that_computes_something_else_fails(
    parallel: Starter, code: str, failing: set[str]
) -> None:
    run = parallel(code)
    assert run.code == 5
    failed = {check["name"] for check in run.report["checks"] if check["status"] == "failed"}
    assert failed == failing
    assert run.report["gradients_equal"] is not ("gradients" in failing)


@needs_two
@pytest.mark.soak
def test_two_ranks_on_one_core_are_told_to_share_it(parallel: Starter) -> None:
    cpu = min(os.sched_getaffinity(0))
    run = parallel(cpus={cpu})
    assert run.code == 0
    (warning,) = run.report["warnings"]
    assert f"all share CPUs {cpu}" in warning


BROKEN_1 = """
import sys
from envbuilder.payload.machine import device
def fail(torch, accelerator):
    raise RuntimeError("uncorrectable error")
if sys.argv[-2:] == ["--index", "1"]:
    device.require_usable = fail
"""


@pytest.mark.soak
def test_a_device_that_fails_alone_is_named_and_the_rest_not_tried(parallel: Starter) -> None:
    run = parallel(BROKEN_1)
    assert run.code == 5
    assert run.report["reasons"] == ["device 1: run: rank 0: RuntimeError: uncorrectable error"]
    assert run.report["devices"][0]["samples_per_second"] > 0
    assert run.report["samples_per_second"] is None
    assert [check["name"] for check in run.report["checks"]] == ["devices"]


@needs_proc
@pytest.mark.soak
def test_ranks_end_when_the_payload_is_killed(parallel: Starter) -> None:
    # 9 cannot be caught: only the kernel can tell those that are left.
    mark = uuid.uuid4().hex
    fault = "import time; time.sleep(3600)"
    child = subprocess.Popen(
        parallel.command(IN_RANK_1.format(fault=fault)),
        env=parallel.environment(mark),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        # The payload, torchrun and two ranks.
        assert wait_for(lambda: len(left_over(mark)) == 4, 120)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert wait_for(lambda: left_over(mark) == [], 10)


@pytest.mark.slow
def test_a_cpu_build_has_no_gpus_to_train_on(parallel: Starter) -> None:
    run = parallel("", "--device", "cuda", "--devices", "all")
    assert run.code == 5
    assert run.report["reasons"] == ["together: devices: torch sees no cuda device"]


@pytest.mark.slow
@needs_two
def test_verify_reports_two_ranks(cli: Cli, torch_prefix: Path, tmp_path: Path) -> None:
    # What a launcher has set for ranks of its own, and the port that torch takes by default, are in
    # the way of nothing.
    foreign = {"RANK": "7", "WORLD_SIZE": "9", "MASTER_ADDR": "192.0.2.1", "PET_NNODES": "3"}
    environment = {**foreign, "MASTER_PORT": "29500", "OMP_NUM_THREADS": "2"}
    asked = ("--profile", "cpu", "--backend", "venv", "--devices", "all")
    quick = ("--quick", "--epochs", "1", "--output", "report.json")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else has taken it, which is as good
            taken.bind(("127.0.0.1", 29500))
            taken.listen()
        done = succeeded(cli("verify", *asked, *quick, environment=environment))
    assert "VERIFIED: cpu did the work" in done.stdout
    assert "All 2 together through gloo: " in " ".join(done.stdout.split())
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["schema"], found["profile"], found["backend"]) == (2, "cpu", "venv")
    assert found["artifact"]["ref"] == str(torch_prefix)
    assert (found["device"]["used"], found["dataset"]["subset"]) == ("cpu", True)
    assert "libtcmalloc" in found["threads"]["allocator"]
    assert found["checks"][-1]["name"] == "several devices"
    assert found["checks"][-1]["status"] == "passed"
    scaling = report.check_scaling(found["scaling"])
    assert (scaling.ranks, scaling.backend, scaling.batch) == (2, "gloo", 128)
    assert (scaling.gradients_equal, [d.index for d in scaling.devices]) == (True, [0, 1])
    details = {check.name: check.detail for check in scaling.checks}
    assert "bit for bit" in details["weights equal"]
    assert "rank 0: CPUs" in details["own devices"]
    assert "1 threads each" in details["ranks"]
    assert 0 < (scaling.efficiency or 0) < 3
