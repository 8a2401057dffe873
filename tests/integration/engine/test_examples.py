"""The projects in `examples/` train in containers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Cli
from tests.support import examples

OTHERS = sorted({*examples.COMMANDS} - {examples.LOCKED})


@pytest.fixture
def options(
    cli: Cli, base_image: str, docker_client: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, ...]]:
    """What chooses the image; it is removed afterwards."""
    monkeypatch.setenv("ENVBUILDER_BASE_IMAGE", base_image)
    chosen = ("--profile", "cpu", "--backend", "docker")
    yield chosen
    done = cli("build", *chosen, "--json")
    result = json.loads(done.stdout)
    assert result["status"] == "reused"
    docker_client.images.remove(result["artifact"]["ref"], force=True)


@pytest.mark.soak
def test_a_project_with_committed_locks_trains_at_once(
    cli: Cli, options: tuple[str, ...], no_network: dict[str, str], tmp_path: Path
) -> None:
    examples.copy(examples.LOCKED, tmp_path)
    command = (*examples.ONE_THREAD, *examples.COMMANDS[examples.LOCKED])
    examples.require_learned(cli("run", *options, "--", *command, environment=no_network))


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHERS)
def test_the_others_train_once_they_are_locked(
    cli: Cli, options: tuple[str, ...], no_network: dict[str, str], tmp_path: Path, name: str
) -> None:
    examples.copy(name, tmp_path)
    done = cli("lock", "--profile", "cpu")
    assert done.returncode == 0, done.stderr
    command = (*examples.ONE_THREAD, *examples.COMMANDS[name])
    examples.require_learned(cli("run", *options, "--", *command, environment=no_network))
