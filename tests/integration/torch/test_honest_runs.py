"""No false alarm: honest verifications pass however busy the machine is, and none is a regression.

What a busy machine may change is that the speed was not judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import succeeded
from tests.integration.conftest import Cli
from tests.support.overlays import Verdict

QUICK = ("--profile", "cpu", "--quick", "--epochs", "1", "--json")

pytestmark = pytest.mark.slow


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
