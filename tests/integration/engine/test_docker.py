"""The docker backend on a real engine: build, reuse, verify, run, and what can go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.build.image import records as images
from envbuilder.payload.report import UNREPEATED

if TYPE_CHECKING:
    from envbuilder.containers.engine.interface import Engine
    from tests.integration.conftest import Cli

LOOK = (
    "id -u; echo $OMP_NUM_THREADS; ls -A /tmp;"
    " find /opt \\( -name '*.whl' -o -name '*.pyc' -o -name '.uv' -o -name uv_cache.json"
    " -o -name uv -type f \\)"
)
CPU = ("--profile", "cpu", "--backend", "docker", "--base-image")
BUILDKIT = ("--builder", "buildkit")


@pytest.fixture(scope="module")
def image(base_image: str, session_environment: dict[str, str]) -> dict[str, Any]:
    """The `cpu` image, as `build --json` describes it."""
    from tests.integration.conftest import start

    done = start(("build", *CPU, base_image, "--json"), session_environment)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_image_is_labelled_and_lean(
    docker_client: Any, image: dict[str, Any], session_environment: dict[str, str]
) -> None:
    found = docker_client.images.get(image["artifact"]["ref"])
    assert found.labels["io.envbuilder.fingerprint"] == image["fingerprint"]
    assert found.labels["io.envbuilder.profile"] == "cpu"
    assert len(found.labels["io.envbuilder.lock"]) == 64
    records = Path(session_environment["ENVBUILDER_DATA_DIR"], "records", image["fingerprint"])
    (record,) = images.read(records)
    assert image["artifact"]["digest"] == record.digest
    assert found.id in record.ids
    assert image["builder"] == "layers", "the default where it can make the image"
    inside = docker_client.containers.run(
        image["artifact"]["ref"], ["sh", "-c", LOOK], remove=True, network_mode="none"
    )
    user, threads, *leftovers = inside.decode().split("\n")
    assert user == "1000"
    assert int(threads) >= 1
    assert leftovers == [""]


def test_an_unchanged_build_is_reused(cli: Cli, base_image: str, image: dict[str, Any]) -> None:
    done = cli("build", *CPU, base_image, "--json")
    again = json.loads(done.stdout)
    assert again["status"] == "reused"
    assert again["artifact"] == image["artifact"]


def test_the_entrypoint_follows_the_quota(docker_client: Any, image: dict[str, Any]) -> None:
    shown = docker_client.containers.run(
        image["artifact"]["ref"],
        ["python", "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"],
        remove=True,
        nano_cpus=1_000_000_000,
    )
    assert shown == b"1\n"


@pytest.mark.slow
def test_quick_verification_passes_without_network(
    cli: Cli, base_image: str, image: dict[str, Any], tmp_path: Path
) -> None:
    done = cli("verify", *CPU, base_image, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["artifact"] == image["artifact"]
    assert data["device"]["used"] == "cpu"
    assert data["backend"] == "docker"


@pytest.mark.slow
def test_plain_docker_run_trains(
    docker_client: Any, image: dict[str, Any], mnist_dir: Path
) -> None:
    """`docker run` alone: nothing around it repeats a step, and the report says so."""
    done = subprocess.run(
        [
            *("docker", "run", "--rm", "--network", "none", "-v", f"{mnist_dir}:/data:ro"),
            image["artifact"]["ref"],
            *("python", "/opt/envbuilder/payload.pyz", "verify", "--device", "cpu"),
            *("--data", "/data", "--quick"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["report"]["status"], last["report"]["reasons"]) == ("unproven", [UNREPEATED])


def test_run_passes_the_code_through_and_mounts_the_folder(
    cli: Cli, base_image: str, image: dict[str, Any], tmp_path: Path
) -> None:
    script = "import torch; open('made', 'w').write(torch.__version__); raise SystemExit(9)"
    done = cli("run", *CPU, base_image, "--", "python", "-c", script)
    assert done.returncode == 9, done.stderr
    made = tmp_path / "made"
    assert made.read_text() == "2.13.0+cpu"
    assert made.stat().st_uid == os.getuid()


@pytest.mark.parametrize("builder", ["buildkit", "layers"])
@pytest.mark.parametrize("profile", ["tiny", "cuda"])
def test_a_base_of_another_python_is_refused_before_anything_is_fetched(
    cli: Cli, base_image: str, tiny: Path, tmp_path: Path, builder: str, profile: str
) -> None:
    cache = tmp_path / "cache"
    done = cli(
        *("build", "--profile", profile, "--backend", "docker", "--base-image", base_image),
        *("--builder", builder, "--python-version", "3.12"),
        environment={"ENVBUILDER_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 1
    assert "Python 3.12 is needed; the base image has 3.11" in done.stderr
    assert "--python-version 3.11" in done.stderr
    assert "fetch" not in done.stderr
    assert not [path for path in (cache / "store").rglob("*") if path.is_file()]


def test_a_base_image_that_cannot_be_had_is_named(cli: Cli, docker_client: Any, tiny: Path) -> None:
    done = cli(
        *("build", "--profile", "tiny", "--backend", "docker", "--base-image", "127.0.0.1:1/none:1")
    )
    assert done.returncode == 1
    assert "The base image 127.0.0.1:1/none:1 is not in the engine" in done.stderr
    assert "--base-image REF" in done.stderr


def test_no_engine_is_4(cli: Cli, tmp_path: Path) -> None:
    done = cli(*("build", *CPU, "x:1"), environment={"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert done.returncode == 4
    assert "no container engine answers" in done.stderr
    assert "--backend venv" in done.stderr


def test_no_docker_client_is_4(cli: Cli, base_image: str, tmp_path: Path) -> None:
    done = cli("build", *CPU, base_image, *BUILDKIT, environment={"PATH": str(tmp_path)})
    assert done.returncode == 4
    assert "docker client is not on PATH" in done.stderr


def test_no_buildx_is_4(cli: Cli, base_image: str, tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho \"docker: 'buildx' is not a docker command.\" >&2; exit 1\n")
    client.chmod(0o755)
    done = cli(
        "build", *CPU, base_image, *BUILDKIT, environment={"PATH": f"{tmp_path}:/usr/bin:/bin"}
    )
    assert done.returncode == 4
    assert "no buildx plugin" in done.stderr


def test_an_old_buildx_is_4(cli: Cli, base_image: str, tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho 'github.com/docker/buildx v0.8.2 abc'\n")
    client.chmod(0o755)
    done = cli(
        "build", *CPU, base_image, *BUILDKIT, environment={"PATH": f"{tmp_path}:/usr/bin:/bin"}
    )
    assert done.returncode == 4
    assert "v0.8.2 is too old" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(
    ("builder", "at"), [("buildkit", "build the image"), ("layers", "assemble the image")]
)
def test_a_killed_build_leaves_no_image_and_the_next_works(
    builder: str,
    at: str,
    number: signal.Signals,
    cli: Cli,
    base_image: str,
    image: dict[str, Any],
    docker_client: Any,
    real_engine: Engine,
    session_environment: dict[str, str],
    test_cache: Path,
) -> None:
    tag = f"envbuilder-test/killed:{builder}-{number.name.lower()}"
    if real_engine.image(tag):  # of an earlier run that could not be interrupted
        docker_client.images.remove(tag, force=True)

    def folders() -> set[str]:
        # Other tests verify meanwhile, which takes a folder of another name.
        return {p.name for p in (test_cache / "build").glob("cpu-*") if p.is_dir()}

    before = folders()
    command = ("build", *CPU, base_image, "--rebuild", "--tag", tag, "--builder", builder)
    child = subprocess.Popen(
        [sys.executable, "-m", "envbuilder", *command],
        env={**os.environ, **session_environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if at in line:
            break
    time.sleep(1)
    child.send_signal(number)
    _, said = child.communicate(timeout=120)
    assert child.returncode == (130 if number == signal.SIGINT else -9), said
    assert real_engine.image(tag) is None
    if number == signal.SIGINT:
        assert folders() <= before
    done = cli("build", *CPU, base_image, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["artifact"]["ref"] == image["artifact"]["ref"]


def test_clean_removes_only_what_is_ours(
    cli: Cli, base_image: str, image: dict[str, Any], real_engine: Engine
) -> None:
    done = cli("clean", "--profile", "cpu", "--dry-run", "--json")
    listed = json.loads(done.stdout)["removed"]
    assert image["artifact"]["ref"] in listed
    assert base_image not in listed
    assert real_engine.image(image["artifact"]["ref"]) is not None
