"""`envbuilder jupyter` with the real JupyterLab, its kernels in containers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.integration.conftest import Cli
from tests.support import notebooks


@pytest.fixture
def options(
    cli: Cli,
    base_image: str,
    docker_client: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[str, ...]]:
    """What chooses the image of the test's project; it is removed afterwards."""
    if not docker_client.networks.list(names=["bridge"]):
        missing("engine", "a network in which containers have ports")
    notebooks.lay(tmp_path)
    monkeypatch.setenv("ENVBUILDER_BASE_IMAGE", base_image)
    chosen = ("--profile", "cpu", "--backend", "docker")
    yield chosen
    done = cli("build", *chosen, "--json")
    docker_client.images.remove(json.loads(done.stdout)["artifact"]["ref"], force=True)


def containers(client: Any) -> list[str]:
    """The containers of kernels, whichever project's they are."""
    listed = client.api.containers(all=True)
    return [each["Id"] for each in listed if "ipykernel_launcher" in each["Command"]]


def end(client: Any) -> bool:
    """Whether there are none, or soon are none."""
    for _ in range(30):
        if not containers(client):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.soak
def test_a_notebook_in_a_container(
    session_environment: dict[str, str],
    options: tuple[str, ...],
    docker_client: Any,
    tmp_path: Path,
) -> None:
    with notebooks.serving(tmp_path, session_environment, *options) as lab:
        results = lab.use(*notebooks.CELLS)
        (container,) = map(docker_client.containers.get, containers(docker_client))
        ports = container.attrs["HostConfig"]["PortBindings"].values()
        addresses = [binding["HostIp"] for bindings in ports for binding in bindings]
        assert addresses == ["127.0.0.1"] * 5
        details = json.dumps(container.attrs)
        (connection,) = (tmp_path / "scratch").glob("*/kernel-*.json")
        stated = json.loads(connection.read_text())
        assert stated["curve_secretkey"]
        assert not [n for n in ("key", "curve_secretkey") if stated[n] in details]
    version, facts = (cell["text"] for cell in results["cells"])
    assert version.endswith("'2.13.0+cpu'")
    _, folder, prefix = facts.split()
    assert (folder, prefix) == (str(tmp_path), "/opt/env")
    assert (results["interrupted"]["error"], results["after"]["text"]) == ("KeyboardInterrupt", "2")
    assert lab.server.returncode in notebooks.ENDED
    assert lab.seconds < notebooks.STOP_SECONDS
    assert end(docker_client)
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.soak
def test_a_killed_server_leaves_no_container(
    session_environment: dict[str, str],
    options: tuple[str, ...],
    docker_client: Any,
    tmp_path: Path,
) -> None:
    with notebooks.serving(tmp_path, session_environment, *options) as lab:
        lab.use("1")
        assert len(containers(docker_client)) == 1
        lab.server.kill()
        assert end(docker_client)
