"""A rendered bake file is read and built by docker buildx bake, without envbuilder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.settings import load as load_settings
from tests.conftest import succeeded
from tests.integration.conftest import Cli
from tests.integration.engine.test_plain_docker import build_options

pytestmark = pytest.mark.network


def bake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "buildx", "bake", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_buildx_reads_one_target_for_each_profile_and_platform(
    cli: Cli, docker_client: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    succeeded(cli("render", "--profile", "cpu,cuda", "--target", "bake", "-o", str(folder)))
    printed = succeeded(bake(folder, "--print", "cpu", "cuda"))
    targets = json.loads(printed.stdout)["target"]
    assert {(name, *t["platforms"], t["context"]) for name, t in targets.items()} == {
        (f"{profile}-linux-{machine}", f"linux/{machine}", profile)
        for profile in ("cpu", "cuda")
        for machine in ("amd64", "arm64")
    }
    local = json.loads(bake(folder, "--print").stdout)["target"]
    assert {p for target in local.values() for p in target["platforms"]} == {
        f"linux/{docker_client.version()['Arch']}"
    }


@pytest.mark.slow
def test_a_baked_image_has_what_its_lock_names(
    cli: Cli,
    session_environment: dict[str, str],
    docker_client: Any,
    base_image: str,
    tiny: Path,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "images"
    done = succeeded(cli("render", "--profile", "tiny", "--target", "bake", "-o", str(folder)))
    own = load_settings({**os.environ, **session_environment})
    options = ("--build-arg", f"BASE_IMAGE={base_image}", *build_options(own))
    keys = {"--build-arg": "args.", "--secret": "secrets="}
    stated = [f"*.{keys[o]}{v}" for o, v in zip(options[::2], options[1::2], strict=True)]
    # Not every machine can give a build a network other than its own.
    (folder / "network.hcl").write_text('target "tiny-linux-amd64" { network = "host" }\n')
    files = ("--file", "docker-bake.hcl", "--file", "network.hcl")
    tag = "envbuilder/tiny:py3.11-linux-amd64"
    try:
        done = bake(folder, *files, *(word for pair in stated for word in ("--set", pair)))
        assert done.returncode == 0, done.stderr[-4000:]
        argv = ["python", "-c", "import setuptools; print(setuptools.__version__)"]
        ran = docker_client.containers.run(tag, argv, remove=True, network_disabled=True)
        assert ran.decode().strip() == "80.9.0"
    finally:
        subprocess.run(["docker", "image", "rm", "--force", tag], capture_output=True, check=False)


def test_a_bake_file_of_somebody_else_stays(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "docker-bake.hcl").write_text('target "mine" {}\n')
    done = cli("render", "--profile", "cpu", "--target", "bake", "-o", str(tmp_path))
    assert done.returncode == 2
    assert "exists and was not made by envbuilder" in done.stderr
    assert (tmp_path / "docker-bake.hcl").read_text() == 'target "mine" {}\n'
    assert not (tmp_path / "cpu").exists()
