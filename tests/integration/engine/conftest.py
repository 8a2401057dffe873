"""podman with a base image, and an environment in which it is the only engine."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.builds.backends import container
from envbuilder.containers.engine import podman
from envbuilder.core.errors import ToolError
from tests.conftest import missing, ran
from tests.integration.conftest import forget_claims

PODMAN_BASE = "localhost/envbuilder-test-podman-base:1"
OTHER_USER = 4321
"""As whom tests of root's run something."""


def run_podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    return ran(["podman", *arguments])


@pytest.fixture(scope="session")
def caches() -> Iterator[set[str]]:
    """Volumes that are removed in the end: a client's start costs more than the removal."""
    names: set[str] = set()
    yield names
    for client in filter(shutil.which, ("docker", "podman")):
        subprocess.run(
            [client, "volume", "rm", "--force", *names], capture_output=True, check=False
        )


@pytest.fixture(autouse=True)
def no_caches_left(tmp_path: Path, caches: set[str]) -> Iterator[None]:
    """Have the cache volumes of the projects removed that a test laid out."""
    yield
    projects = (tmp_path, *(path for path in tmp_path.iterdir() if path.is_dir()))
    pairs = itertools.product((os.getuid(), OTHER_USER), projects)
    caches.update(container.with_cache([], uid, project)[0].source for uid, project in pairs)


@pytest.fixture(scope="session")
def engine_of_podman(
    base_image: str,
    test_cache: Path,
    session_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> podman.PodmanEngine:
    """podman with the test's base image in it."""
    if shutil.which("podman") is None:
        missing("podman", "it is not installed")
    try:
        found = podman.connect(None)
    except ToolError as error:
        missing("podman", error.message)
    forget_claims(found, test_cache / "podman-claims", session_environment)
    if found.image(PODMAN_BASE) is None:
        archive = tmp_path_factory.mktemp("base") / "base.tar"
        subprocess.run(["docker", "save", "--output", str(archive), base_image], check=True)
        loaded = run_podman("load", "--input", str(archive))
        archive.unlink()
        if loaded.returncode != 0:
            missing("podman", f"it cannot load an image here: {loaded.stderr[-300:]}")
        run_podman("tag", loaded.stdout.strip().rpartition(" ")[2], PODMAN_BASE)
    tried = run_podman("run", "--rm", "--network", "none", PODMAN_BASE, "true")
    if tried.returncode != 0:
        missing("podman", f"it cannot run a container here: {tried.stderr[-300:]}")
    return found


@pytest.fixture(scope="session")
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
def alone(engine_of_podman: podman.PodmanEngine, tmp_path: Path) -> dict[str, str]:
    """An environment in which podman is all there is: its client, and no docker."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in sorted(Path(directory).glob("*")):
            if not program.name.startswith("docker") and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return {"PATH": str(folder), "DOCKER_HOST": "", "DOCKER_CONTEXT": ""}


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.slow)])
def each_engine(request: pytest.FixtureRequest) -> tuple[str, str, dict[str, str]]:
    """A client, the base image in its engine, and the variables with which that is used."""
    if request.param == "podman":
        return "podman", PODMAN_BASE, request.getfixturevalue("alone")
    request.getfixturevalue("docker_client")
    return "docker", request.getfixturevalue("base_image"), {}
