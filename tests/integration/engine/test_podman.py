"""The docker backend with podman as the engine: its client alone, and its socket named.

podman is not needed to work on envbuilder: without a podman that runs containers, these tests skip.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds.records import CLAIMS
from envbuilder.containers.engine.podman import PodmanEngine
from tests.conftest import exited, succeeded
from tests.integration.conftest import Cli
from tests.integration.engine.conftest import PODMAN_BASE as BASE, run_podman as call
from tests.support import examples

NAMED = ("--profile", "tiny", "--backend", "docker")
TINY = (*NAMED, "--base-image")


@pytest.fixture
def socket(
    engine_of_podman: PodmanEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """An environment with podman's own socket as DOCKER_HOST, which no project may hold."""
    path = tmp_path_factory.mktemp("socket") / "podman.sock"
    url = f"unix://{path}"
    service = subprocess.Popen(["podman", "system", "service", "--time", "0", url])
    try:
        for _ in range(100):
            if path.exists():
                break
            time.sleep(0.1)
        yield {"DOCKER_HOST": url}
    finally:
        service.send_signal(signal.SIGINT)
        service.wait(30)


@pytest.fixture(params=["alone", pytest.param("socket", marks=pytest.mark.slow)])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    found: dict[str, str] = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def tag(engine_of_podman: PodmanEngine) -> Iterator[str]:
    """A name for an image, which is removed."""
    named = f"envbuilder-test/podman:{secrets.token_hex(4)}"
    yield named
    if engine_of_podman.image(named):
        engine_of_podman.remove(named)


def built(
    cli: Cli, environment: dict[str, str] | None, base: str, *options: str, profile: str = "tiny"
) -> dict[str, Any]:
    done = succeeded(
        cli(
            "build",
            "--profile",
            profile,
            "--backend",
            "docker",
            "--base-image",
            base,
            "--json",
            *options,
            environment=environment,
        )
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_an_image_is_built_reused_run_and_removed(
    cli: Cli,
    environment: dict[str, str],
    engine_of_podman: PodmanEngine,
    tiny: Path,
    tmp_path: Path,
    tag: str,
) -> None:
    result = built(cli, environment, BASE, "--rebuild", "--tag", tag)
    assert result["builder"] == "layers"
    found = engine_of_podman._inspect(tag)
    assert result["artifact"]["digest"] == f"sha256:{found['Id']}"
    assert found["Labels"]["io.envbuilder.fingerprint"] == result["fingerprint"]
    assert found["Config"]["User"] == "1000:1000"
    # It is kept as it was made, not as an older kind of image: a manifest of OCI, and no other.
    assert found["ManifestType"] == "application/vnd.oci.image.manifest.v1+json"
    names = {result["artifact"]["ref"], "envbuilder/tiny:latest", tag}
    tags = {name.removeprefix("localhost/") for name in found["RepoTags"]}
    assert names < tags
    assert all(claim.startswith(CLAIMS) for claim in tags - names)

    again = built(cli, environment, BASE)
    assert again["status"] == "reused"
    assert again["artifact"] == result["artifact"]

    script = "import setuptools; open('made', 'w').write(setuptools.__version__); exit(9)"
    based = {**environment, "ENVBUILDER_BASE_IMAGE": BASE}
    exited(9, cli("run", *NAMED, "--", "python", "-c", script, environment=based))
    assert (tmp_path / "made").read_text() == "80.9.0"
    assert (tmp_path / "made").stat().st_uid == os.getuid()

    # There is no torch in it; that the payload says so is what is looked at here.
    verified = exited(5, cli("verify", *TINY, BASE, "--quick", "--json", environment=environment))
    assert "No module named 'torch'" in verified.stdout

    cleaned = succeeded(
        cli("clean", "--all", "--yes", "--profile", "tiny", environment=environment)
    )
    assert f"localhost/{tag}" in cleaned.stdout
    assert engine_of_podman.image(tag) is None
    assert engine_of_podman.image(BASE) is not None


@pytest.mark.soak
def test_buildah_builds_and_its_names_go_to_the_next_image(
    cli: Cli,
    alone: dict[str, str],
    engine_of_podman: PodmanEngine,
    tiny: Path,
    tag: str,
) -> None:
    asked = ("--builder", "buildkit", "--tag", tag)
    first = built(cli, alone, BASE, *asked, "--rebuild")
    assert first["builder"] == "buildah"
    found = engine_of_podman._inspect(tag)
    assert first["artifact"]["digest"] == f"sha256:{found['Id']}"
    again = built(cli, alone, BASE, *asked)
    assert again["status"] == "reused"
    assert again["artifact"] == first["artifact"]

    # podman looks for a short name among its own before it looks among Docker Hub's.
    second = built(cli, alone, BASE, "--tag", tag, "--rebuild")
    found = engine_of_podman._inspect(tag)
    assert second["artifact"]["digest"] == f"sha256:{found['Id']}"
    assert call("run", "--rm", tag, "id", "-u").stdout == "1000\n"
    cli("clean", "--all", "--yes", "--profile", "tiny", environment=alone)


@pytest.mark.slow
def test_it_is_the_same_image_in_podman_in_docker_and_in_an_archive(
    cli: Cli,
    alone: dict[str, str],
    base_image: str,
    engine_of_podman: PodmanEngine,
    tiny: Path,
    tmp_path: Path,
) -> None:
    """The digest is the configuration's: podman compresses the layers of its base anew."""
    digests = {
        built(cli, alone, BASE, "--rebuild")["artifact"]["digest"],
        built(cli, alone, BASE, "--output", "tiny.tar")["artifact"]["digest"],
        built(cli, None, base_image, "--builder", "layers")["artifact"]["digest"],
    }
    assert len(digests) == 1
    cli("clean", "--all", "--yes", "--profile", "tiny", environment=alone)

    succeeded(call("load", "--input", str(tmp_path / "tiny.tar")))
    name = "docker.io/envbuilder/tiny:latest"
    found = engine_of_podman._inspect(name)
    assert {f"sha256:{found['Id']}"} == digests
    assert call("run", "--rm", name, "id", "-u").stdout == "1000\n"
    call("rmi", "--force", found["Id"])


@pytest.mark.soak
@pytest.mark.torch
def test_cpu_trains_in_podman(
    cli: Cli, alone: dict[str, str], engine_of_podman: PodmanEngine, tmp_path: Path
) -> None:
    examples.copy(examples.LOCKED, tmp_path)
    based = {**alone, "ENVBUILDER_BASE_IMAGE": BASE}
    asked = ("--profile", "cpu", "--backend", "docker")
    command = (*examples.ONE_THREAD, *examples.COMMANDS[examples.LOCKED])
    examples.require_learned(cli("run", *asked, "--", *command, environment=based))
    digest = built(cli, alone, BASE, profile="cpu")["artifact"]["digest"]
    call("rmi", "--force", digest.removeprefix("sha256:"))


@pytest.mark.soak
@pytest.mark.parametrize("profile", ["cpu", "zendnn"])
def test_large_images_are_verified_and_those_that_docker_has(
    cli: Cli, alone: dict[str, str], base_image: str, engine_of_podman: PodmanEngine, profile: str
) -> None:
    """`zendnn` with its compiler: scripts run in the engine, at another time, on other mounts."""
    made = built(cli, alone, BASE, "--rebuild", profile=profile)
    quick = ("--quick", "--epochs", "1", "--base-image", BASE)
    succeeded(cli("verify", "--profile", profile, "--backend", "docker", *quick, environment=alone))
    there = built(cli, None, base_image, "--builder", "layers", "--rebuild", profile=profile)
    assert made["artifact"]["digest"] == there["artifact"]["digest"]
    call("rmi", "--force", made["artifact"]["digest"].removeprefix("sha256:"))


@pytest.mark.parametrize("options", [(), ("--builder", "buildkit")])
def test_a_base_image_that_cannot_be_had_is_named(
    options: tuple[str, ...], cli: Cli, alone: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    at_once = tmp_path / "containers.conf"  # podman would try it three more times
    at_once.write_text("[engine]\nretry = 0\n")
    alone["CONTAINERS_CONF_OVERRIDE"] = str(at_once)
    for ref in ("127.0.0.1:1/none:1", f"127.0.0.1:1/none@sha256:{'0' * 64}"):
        done = cli("build", *TINY, ref, *options, environment=alone)
        assert done.returncode == 1
        assert f"The base image {ref} is not in the engine" in done.stderr
        assert "ENVBUILDER_BASE_IMAGE=REF" in done.stderr


PRETENDED = (
    ('[ "$1" = --version ] && echo podman version 4.3.1 && exit', 4, "4.8 or newer is needed"),
    ('[ "$1" = pull ] && echo no space left >&2 && exit 125', 1, "podman pull: no space left"),
    ('[ "$1" = pull ] && kill -9 $$', 1, "podman pull: signal 9"),
    ('[ "$1" = pull ] && exit', 1, "podman tag: "),
    ('[ "$1" = tag ] && exit', 1, "loaded, but the engine has no such image"),
)


@pytest.mark.slow
def test_a_podman_that_does_not_do_its_work_is_told(
    cli: Cli, alone: dict[str, str], tiny: Path
) -> None:
    """After all of these failures the next build works."""
    cli("clean", "--all", "--yes", "--profile", "tiny", environment=alone)
    program = Path(alone["PATH"]) / "podman"
    real = program.resolve()
    program.unlink()
    for pretends, code, said in PRETENDED:
        program.write_text(f'#!/bin/sh\n{pretends}\nexec {real} "$@"\n')
        program.chmod(0o755)
        done = cli("build", *TINY, BASE, "--builder", "layers", environment=alone)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    program.unlink()
    program.symlink_to(real)
    assert built(cli, alone, BASE)["status"] == "built"
    cli("clean", "--all", "--yes", "--profile", "tiny", environment=alone)
