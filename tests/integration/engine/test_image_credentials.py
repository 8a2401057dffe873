"""No credential gets into an image: with either builder, and with `docker build` and a secret."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from envbuilder.core import archives
from tests.support import canaries
from tests.support.canaries import LOGIN, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TAG = "envbuilder-test/credentials:lab"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with canaries.machine(tmp_path) as made:
        yield made


def require_clean(client: Any, image: str, folder: Path) -> None:
    """Raise if a layer, the history or a label of an image holds a canary."""
    found = client.images.get(image)
    assert not canaries.leaked(json.dumps([found.attrs, found.history()]).encode())
    path = folder / "image.tar"
    with path.open("wb") as out:
        out.writelines(found.save())
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is None:
                continue
            assert not canaries.leaked(archives.unpacked(io.BytesIO(content.read())).read()), (
                member.name
            )


@pytest.mark.parametrize("builder", ["layers", "buildkit"])
def test_no_credential_gets_into_an_image(
    machine: Machine, docker_client: Any, base_image: str, tmp_path: Path, builder: str
) -> None:
    assert machine.run("lock", "--profile", "lab").returncode == 0
    build = ("build", "--profile", "lab", "--backend", "docker", "--builder", builder)
    done = machine.run(*build, "--base-image", base_image, "--tag", TAG, "--json")
    try:
        assert done.returncode == 0, done.stderr
        require_clean(docker_client, TAG, tmp_path)
    finally:
        assert machine.run("clean", "--yes").returncode == 0


@pytest.mark.slow
def test_a_rendered_dockerfile_takes_a_login_as_a_secret(
    machine: Machine, docker_client: Any, base_image: str, tmp_path: Path
) -> None:
    assert machine.run("lock", "--profile", "lab").returncode == 0
    assert machine.run("render", "--profile", "lab", "-o", "image").returncode == 0
    netrc = tmp_path / "netrc"
    user, _, password = LOGIN.partition(":")
    host = urlsplit(machine.index).hostname
    netrc.write_text(f"machine {host} login {user} password {password}\n")

    def docker(*options: str) -> subprocess.CompletedProcess[str]:
        command = ("docker", "build", "--network", "host", "--no-cache", "--tag", TAG)
        arguments = (f"BASE_IMAGE={base_image}", f"PIP_INDEX_URL={machine.index}")
        return subprocess.run(
            [*command, *(x for a in arguments for x in ("--build-arg", a)), *options, "image"],
            env={**os.environ, "DOCKER_BUILDKIT": "1"},
            cwd=machine.project,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    assert docker().returncode != 0  # the index is closed
    done = docker("--secret", f"id=netrc,src={netrc}")
    assert done.returncode == 0, done.stderr[-3000:]
    try:
        require_clean(docker_client, TAG, tmp_path)
    finally:
        docker_client.images.remove(TAG, force=True)
