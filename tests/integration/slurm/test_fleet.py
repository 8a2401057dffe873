"""A fleet on a real Slurm: one job a node, of a user without rights, with no accounting.

What cannot be had here is what the nodes promise: they are all this machine, whose CPU is real and
whose GPUs are device nodes without a driver.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import exited
from tests.support.fleet_site import Site
from tests.support.slurm import SlurmCluster
from tests.support.slurm_configuration import Node
from tests.support.slurm_jobs import submit, until

pytestmark = pytest.mark.slow
GPUS = 2
RAN = ("n-cpu", "n-cuda")
NODES = (
    *(Node(name, ("cpu",)) for name in ("n-cpu", "n-drained", "n-exits", "n-silent")),
    *(Node(name, ("cpu",)) for name in ("n-liar", "n-damaged", "n-hangs", "n-dies")),
    *(Node(name, ("cpu",)) for name in ("n-canned1", "n-sleeps", "n-waits")),
    Node("n-cuda", ("cpu", "cuda"), f"gpu:cuda:{GPUS}"),
    Node("n-odd", ("odd",)),
)
RULES = [
    {"feature": "cuda", "profile": "cuda"},
    {"node": "n-odd", "profile": "cpu"},
    {"feature": "cpu", "profile": "cpu"},
]
SOONEST_SECONDS = 300


@pytest.fixture(scope="module")
def site(node_python: str, torch_prefix: Path, mnist_dir: Path, test_cache: Path) -> Iterator[Site]:
    """The cluster's site; what nodes need has been downloaded for `torch_prefix`."""
    with SlurmCluster(NODES) as cluster:
        yield Site(cluster, node_python, test_cache)


def jobs(site: Site) -> list[str]:
    """The jobs that Slurm has not ended yet."""
    return site.cluster.run(("squeue", "--noheader", "--format=%i")).stdout.split()


def is_running(site: Site, node: str) -> bool:
    """Whether a job runs on a node, and not just what supervises it."""
    return len(site.cluster.processes(node)) > 1


def test_each_node_is_what_it_was_promised_or_named(site: Site) -> None:
    """Real verifications beside jobs that end in all other ways."""
    site.cluster.drain("n-drained", "fan | slot 3")
    site.settings(profiles=RULES, sbatch=["--constraint=cpu"])
    run = ("verify", "--quick")
    written = ("--folder", "real", "--json")
    real = site.start(*run, *written, "--nodes", "n-cpu,n-cuda,n-drained,n-odd")
    faults = "n-exits,n-silent,n-liar,n-damaged,n-hangs,n-dies,n-canned1"
    others = site.start(*run, "--folder", "faults", "--nodes", faults, "--limit", "15s")
    until(lambda: is_running(site, "n-dies"), "the job to run")
    site.cluster.kill_node("n-dies")
    out, err = others.communicate(timeout=SOONEST_SECONDS)
    assert others.returncode == 5, err
    entries = site.entries("faults")
    assert {node: e["outcome"] for node, e in entries.items()} == {
        "n-canned1": "verified",
        "n-damaged": "mixed-up",
        "n-dies": "killed",
        "n-exits": "broken",
        "n-hangs": "timed-out",
        "n-liar": "mixed-up",
        "n-silent": "lost",
    }
    assert "exit code 3" in entries["n-exits"]["detail"]
    assert "the result belongs to job 1" in entries["n-liar"]["detail"]
    assert entries["n-dies"]["detail"].startswith("the node failed")
    assert "n-hangs: timed-out: stopped after" in out
    assert site.cluster.processes("n-hangs") == set()

    out, err = real.communicate(timeout=SOONEST_SECONDS)
    assert real.returncode == 5, err
    entries = site.entries("real")
    assert {e["node"] for e in json.loads(out)["summary"]["entries"]} == {*entries}
    right = entries["n-cpu"]
    # All nodes are one machine here, which other tests use, too.
    assert right["outcome"] in {"verified", "busy"}, right["detail"]
    assert right["profile"] == "cpu"
    assert right["device"].endswith("(cpu)")
    assert right["accuracy"] > 0.8
    assert {node: e["outcome"] for node, e in entries.items() if node != "n-cpu"} == {
        "n-cuda": "wrong",
        "n-drained": "drained",
        "n-odd": "refused",
    }
    assert "no NVIDIA GPU was found" in entries["n-cuda"]["detail"]
    # What Slurm says in the job that it gave.
    results = site.cluster.work / "real/results"
    given = {n: json.loads(next(results.glob(f"{n}.*")).read_text())["gpus"] for n in RAN}
    assert given["n-cuda"] == GPUS
    assert (given["n-cpu"] or 0, right["gpus"]) == (0, 0)
    assert entries["n-drained"]["detail"] == "drained: fan | slot 3"
    assert "not available" in entries["n-odd"]["detail"]


def test_nodes_of_other_partitions_are_not_chosen(site: Site) -> None:
    site.settings(profiles=RULES)
    options = ("--folder", "late", "--nodes", "n-waits", "--dry-run", "--partition", "nowhere")
    assert "no node matches n-waits" in exited(2, site.run("verify", *options)).stderr


def test_an_interrupted_run_cancels_its_own_jobs(site: Site) -> None:
    stranger = submit(site.cluster, "n-cpu", "sleep 300")
    site.settings(profiles=RULES)
    nodes = "n-canned1,n-sleeps"
    run = site.start("verify", "--folder", "halted", "--nodes", nodes)
    results = site.cluster.work / "halted/results"
    until(lambda: results.is_dir() and len([*results.iterdir()]) == 1, "a result")
    until(lambda: is_running(site, "n-sleeps"), "the job to run")
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == 130
    assert {n: e["outcome"] for n, e in site.entries("halted").items()} == {
        "n-canned1": "verified",
        "n-sleeps": "interrupted",
    }
    until(lambda: site.cluster.processes("n-sleeps") == set(), "the job to end")
    until(lambda: jobs(site) == [stranger], "Slurm to see that")
    site.cluster.run(("scancel", stranger))
