"""The cluster of the tests: it does what a real one does, and leaves nothing.

What Slurm's commands print here is what the product reads.
"""

from __future__ import annotations

import pytest

from tests.support.slurm import SlurmCluster
from tests.support.slurm_jobs import await_state, fields, submit, until
from tests.support.slurm_processes import alive

pytestmark = pytest.mark.slow
QUEUE = "--Format=JobID:|,State:|,Reason:|,exit_code:|,ReqNodes:|,NodeList:"
LONG = "sleep 300"
# One of its processes leaves the session.
STRAYING = f"setsid {LONG} & {LONG}"
JOB_PROCESSES = 4
"""Those of STRAYING: slurmstepd, the script, and two that sleep."""


def queue(cluster: SlurmCluster, *jobs: str) -> list[str]:
    argv = ("squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}", QUEUE)
    return sorted(cluster.run(argv).stdout.splitlines())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--constraint=mps", "Invalid feature specification"),
        ("--constraint=cuda&zen5", "Requested node configuration is not available"),
        ("--gres=gpu:rocm:1", "Requested node configuration is not available"),
        ("--partition=nope", "Invalid partition name specified"),
        ("--nodelist=n-none", "Invalid node name specified"),
    ],
)
def test_what_no_node_has_is_refused(cluster: SlurmCluster, option: str, message: str) -> None:
    done = cluster.run(("sbatch", "--parsable", option, "--wrap=true"))
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last == f"sbatch: error: Batch job submission failed: {message}"


def test_a_job_for_a_drained_node_waits(cluster: SlurmCluster) -> None:
    cluster.drain("n-zen", "bad disk, since | monday")
    job = submit(cluster, "n-zen", "true")
    until(lambda: fields(cluster, job)["Reason"] not in ("None", "Priority"), "the reason")
    assert fields(cluster, job)["Reason"] == "ReqNodeNotAvail,_UnavailableNodes:n-zen"
    assert queue(cluster, job) == [
        f"{job}|PENDING|ReqNodeNotAvail, UnavailableNodes:n-zen|0|n-zen|"
    ]
    cluster.undrain("n-zen")
    await_state(cluster, job, "COMPLETED")


def test_what_is_listed_of_nodes(cluster: SlurmCluster) -> None:
    cluster.drain("n-zen", "bad disk, since | monday")
    argv = ("sinfo", "--noheader", "--Node", "--format=%N|%T|%f|%G|%P|%E")
    assert cluster.run(argv).stdout.splitlines() == [
        "n-cuda|idle|cuda|gpu:cuda:1|all*|none",
        "n-plain|idle|(null)|(null)|all*|none",
        "n-xpu|idle|xpu|gpu:xe:2|all*|none",
        "n-zen|drained|zen5,cpu|(null)|all*|bad disk, since | monday",
    ]


def test_what_is_listed_of_jobs_that_ended(cluster: SlurmCluster) -> None:
    """No value is cut, and a separator of our own stands between them."""
    good = submit(cluster, "n-cuda", "true")
    failed = submit(cluster, "n-cuda", "exit 3")
    crashed = submit(cluster, "n-xpu", "kill -SEGV $$")
    # One process: of two, the script may learn that the other was ended, and exit with 143 itself.
    cancelled = submit(cluster, "n-zen", f"exec {LONG}")
    running = submit(cluster, "n-plain", LONG)
    # A job is RUNNING before anything of it runs, and has another exit code if cancelled then.
    until(lambda: len(cluster.processes("n-zen")) == 2, "slurmstepd and the script")
    assert cluster.run(("scancel", cancelled)).returncode == 0
    ends = {
        good: ("COMPLETED", "None", "0:0"),
        failed: ("FAILED", "NonZeroExitCode", "3:0"),
        crashed: ("FAILED", "JobLaunchFailure", "0:11"),
        cancelled: ("CANCELLED", "None", "0:15"),
        running: ("RUNNING", "None", "0:0"),
    }
    for job, expected in ends.items():
        read = await_state(cluster, job, expected[0])
        assert (read["JobState"], read["Reason"], read["ExitCode"]) == expected
    assert queue(cluster, *ends) == sorted(
        [
            f"{good}|COMPLETED|None|0|n-cuda|n-cuda",
            f"{failed}|FAILED|NonZeroExitCode|768|n-cuda|n-cuda",
            f"{crashed}|FAILED|JobLaunchFailure|11|n-xpu|n-xpu",
            f"{cancelled}|CANCELLED|None|15|n-zen|n-zen",
            f"{running}|RUNNING|None|0|n-plain|n-plain",
        ]
    )


@pytest.mark.parametrize("noticed", ["declared", pytest.param("by Slurm", marks=pytest.mark.soak)])
def test_a_node_that_dies_takes_its_jobs_with_it(cluster: SlurmCluster, noticed: str) -> None:
    lost = submit(cluster, "n-xpu", STRAYING, "--no-requeue")
    other = submit(cluster, "n-cuda", LONG)
    for job in (lost, other):
        await_state(cluster, job, "RUNNING")
    until(lambda: len(cluster.processes("n-xpu")) == JOB_PROCESSES, "both its processes")
    victims = cluster.processes("n-xpu")
    bystanders = cluster.processes("n-cuda")
    cluster.kill_node("n-xpu")
    assert not any(map(alive, victims))
    assert all(map(alive, bystanders))
    if noticed == "declared":
        cluster.declare_down("n-xpu")
    read = await_state(cluster, lost, "NODE_FAIL")
    assert (read["Reason"], read["ExitCode"]) == ("NodeDown", "0:0")
    assert cluster.state("n-xpu") == ("down" if noticed == "declared" else "down*")
    assert fields(cluster, other)["JobState"] == "RUNNING"
    cluster.revive_node("n-xpu")
    assert cluster.run(("srun", "--nodelist=n-xpu", "true")).returncode == 0
