"""No input from outside crashes, hangs, takes much memory or writes outside of its folder.

The short form runs with a fixed seed. The long form, `make soak`, takes another seed each time and
prints it. A single input: python -m tests.fuzz.worker FORMAT SEED NUMBER NUMBER+1 FOLDER
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fuzz.formats import FORMATS

ROOT = Path(__file__).parents[2]
SHORT = 10
"""Inputs of each format in the short form."""
LONG = int(os.environ.get("ENVBUILDER_FUZZ_INPUTS", "50000"))
"""Inputs of all formats together in the long form."""
_STEP = 500
_DEATHS = 5


def problems(name: str, seed: int, first: int, end: int, folder: Path) -> list[str]:
    """Run some inputs; a process that dies is followed by one for the inputs after that."""
    folder.mkdir(parents=True)
    found: list[str] = []
    for _ in range(_DEATHS):
        numbers = map(str, (seed, first, end))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.fuzz.worker", name, *numbers, folder],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            problem = json.loads(line)
            found.append(f"{name} {seed} {problem['number']}: {problem['problem']}")
        if done.returncode == 0:
            break
        at = folder / "at"
        number = int(at.read_text()) if at.exists() else first
        found.append(f"{name} {seed} {number}: exit {done.returncode}: {done.stderr[-1500:]}")
        first = number + 1
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_few_hostile_inputs(name: str, tmp_path: Path) -> None:
    assert problems(name, 1, 0, SHORT, tmp_path / "fuzz") == []


@pytest.mark.soak
def test_many_hostile_inputs(tmp_path: Path) -> None:
    seed = int(os.environ.get("ENVBUILDER_FUZZ_SEED") or secrets.randbelow(10**9))
    print(f"seed {seed}: ENVBUILDER_FUZZ_SEED={seed} repeats these inputs")
    each = -(-LONG // len(FORMATS))
    jobs = [(name, first) for first in range(0, each, _STEP) for name in FORMATS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(
            lambda job: problems(
                job[0], seed, job[1], min(job[1] + _STEP, each), tmp_path / f"{job[0]} {job[1]}"
            ),
            jobs,
        )
        together = [problem for part in found for problem in part]
        print(*together, sep="\n")
        assert together == []
