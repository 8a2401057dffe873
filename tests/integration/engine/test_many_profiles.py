"""`build --profile A,B,C` with a real engine: failures apart, one interruption for all."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.engine.interface import LABEL
from tests.conftest import exited
from tests.integration.conftest import locked, start
from tests.support import make_wheels
from tests.support.projects import lay_profile
from tests.support.small_profiles import PROFILE

pytestmark = pytest.mark.slow
COUNT = 3
PATIENCE_SECONDS = 60.0


@pytest.fixture
def name(docker_client: Any) -> Iterator[str]:
    """What the names of the profiles begin with; their images are gone in the end."""
    prefix = f"several-{secrets.token_hex(4)}"
    yield prefix
    for image in docker_client.api.images(filters={"label": [f"{LABEL}profile"]}):
        if image["Labels"][f"{LABEL}profile"].startswith(prefix):
            docker_client.images.remove(image["Id"], force=True, noprune=True)


@pytest.fixture
def project(
    tmp_path: Path, session_environment: dict[str, str], name: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Profiles that share a large wheel, and the variables of their builds."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    # Bytes that do not compress: to pack them takes a moment.
    data = os.urandom(24 << 20)
    make_wheels.write(wheels, "small_common", {"small_common.py": b"", "small_common.bin": data})
    environment = {**session_environment, "PIP_FIND_LINKS": str(wheels)}
    names = tuple(f"{name}-{number}" for number in range(COUNT))
    for number, profile in enumerate(names):
        make_wheels.write(wheels, f"small_{number}", {f"small_{number}.py": b"HERE = True\n"})
        lay_profile(tmp_path, profile, PROFILE.format(number=number))
        locked(tmp_path, profile, environment)
    environment["ENVBUILDER_CACHE_DIR"] = str(tmp_path / "cache")
    environment["ENVBUILDER_DATA_DIR"] = str(tmp_path / "data")
    return environment, names


def options(names: tuple[str, ...], base_image: str, *more: str) -> tuple[str, ...]:
    common = ("--builder", "layers", "--python-version", "3.11", "--base-image", base_image)
    return ("build", "--profile", ",".join(names), *common, *more)


def test_a_wrong_hash_in_one_profile_does_not_stop_the_others(
    tmp_path: Path,
    project: tuple[dict[str, str], tuple[str, ...]],
    base_image: str,
    docker_client: Any,
) -> None:
    environment, names = project
    lock = tmp_path / f"profiles/locks/{names[1]}.json"
    data = json.loads(lock.read_text())
    for file in (f for t in data["targets"] for f in t["files"] if f["name"] == "small-1"):
        file["sha256"] = "0" * 64
    lock.write_text(json.dumps(data))
    done = exited(
        1, start(options(names, base_image, "--json", "--rebuild"), environment, cwd=tmp_path)
    )
    assert f"error: {names[1]}: " in done.stderr
    first, failed, last = json.loads(done.stdout)["builds"]
    assert [b["status"] for b in (first, failed, last)] == ["built", "failed", "built"]
    assert failed["error"]["exit_code"] == 1
    for build, number in ((first, 0), (last, 2)):
        argv = ["python", "-c", f"import small_common, small_{number}"]
        docker_client.containers.run(
            build["artifact"]["ref"], argv, network_disabled=True, remove=True
        )
    lines = [line for line in done.stderr.splitlines() if "assemble the image" in line]
    assert {line.partition(":")[0] for line in lines} == {names[0], names[2]}


def test_ctrl_c_ends_the_command_and_leaves_nothing_half_made(
    tmp_path: Path,
    project: tuple[dict[str, str], tuple[str, ...]],
    base_image: str,
    docker_client: Any,
) -> None:
    environment, names = project
    assert start(options(names, base_image), environment, cwd=tmp_path).returncode == 0
    for profile in names:  # so that an image is one of the interrupted command
        for tag in docker_client.images.get(f"envbuilder/{profile}:latest").tags:
            docker_client.images.remove(tag, noprune=True)
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "envbuilder", *options(names, base_image, "--rebuild")],
            env={**os.environ, **environment},
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        try:
            wait_for(errors, "· assemble the image", 2)  # a line without the dot gives its time
            child.send_signal(signal.SIGINT)
            assert child.wait(PATIENCE_SECONDS) == 130
        finally:
            child.kill()
    assert "interrupted" in errors.read_text()
    left = [p.name for p in (tmp_path / "cache/build").iterdir() if p.suffix != ".lock"]
    assert left == []
    done = start(options(names, base_image, "--json"), environment, cwd=tmp_path)
    # The first one was done when the second one's image was assembled.
    statuses = [b["status"] for b in json.loads(done.stdout)["builds"]]
    assert statuses == ["reused", *["built"] * (COUNT - 1)]


def wait_for(log: Path, text: str, times: int) -> None:
    """Wait until a program has printed something so many times."""
    end = time.monotonic() + PATIENCE_SECONDS
    while log.read_text().count(text) < times:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.01)
