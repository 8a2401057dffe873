"""Which engine is used, and what an engine that cannot be used is called."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from docker.errors import DockerException
from requests import ReadTimeout

from envbuilder.containers.engine import connection, interface
from envbuilder.containers.engine.docker import DockerEngine
from envbuilder.containers.engine.podman import PodmanEngine
from envbuilder.core.errors import ToolError
from tests.unit.containers.engine.conftest import Programs


def podman_info(version: str, *, rootless: bool = False) -> str:
    host = {"security": {"rootless": rootless}}
    return msgspec.json.encode({"host": host, "version": {"Version": version}}).decode()


@pytest.fixture
def unconfigured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No engine is configured; return the path of Docker's socket, which is not there."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(interface, "_SOCKET", str(tmp_path / "docker.sock"))
    return tmp_path / "docker.sock"


@pytest.fixture
def answering(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[dict[str, Any] | Exception], list[Mock]]:
    """An engine at DOCKER_HOST that answers with this version; returns the clients made of it."""
    import docker as sdk

    def answer(version: dict[str, Any] | Exception) -> list[Mock]:
        clients: list[Mock] = []

        def client(**options: Any) -> Mock:
            clients.append(Mock())
            clients[-1].version.side_effect = [version]
            return clients[-1]

        (tmp_path / "docker.sock").touch()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        monkeypatch.setattr(sdk, "DockerClient", client)
        return clients

    return answer


PODMAN_ANSWERS = {"Version": "5.4.2", "Components": [{"Name": "Podman Engine"}]}


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ({"Version": "20.10.24"}, "Docker 20.10.24 is too old: 23 or newer"),
        ({"Version": "26.1.5"}, ""),
    ],
)
def test_an_old_engine_is_4(version: dict[str, Any], said: str, answering: Any) -> None:
    clients = answering(version)
    if said:
        with pytest.raises(ToolError, match=said):
            connection.connect()
        assert clients[0].close.call_count == 1
        return
    with connection.connect() as engine:
        assert isinstance(engine, DockerEngine)
        assert clients[0].close.call_count == 0
    assert clients[0].close.call_count == 1
    engine.close()
    assert clients[0].close.call_count == 1, "once is enough"


def test_an_engine_that_nobody_closes_leaves_no_client_open(answering: Any) -> None:
    """An environment has its engine until the command ends."""
    clients = answering({"Version": "26.1.5"})
    engine = connection.connect()
    assert clients[0].close.call_count == 0
    del engine
    gc.collect()
    assert clients[0].close.call_count == 1


@pytest.mark.parametrize("error", [DockerException("gone"), ReadTimeout("Read timed out.")])
def test_a_client_that_gets_no_answer_is_closed(error: Exception, answering: Any) -> None:
    clients = answering(error)
    with pytest.raises(ToolError, match="no container engine answers"):
        connection.connect()
    assert clients[0].close.call_count == 1


def test_podman_at_docker_host_is_spoken_to_by_its_own_client(
    programs: Programs, answering: Any
) -> None:
    clients = answering(PODMAN_ANSWERS)
    url = os.environ["DOCKER_HOST"]
    with pytest.raises(ToolError, match="the podman client is not on PATH"):
        connection.connect()
    programs["docker"] = ""
    programs["podman --version"] = "podman version 5.4.2\n"
    programs[f"podman --url {url} info"] = podman_info("5.4.2", rootless=True)
    engine = connection.connect()
    assert isinstance(engine, PodmanEngine)
    assert engine.rootless
    assert engine.build_command.argv[:4] == ("podman", "--url", url, "build")
    engine.require_builder()
    assert [c.close.call_count for c in clients] == [1, 1], "of the SDK none is left open"


@pytest.mark.parametrize(
    ("client", "server", "said"),
    [
        ("4.3.1", "5.4.2", "the podman client 4.3.1 is too old: 4.8 or newer"),
        ("5.4.2", "4.7.2", "podman 4.7.2 is too old: 4.8 or newer"),
        ("5.0.0-rc1", "5.0.0-dev", ""),
        ("dev", "", "the podman client dev is too old"),
    ],
)
def test_an_old_podman_is_4(
    client: str,
    server: str,
    said: str,
    programs: Programs,
    unconfigured: Path,
) -> None:
    """No docker, no socket, but podman: it is used, if it is new enough."""
    assert not interface.configured_docker()
    programs["podman --version"] = f"podman version {client}\n"
    programs["podman info"] = podman_info(server)
    assert interface.configured_docker()
    if said:
        with pytest.raises(ToolError, match=said):
            connection.connect()
    else:
        assert connection.connect().command == ("podman",)


def test_podman_is_used_where_dockers_socket_may_not_be_opened(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, unconfigured: Path
) -> None:
    """Both are installed, and this user is in no group `docker`."""
    socket = unconfigured
    socket.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(socket))
    programs["docker version"] = ""
    programs["podman --version"] = "podman version 5.4.2\n"
    programs["podman info"] = podman_info("5.4.2", rootless=True)
    assert connection.connect().rootless

    # One that somebody named is not passed over.
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    monkeypatch.setattr(
        "docker.DockerClient", Mock(side_effect=DockerException("Permission denied"))
    )
    with pytest.raises(ToolError, match="no container engine answers"):
        connection.connect()


def test_a_podman_that_does_not_answer_is_4(programs: Programs, answering: Any) -> None:
    answering(PODMAN_ANSWERS)
    programs["podman --version"] = "podman version 5.4.2\n"
    programs["podman --url"] = (125, "OS: linux/amd64\n", "Error: unable to connect\n")
    with pytest.raises(ToolError, match="does not answer: Error: unable to connect"):
        connection.connect()


def test_the_docker_context_is_the_clients_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere-to-be-found")
    with pytest.raises(ToolError, match="no docker context 'nowhere-to-be-found'"):
        connection.connect()
    monkeypatch.delenv("DOCKER_CONTEXT")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(interface, "_SOCKET", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "docker.sock").touch()
    url = f"unix://{tmp_path}/docker.sock"
    found = interface.Endpoint(url=url, flags=("--host", url), named=False)
    assert interface.find_docker() == found


def test_a_socket_that_is_not_there_is_4_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(ToolError, match="no such file or directory") as raised:
        connection.connect()
    assert raised.value.__cause__ is None, "the SDK was asked"
