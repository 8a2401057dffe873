"""Two real wheels that carry one path with other bytes: refused by `lock` and by every builder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import small_wheels

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import Cli

pytestmark = pytest.mark.network

PAIR = """\
extends: _cpu
description: Two small wheels
platforms: [linux/amd64]
requirements: [left==1.0, right==1.0]
system_packages: []
preload: []
expects: {torch: 2.13.0+cpu}
"""
SHARED = "shared/data.txt"


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, str]:
    """A project whose profile `pair` has two wheels from a folder; the command's variables."""
    (tmp_path / "envbuilder.yaml").write_text("")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "pair.yaml").write_text(PAIR)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    small_wheels.write(wheels, "left", {SHARED: b"left"}, "tool = left:main")
    small_wheels.write(wheels, "right", {SHARED: b"right"}, "tool = left:main")
    return {
        "PIP_FIND_LINKS": str(wheels),
        "ENVBUILDER_DATA_DIR": str(tmp_path / "data"),
        "ENVBUILDER_CACHE_DIR": str(tmp_path / "cache"),
    }


@pytest.mark.parametrize("builder", ["venv", "layers", "buildkit"])
def test_wheels_that_do_not_go_together(
    cli: Cli, pair: dict[str, str], tmp_path: Path, builder: str, request: pytest.FixtureRequest
) -> None:
    options: tuple[str, ...] = ("--backend", "venv")
    if builder != "venv":
        base = request.getfixturevalue("base_image")
        options = ("--builder", builder, "--base-image", base, "--python-version", "3.11")
    lock = tmp_path / "profiles" / "locks" / "pair.json"
    wanted = ("--profile", "pair")

    # Nothing was fetched yet, so the lock can be made; the build looks before it installs.
    made = cli("lock", *wanted, environment=pair)
    assert made.returncode == 0, made.stderr
    before = lock.read_bytes()
    done = cli("build", *wanted, *options, environment=pair)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "left-1.0-py3-none-any.whl and right-1.0-py3-none-any.whl both install" in done.stderr
    assert SHARED in done.stderr
    assert not [*(tmp_path / "data").glob("*/*")]
    assert not (tmp_path / "cache" / "logs").exists()

    # What was fetched is looked at when a lock is made, and the old one stays.
    made = cli("lock", *wanted, environment=pair)
    assert made.returncode == 2, made.stdout + made.stderr
    assert SHARED in made.stderr
    assert lock.read_bytes() == before

    if builder == "venv":
        small_wheels.write(tmp_path / "wheels", "right", {SHARED: b"left"}, "tool = left:main")
        made = cli("lock", *wanted, environment=pair)
        assert made.returncode == 0, made.stderr
        done = cli("build", *wanted, *options, "--json", environment=pair)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["status"] == "built"
