"""Two buildx instances that are machines of their own, as far as a test can have any.

Each is a dockerd in a network namespace of its own. `build --profile A,B` builds each profile on
the instance that the configuration assigns to it, and both at the same time.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.engine.interface import LABEL
from tests.conftest import missing
from tests.integration.conftest import TINY, locked, start
from tests.support import dockerds
from tests.support.buildx_proxy import Meeting, Proxy
from tests.support.projects import lay_profile

pytestmark = pytest.mark.slow


class Machine:
    """An instance: its name, its dockerd, and what went through its endpoint."""

    def __init__(self, name: str, dockerd: dockerds.Dockerd, proxy: Proxy) -> None:
        self.name = name
        self.dockerd = dockerd
        self.proxy = proxy

    def built_steps(self) -> int:
        """Count the steps in the builder's cache that ran a command."""
        done = self.dockerd.docker("buildx", "du", "--verbose")
        assert done.returncode == 0, done.stderr
        return sum("mount / from exec" in line for line in done.stdout.splitlines())


@pytest.fixture
def meeting() -> Meeting:
    return Meeting(2)


@pytest.fixture
def machines(
    tmp_path_factory: pytest.TempPathFactory,
    docker_client: Any,
    meeting: Meeting,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Machine, Machine]]:
    """Two instances, in a buildx configuration of the test's own."""
    if why := dockerds.unsupported():
        missing("buildx", why)
    folder = tmp_path_factory.mktemp("builders")
    monkeypatch.setenv("BUILDX_CONFIG", str(folder / "buildx"))
    started: list[dockerds.Dockerd] = []
    proxies: list[Proxy] = []
    try:
        made = []
        for name in ("left", "right"):
            dockerd = dockerds.Dockerd(folder / name)
            started.append(dockerd)
            if why := dockerd.wait():
                missing("buildx", f"a second dockerd does not start here: {why}")
            proxy = Proxy(dockerd.socket, folder / f"{name}.sock", meeting)
            proxies.append(proxy)
            argv = ["docker", "buildx", "create", "--name", f"box-{name}", "--driver", "remote"]
            subprocess.run([*argv, f"unix://{proxy.endpoint}"], check=True, capture_output=True)
            made.append(Machine(f"box-{name}", dockerd, proxy))
        yield made[0], made[1]
    finally:
        for proxy in proxies:
            proxy.close()
        for dockerd in started:
            dockerd.stop()


@pytest.fixture
def profiles(docker_client: Any) -> Iterator[tuple[str, str]]:
    """Names of two profiles; their images are gone in the end."""
    prefix = f"box-{secrets.token_hex(4)}"
    yield f"{prefix}-a", f"{prefix}-b"
    for image in docker_client.api.images(filters={"label": [f"{LABEL}profile"]}):
        if image["Labels"][f"{LABEL}profile"].startswith(prefix):
            docker_client.images.remove(image["Id"], force=True, noprune=True)


@pytest.mark.soak
def test_each_profile_is_built_by_its_instance_and_both_at_the_same_time(
    tmp_path: Path,
    session_environment: dict[str, str],
    base_image: str,
    docker_client: Any,
    machines: tuple[Machine, Machine],
    meeting: Meeting,
    profiles: tuple[str, str],
) -> None:
    versions = ("80.9.0", "80.8.0")
    for name, version in zip(profiles, versions, strict=True):
        lay_profile(tmp_path, name, TINY.replace("80.9.0", version))
        locked(tmp_path, name, session_environment)
    left, right = machines
    (tmp_path / "envbuilder.yaml").write_text(
        f"builders:\n  linux/amd64: {left.name}\n  {profiles[1]}: {right.name}\n"
    )
    environment = {**session_environment, "ENVBUILDER_DATA_DIR": str(tmp_path / "data")}
    options = ("build", "--profile", ",".join(profiles), "--base-image", base_image, "--json")
    done = start(options, environment, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr

    assert meeting.met == 2, "each waited until the other was being built"
    assert (left.proxy.profiles, right.proxy.profiles) == ({profiles[0]}, {profiles[1]})
    assert left.built_steps() > 0
    assert right.built_steps() > 0
    builds = json.loads(done.stdout)["builds"]
    assert [(b["status"], b["builder"]) for b in builds] == [("built", "buildkit")] * 2
    for build, version in zip(builds, versions, strict=True):
        argv = ["python", "-c", "import setuptools; print(setuptools.__version__)"]
        ran = docker_client.containers.run(
            build["artifact"]["ref"], argv, remove=True, network_disabled=True
        )
        assert ran.decode().strip() == version

    again = start(options, environment, cwd=tmp_path, timeout=280)
    assert [b["status"] for b in json.loads(again.stdout)["builds"]] == ["reused"] * 2


def test_an_instance_that_does_not_exist_is_named_with_what_creates_it(
    tiny: Path, session_environment: dict[str, str], base_image: str, tmp_path: Path
) -> None:
    (tmp_path / "envbuilder.yaml").write_text("builders: {tiny: box-nowhere}\n")
    environment = {**session_environment, "ENVBUILDER_DATA_DIR": str(tmp_path / "data")}
    done = start(
        ("build", "--profile", "tiny", "--base-image", base_image), environment, cwd=tmp_path
    )
    assert done.returncode == 4, done.stderr
    assert "docker buildx create --name box-nowhere" in done.stderr
