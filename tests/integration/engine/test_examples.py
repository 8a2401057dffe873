"""The projects in `examples/` train in containers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Cli

OTHERS = sorted({*examples.COMMANDS} - {examples.LOCKED})


@pytest.fixture
def no_network(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A client whose `run` gives containers no network: not every machine can make a bridge."""
    folder = tmp_path_factory.mktemp("client")
    client = shlex.quote(shutil.which("docker") or "docker")
    program = folder / "docker"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = run ]; then shift; set -- run --network none "$@"; fi\n'
        f'exec {client} "$@"\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def options(cli: Cli, base_image: str, docker_client: Any) -> Iterator[tuple[str, ...]]:
    """What chooses the image; it is removed afterwards."""
    chosen = ("--profile", "cpu", "--backend", "docker", "--base-image", base_image)
    yield chosen
    done = cli("build", *chosen, "--json")
    result = json.loads(done.stdout)
    assert result["status"] == "reused"
    docker_client.images.remove(result["artifact"]["ref"], force=True)


@pytest.mark.slow
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
