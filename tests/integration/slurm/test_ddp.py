"""Two nodes of a real Slurm train together, as a user without rights: CPU, gloo and srun.

Both nodes are this machine, so nothing is said here of a network between them. What nodes send of
themselves is recorded, except in `make soak`: to be proven takes them minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleet_site import Site
from tests.support.folders import read_json
from tests.support.left_over import wait_for
from tests.support.slurm import SlurmCluster
from tests.support.slurm_configuration import Node
from tests.support.slurm_jobs import until

pytestmark = pytest.mark.slow
NODES = tuple(Node(name, ("cpu",)) for name in ("n-one", "n-two", "n-canned1", "n-canned2"))
RULES = [{"feature": "cpu", "profile": "cpu"}]
SOONEST_SECONDS = 300
SOONEST_WITH_NODES_SECONDS = 900


@pytest.fixture(scope="module")
def site(node_python: str, torch_prefix: Path, test_cache: Path) -> Iterator[Site]:
    """The cluster's site; what nodes need has been downloaded for `torch_prefix`."""
    with SlurmCluster(NODES) as cluster:
        yield Site(cluster, node_python, test_cache)


def verify(site: Site, folder: str, nodes: str, *arguments: str) -> tuple[str, ...]:
    site.settings(profiles=RULES)
    command = ("verify", "--folder", folder, "--nodes", nodes)
    return (*command, "--quick", "--ddp", *arguments)


def summary(site: Site, folder: str) -> dict[str, Any]:
    content: dict[str, Any] = read_json(site.cluster.work / folder / "summary.json")
    return content


@pytest.mark.soak
@pytest.mark.parametrize(
    ("nodes", "seconds"),
    [
        (["n-canned1", "n-canned2"], SOONEST_SECONDS),
        (["n-one", "n-two"], SOONEST_WITH_NODES_SECONDS),
    ],
)
def test_two_nodes_that_were_proven_are_in_step(
    site: Site, nodes: list[str], seconds: float
) -> None:
    name = f"pair-{nodes[0]}"
    done = site.run(*verify(site, name, ",".join(nodes)), timeout=seconds)
    folder = site.cluster.work / name
    logs = [path.read_text()[-2000:] for path in sorted((folder / "logs").iterdir())]
    assert done.returncode == 0, (done.stdout, done.stderr, logs)
    (group,) = summary(site, name)["groups"]
    assert (group["nodes"], group["outcome"]) == (nodes, "verified")
    assert (group["profile"], group["ranks"]) == ("cpu", 2)
    assert group["efficiency"] > 0
    assert group["images_per_second"] > 0
    assert "1 of 1 group of nodes trained together." in done.stdout
    sent = read_json(folder / f"results/{group['name']}.{group['job']}.json")
    details = {check["name"]: check["detail"] for check in sent["scaling"]["checks"]}
    assert sent["scaling"]["backend"] == "gloo"
    assert sent["scaling"]["gradients_equal"]
    assert "bit for bit" in details["weights equal"]
    # The address is Slurm's: the nodes' names have none here.
    assert details["nodes"] == f"{', '.join(nodes)}: 1 each; they meet at 127.0.0.1 through lo"
    # The same again: nothing is submitted.
    assert site.run("verify", "--resume", name, "--ddp").returncode == 0
    assert summary(site, name)["groups"] == [group]


def training(site: Site) -> bool:
    """Whether a rank of each node trains with the other."""
    states = (site.cluster.work / "torn/meetings").glob("attempt-*/rank-*.state.json")
    return len([*states]) == 2


@pytest.mark.soak
def test_a_node_that_dies_in_the_middle_ends_the_training(site: Site) -> None:
    run = site.start(*verify(site, "torn", "n-canned*"))
    wait_for(lambda: run.poll() is not None or training(site), SOONEST_SECONDS)
    assert run.poll() is None, run.communicate()
    site.cluster.kill_node("n-canned2")
    _, err = run.communicate(timeout=SOONEST_SECONDS)
    assert run.returncode == 5, err
    (group,) = summary(site, "torn")["groups"]
    assert (group["outcome"], group["efficiency"]) == ("killed", None)
    assert group["detail"].startswith("the node failed")
    assert {e["outcome"] for e in summary(site, "torn")["entries"]} == {"verified"}
    for node in ("n-canned1", "n-canned2"):
        until(lambda node=node: site.cluster.processes(node) == set(), f"{node} to be empty")
