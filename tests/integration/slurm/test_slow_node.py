"""A node that is slower than its equals, and one that works for others, on a real Slurm.

All nodes train with the real payload. The slow one gets half of the time of the processor and the
busy one shares it, so both take about twice as long; only why they do tells them apart. Their jobs
run one after the other, since all nodes are this machine, and each waits for a quiet moment. Where
other work disturbs too many of them nonetheless, nothing can be told of speed, and the run is
repeated.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuilder.fleet.judge import LEAST_EQUALS
from envbuilder.verify.report.regression import MAX_SLOWDOWN
from tests.conftest import missing
from tests.support.fleet_site import Site
from tests.support.quiet import wait_until_quiet
from tests.support.slurm import SlurmCluster
from tests.support.slurm_configuration import Node

pytestmark = [pytest.mark.soak, pytest.mark.quiet]
ALIKE = ("n-alike1", "n-alike2", "n-alike3")
LEAST_ALIKE = LEAST_EQUALS - 1
"""So many of them and the slow node are enough for a median; other work may disturb one."""
ATTEMPTS = 3
QUIET_SECONDS = 120
SOONEST_SECONDS = 600


@pytest.fixture(scope="module")
def site(node_python: str, torch_prefix: Path, mnist_dir: Path, test_cache: Path) -> Iterator[Site]:
    """The cluster's site; what nodes need has been downloaded for `torch_prefix`."""
    with SlurmCluster([Node(name, ("cpu",)) for name in (*ALIKE, "n-busy", "n-slow")]) as cluster:
        yield Site(cluster, node_python, test_cache)


def verified(site: Site, folder: str) -> subprocess.CompletedProcess[str]:
    """Verify all nodes with one command."""
    site.settings(
        profiles=[{"feature": "cpu", "profile": "cpu"}],
        # All jobs of a run have the same name.
        sbatch=["--dependency=singleton"],
    )
    return site.run(
        "verify",
        "--folder",
        folder,
        "--quick",
        timeout=SOONEST_SECONDS,
    )


def undisturbed(site: Site) -> tuple[Mapping[str, Any], subprocess.CompletedProcess[str]]:
    """Verify until other work disturbs few nodes but the busy one, and skip if it always does.

    Returns the rows by node, and the command.
    """
    seen = []
    for attempt in range(1, ATTEMPTS + 1):
        noise = wait_until_quiet(QUIET_SECONDS)
        if noise:
            seen.append(noise)
            break
        folder = f"speed-{attempt}"
        done = verified(site, folder)
        entries = site.entries(folder)
        print(done.stdout)
        disturbed = [n for n in (*ALIKE, "n-slow") if entries[n]["outcome"] == "busy"]
        if len(disturbed) <= len(ALIKE) - LEAST_ALIKE and "n-slow" not in disturbed:
            return entries, done
        seen.append(f"{', '.join(disturbed)}: {entries[disturbed[0]]['detail']}")
    return missing("quiet", "; ".join(seen))


def test_a_slow_node_is_not_a_busy_one(site: Site) -> None:
    entries, done = undisturbed(site)
    outcomes = {name: entry["outcome"] for name, entry in entries.items()}
    alike = [name for name in ALIKE if outcomes[name] != "busy"]
    expected = {**dict.fromkeys(ALIKE, "busy"), **dict.fromkeys(alike, "verified")}
    assert outcomes == {**expected, "n-busy": "busy", "n-slow": "slow"}
    assert done.returncode == 5, done.stderr
    # What makes them equals.
    assert len({(e["profile"], e["framework"], e["device"]) for e in entries.values()}) == 1
    for entry in entries.values():
        assert entry["accuracy"] > 0.8

    slow = entries["n-slow"]
    busy = entries["n-busy"]
    assert slow["share"] > MAX_SLOWDOWN
    assert slow["detail"].startswith(f"its epoch took {slow['share']:.2f} times as long as the")
    assert max(entries[name]["share"] for name in alike) <= MAX_SLOWDOWN
    assert busy["share"] is None
    assert busy["detail"].startswith("machine busy: ")
    rows = [row.split() for row in done.stdout.splitlines() if row]
    assert {row[0]: row[-1] for row in rows if row[0] in outcomes} == outcomes
