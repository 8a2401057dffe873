"""No false alarm: honest verifications pass however busy the machine is."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.integration.conftest import Cli

SOME, MANY = (1, 2, 3), (1, 2, 3, 4, 4, 3, 2, 1)
"""How many verifications run at the same time, one group after the other: 6 and 20 in all. On two
cores they are each other's load, from none to twice what the machine can do."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("groups", [SOME, pytest.param(MANY, marks=pytest.mark.soak)], ids=sum)
def test_honest_runs_under_changing_load(
    groups: tuple[int, ...], cli: Cli, torch_python: Path
) -> None:
    def run(number: int) -> subprocess.CompletedProcess[str]:
        threads = {"OMP_NUM_THREADS": str(1 + number % 2), "OMP_WAIT_POLICY": "PASSIVE"}
        arguments = ("--python", str(torch_python), "--profile", "cpu", "--quick", "--epochs", "1")
        return cli("verify", *arguments, "--json", environment=threads)

    ended = []
    for count in groups:
        with ThreadPoolExecutor(count) as pool:
            ended += pool.map(run, range(count))
    alarms = [json.loads(done.stdout)["reasons"] for done in ended if done.returncode]
    assert len(ended) == sum(groups)
    assert alarms == []
