"""A Slurm cluster of this machine for the tests of this folder; each worker starts its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import missing
from tests.support import slurm
from tests.support.fleet_site import usable_python
from tests.support.slurm_configuration import Node

NODES = (
    Node("n-cuda", ("cuda",), "gpu:cuda:1"),
    Node("n-xpu", ("xpu",), "gpu:xe:2"),
    Node("n-zen", ("zen5", "cpu")),
    Node("n-plain"),
)


@pytest.fixture(scope="session")
def slurm_works() -> None:
    """Skip where no cluster can run."""
    why = slurm.unsupported()
    if why:
        missing("slurm", why)


@pytest.fixture(scope="session")
def node_python(slurm_works: None) -> str:
    """An interpreter with which the cluster's user can run envbuilder."""
    python = usable_python()
    if python is None:
        missing("slurm", "its user may not read this checkout or any fitting Python")
    return python


@pytest.fixture(scope="session")
def shared_cluster(slurm_works: None) -> Iterator[slurm.SlurmCluster]:
    with slurm.SlurmCluster(NODES) as running:
        yield running


@pytest.fixture
def cluster(shared_cluster: slurm.SlurmCluster) -> Iterator[slurm.SlurmCluster]:
    """The cluster with no job and all nodes idle; what a test leaves is cleared away."""
    shared_cluster.clear()
    yield shared_cluster
    shared_cluster.clear()
