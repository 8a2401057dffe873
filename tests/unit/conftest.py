"""Unit tests run no commands, see no user's configuration and reach only loopback."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core import settings
from tests.support.command_line import envbuilder
from tests.support.registry_requests import send, server, source, there

# Fixtures: the command line, a registry, and what is pushed to it.
__all__ = ["envbuilder", "send", "server", "source", "there"]


MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 1 << 30


@pytest.fixture(scope="session")
def tmp_path_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pytest.TempPathFactory]:
    """Makes folders in memory, if there is room: 12,000 tests make and remove very many."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < LEAST_FREE_BYTES:
        yield tmp_path_factory
        return
    there = copy.copy(tmp_path_factory)
    there._basetemp = Path(tempfile.mkdtemp(prefix="envbuilder-tests-", dir=MEMORY))
    yield there
    if not request.session.testsfailed:
        shutil.rmtree(there._basetemp, ignore_errors=True)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders: to number the next, pytest's `mktemp` looks through all that there are."""
    above = tmp_path_factory.mktemp("homes")
    return (above / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def no_outside(monkeypatch: pytest.MonkeyPatch, homes: Iterator[Path]) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"a unit test tried to run {args[0] if args else kwargs}")

    real = socket.socket.connect

    def only_loopback(self: socket.socket, address: Any) -> Any:
        host = address[0] if isinstance(address, tuple) else address
        if self.family in {socket.AF_INET, socket.AF_INET6} and host not in {"127.0.0.1", "::1"}:
            raise AssertionError(f"a unit test tried to reach {host}")
        return real(self, address)

    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")  # never this machine's engine
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(socket.socket, "connect", only_loopback)
    home = next(homes)
    home.mkdir()
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"ENVBUILDER_{name}_DIR", str(home / name.lower()))
    for name in (settings.SHARED_STORE, "ENVBUILDER_BASE_IMAGE", "PIP_FIND_LINKS", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    # The machine's own folders of wheels are large, and would be read for each test.
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def found(tmp_path: Path) -> settings.Settings:
    """Settings whose folders are all below the test's own folder."""
    return settings.Settings(
        project=None,
        config_dir=tmp_path / "config",
        cache_dir=tmp_path / "cache",
        data_dir=tmp_path / "data",
        configuration=settings.Configuration(),
    )
