"""No false alarm: honest verifications pass however busy the machine is, and none is a regression.

What a busy machine may change is that the speed was not judged.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import succeeded
from tests.integration.conftest import Cli
from tests.support.overlays import Verdict

GROUPS = (1, 2, 3, 4, 4, 3, 2, 1) * 5
"""How many verifications run at the same time, one group after the other: 100 in all. On two cores
they are each other's load, from none to twice what the machine can do."""

pytestmark = pytest.mark.slow


@dataclass
class Honest:
    """Quick verifications of an environment in which nothing is wrong."""

    cli: Cli
    python: Path

    def verify(self, threads: int, *options: str) -> Verdict:
        variables = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        arguments = ("--python", str(self.python), "--profile", "cpu", "--quick", "--epochs", "1")
        done = self.cli("verify", *arguments, *options, "--json", environment=variables)
        return Verdict(done.returncode, json.loads(done.stdout), done.stderr)

    def yardstick(self, threads: int, folder: Path) -> Path:
        """An earlier report whose speed counts, however busy the machine is now."""
        ended = self.verify(threads)
        assert (ended.code, ended.report["reasons"]) == (0, [])
        path = folder / f"{threads}.json"
        path.write_text(json.dumps({**ended.report, "speed": "judged", "speed_reason": None}))
        return path


@pytest.fixture
def honest(cli: Cli, torch_python: Path) -> Honest:
    return Honest(cli, torch_python)


@pytest.mark.soak
def test_honest_runs_under_changing_load(honest: Honest, tmp_path: Path) -> None:
    yardsticks = {threads: honest.yardstick(threads, tmp_path) for threads in (1, 2)}

    def run(number: int) -> Verdict:
        threads = 1 + number % 2
        return honest.verify(threads, "--against", str(yardsticks[threads]))

    ended: list[Verdict] = []
    for count in GROUPS:
        with ThreadPoolExecutor(count) as pool:
            ended += pool.map(run, range(count))
    assert len(ended) == sum(GROUPS)
    assert [one.report["reasons"] for one in ended if one.code] == []
    for one in ended:
        speed, reason = one.report["speed"], one.report["speed_reason"] or ""
        assert one.report["against"]["speed"] == speed
        assert (speed == "not_judged") == reason.startswith("machine busy: ")


@contextlib.contextmanager
def competing(jobs: int) -> Iterator[None]:
    """Other processes that compute without a pause, on the same CPUs."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(jobs)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_busy_machine_is_not_slow(honest: Honest, tmp_path: Path) -> None:
    with competing(2):
        ended = honest.verify(2, "--require-speed")
    report = ended.report
    assert (report["status"], report["speed"]) == ("passed", "not_judged")
    assert report["speed_reason"].startswith("machine busy: epoch 1: ")
    assert ended.code == 5, "its speed was required"
    assert "the speed was not judged: machine busy" in ended.stderr
    (epoch,) = report["training"]["epochs"]
    twice = {name: value / 2 for name, value in epoch.items() if name.endswith("seconds")}
    before = {**report["training"], "epochs": [{**epoch, **twice}]}
    earlier, now = tmp_path / "earlier.json", tmp_path / "now.json"
    now.write_text(json.dumps(report))
    earlier.write_text(
        json.dumps({**report, "training": before, "speed": "judged", "speed_reason": None})
    )
    done = succeeded(honest.cli("compare", str(now), "--against", str(earlier)))
    assert "not judged" in done.stdout
