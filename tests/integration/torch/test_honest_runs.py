"""No false alarm: honest verifications pass however busy the machine is, and none is a regression.

What a busy machine may change is that the speed was not judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
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

QUICK = ("--profile", "cpu", "--quick", "--epochs", "1", "--json")

pytestmark = pytest.mark.slow


@dataclass
class Honest:
    """Quick verifications of an environment in which nothing is wrong."""

    cli: Cli
    python: Path

    def verify(self, threads: int, *options: str) -> Verdict:
        variables = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        arguments = ("--python", str(self.python), *QUICK)
        done = self.cli("verify", *arguments, *options, environment=variables)
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
        speed = one.report["speed"]
        reason = one.report["speed_reason"] or ""
        assert one.report["against"]["speed"] == speed
        assert (speed == "not_judged") == reason.startswith("machine busy: ")


def verified_beside_others(python: Path, folder: Path, environment: dict[str, str]) -> Verdict:
    """Verify while other processes compute without a pause on the same CPUs, during the epoch."""
    command = [sys.executable, "-m", "envbuilder", "verify", "--python", str(python), *QUICK]
    others: list[subprocess.Popen[bytes]] = []
    said = ""
    with (
        (folder / "report.json").open("w") as out,
        subprocess.Popen(
            command,
            env={**os.environ, **environment, "OMP_NUM_THREADS": "2"},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        ) as verification,
    ):
        for line in verification.stderr:
            said += line
            if line.startswith("· epoch"):
                spin = [sys.executable, "-c", "while True: pass"]
                others = [subprocess.Popen(spin) for _ in range(2)]
            elif line.startswith("· "):
                for process in others:
                    process.kill()
    for process in others:
        process.wait()
    report = json.loads((folder / "report.json").read_text())
    return Verdict(verification.returncode, report, said)


@pytest.mark.soak
def test_a_busy_machine_is_not_slow(
    cli: Cli, torch_python: Path, session_environment: dict[str, str], tmp_path: Path
) -> None:
    ended = verified_beside_others(torch_python, tmp_path, session_environment)
    report = ended.report
    assert (report["status"], report["speed"]) == ("passed", "not_judged")
    assert report["speed_reason"].startswith("machine busy: epoch 1: ")
    assert ended.code == 0
    (epoch,) = report["training"]["epochs"]
    twice = {name: value / 2 for name, value in epoch.items() if name.endswith("seconds")}
    before = {**report["training"], "epochs": [{**epoch, **twice}]}
    faster = {**report, "training": before, "speed": "judged", "speed_reason": None}
    for name, content in {"now": report, "earlier": faster}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(content))
    assert "not judged" in succeeded(cli("compare", "now", "--against", "earlier")).stdout
