"""`build --push`: images of real profiles in a real registry."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds.attestations import MEDIA_TYPES
from envbuilder.containers.engine import images as engines
from envbuilder.containers.engine.interface import Engine
from envbuilder.containers.oci import reference
from envbuilder.containers.registry.connection import Connection
from tests.conftest import exited
from tests.integration.conftest import Cli
from tests.support.registry_requests import attached
from tests.support.registry_server import PASSWORD, USER, Registry

pytestmark = [pytest.mark.engine, pytest.mark.network]


@pytest.fixture(scope="module")
def base(real_engine: Engine, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base image as a layout on disk: nothing below needs an engine."""
    described = real_engine.image(base_image)
    folder = tmp_path_factory.mktemp("base")
    return f"oci:{engines.export(real_engine, described, folder).folder}"


@pytest.fixture
def push(cli: Cli, tiny: Path, base: str, tmp_path: Path) -> Any:
    """`push(ref, *options)`: the profile `tiny`, as JSON, or the failed command."""
    environment = {
        "DOCKER_HOST": "unix:///nowhere.sock",
        "DOCKER_CONFIG": str(tmp_path / "docker"),
        # Records of earlier pushes are those of this test alone.
        "ENVBUILDER_DATA_DIR": str(tmp_path / "data"),
    }

    def run(ref: str, *options: str, failing: bool = False) -> Any:
        done = cli(
            "build",
            "--profile",
            "tiny",
            "--base-image",
            base,
            "--push",
            ref,
            "--json",
            *options,
            environment=environment,
        )
        if failing:
            return done
        assert done.returncode == 0, done.stderr
        return {**json.loads(done.stdout), "said": done.stderr}

    return run


def connect(ref: str) -> Connection:
    return Connection(reference.parse(ref))


def test_a_profile_is_pushed_with_its_documents(
    push: Any, registry: Registry, docker_client: Any
) -> None:
    ref = f"{registry.host}/envbuilder/tiny:1"
    built = push(ref)
    assert (built["status"], built["builder"]) == ("built", "layers")
    assert (built["artifact"]["kind"], built["artifact"]["ref"]) == ("registry", ref)
    image, _ = connect(ref).read_manifest("1")
    listed = attached(connect(ref), image.digest)
    assert sorted(d.artifact_type or "" for d in listed) == sorted(MEDIA_TYPES.values())
    try:
        docker_client.images.pull(ref)
        program = "import setuptools; print(setuptools.__version__)"
        said = docker_client.containers.run(
            ref, ["python", "-c", program], network_mode="none", remove=True
        )
        assert said.strip() == b"80.9.0"
    finally:
        subprocess.run(["docker", "image", "rm", ref], capture_output=True, check=False)


def test_what_was_pushed_is_known_again(push: Any, registry: Registry) -> None:
    ref = f"{registry.host}/envbuilder/tiny:1"
    built = push(ref)
    again = push(ref)
    assert again["status"] == "reused"
    assert again["artifact"] == built["artifact"]
    other = push(f"{registry.host}/another/name:2")
    assert other["artifact"]["digest"] == built["artifact"]["digest"]
    assert "in 0 blobs (0 were already there, 5 came from other repositories)" in other["said"]


def test_what_somebody_else_pushed_there_is_not_ours(push: Any, registry: Registry) -> None:
    ref = f"{registry.host}/envbuilder/tiny:1"
    built = push(ref)
    connection = connect(ref)
    _, data = connection.read_manifest("1")
    changed = json.loads(data) | {"annotations": {"by": "somebody else"}}
    connection.put_manifest("1", changed["mediaType"], json.dumps(changed).encode())
    again = push(ref)
    assert again["status"] == "built"
    assert connection.read_manifest("1")[1] == data
    assert again["artifact"] == built["artifact"]


def test_to_disk_and_to_a_registry(push: Any, registry: Registry, tmp_path: Path) -> None:
    ref = f"{registry.host}/envbuilder/tiny:1"
    place = tmp_path / "tiny.tar"
    assert push(ref, "--output", str(place))["artifact"]["kind"] == "archive"
    assert place.is_file()
    image, _ = connect(ref).read_manifest("1")
    assert len(attached(connect(ref), image.digest)) == 2
    assert push(ref, "--output", str(place))["status"] == "reused"
    place.unlink()
    assert push(ref, "--output", str(place))["status"] == "built"


@pytest.mark.slow
def test_failures_have_their_exit_codes(
    push: Any, registry: Registry, closed_registry: Registry, tmp_path: Path
) -> None:
    for ref in ("UPPER", "a@sha256:" + "0" * 64):
        assert push(ref, failing=True).returncode == 2
    assert push(f"{registry.host}/a:1", "--builder", "buildkit", failing=True).returncode == 2
    assert push(f"{registry.host}/a:1", "--backend", "venv", failing=True).returncode == 2
    closed = exited(1, push(f"{closed_registry.host}/a:1", failing=True))
    assert f"docker login {closed_registry.host}" in closed.stderr
    assert "assemble the image" not in closed.stderr  # it was asked before
    registry.stop()
    gone = exited(1, push(f"{registry.host}/a:1", failing=True))
    assert "does not answer (connection refused)" in gone.stderr
    assert "Traceback" not in gone.stderr + closed.stderr


def test_with_a_password(push: Any, closed_registry: Registry, tmp_path: Path) -> None:
    import base64

    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (tmp_path / "docker").mkdir()
    content = {"auths": {closed_registry.host: {"auth": auth}}}
    (tmp_path / "docker/config.json").write_text(json.dumps(content))
    built = push(f"{closed_registry.host}/envbuilder/tiny:1")
    assert PASSWORD not in json.dumps(built)
    assert auth not in json.dumps(built)
