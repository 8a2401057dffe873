"""Jobs of a test's Slurm cluster: submitted, read and waited for through Slurm's own commands."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from tests.conftest import succeeded
from tests.support.slurm import SlurmCluster

_FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})
_SECONDS = 90.0
"""How long a job may take to change its state: time limits are looked at every 30 s."""


def submit(cluster: SlurmCluster, node: str, script: str, *options: str) -> str:
    """Submit a shell script for one node as the user; return the job's id."""
    return succeeded(
        cluster.run(("sbatch", "--parsable", f"--nodelist={node}", *options, f"--wrap={script}"))
    ).stdout.strip()


def fields(cluster: SlurmCluster, job: str) -> dict[str, str]:
    """Return what `scontrol show job` says; values end where the next key begins."""
    done = succeeded(cluster.run(("scontrol", "--oneliner", "show", "job", job)))
    return dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|\s*$)", done.stdout))


def await_state(cluster: SlurmCluster, job: str, *states: str) -> dict[str, str]:
    """Wait until a job is in one of the states; return its fields."""

    def reached() -> bool:
        read.update(fields(cluster, job))
        state = read["JobState"]
        assert state in states or state not in _FINAL, f"expected {states}: {read}"
        return state in states

    read: dict[str, str] = {}
    until(reached, f"job {job} to be {states}")
    return read


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)
