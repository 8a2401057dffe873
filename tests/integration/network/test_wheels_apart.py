"""Two real wheels that carry one path with other bytes: refused by `lock` and by every builder."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from envbuilder.packages.python.wheel_conflicts import contents
from tests.conftest import succeeded
from tests.integration.conftest import Cli
from tests.support import make_wheels as small_wheels

PAIR = """\
extends: _cpu
description: Two small wheels
platforms: [linux/amd64]
requirements: [left==1.0, right==1.0]
system_packages: []
preload: []
expects: {version: 2.13.0+cpu}
"""
SHARED = "shared/machine_code.so"


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, str]:
    """A project whose profile `pair` has two wheels from a folder; the command's variables."""
    (tmp_path / "envbuilder.yaml").write_text("")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/pair.yaml").write_text(PAIR)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    small_wheels.write(wheels, "left", {SHARED: b"left"}, "tool = left:main")
    small_wheels.write(wheels, "right", {SHARED: b"right"}, "tool = left:main")
    return {
        "PIP_FIND_LINKS": str(wheels),
        "ENVBUILDER_DATA_DIR": str(tmp_path / "data"),
        "ENVBUILDER_CACHE_DIR": str(tmp_path / "cache"),
    }


@pytest.mark.slow
def test_wheels_that_do_not_go_together(cli: Cli, pair: dict[str, str], tmp_path: Path) -> None:
    """`lock` reads them before it writes, whatever was fetched; no build is reached."""
    wanted = ("--profile", "pair")
    options = ("--backend", "venv")
    for _ in range(2):
        made = cli("lock", *wanted, environment=pair)
        printed = " ".join((made.stdout + made.stderr).split())
        assert made.returncode == 2, printed
        assert "left-1.0-py3-none-any.whl and right-1.0-py3-none-any.whl both" in printed
        assert SHARED in printed
    assert cli("build", *wanted, *options, environment=pair).returncode == 2
    assert not [*(tmp_path / "data").glob("*/*")]

    small_wheels.write(tmp_path / "wheels", "right", {SHARED: b"left"}, "tool = left:main")
    made = succeeded(cli("lock", *wanted, environment=pair))
    done = succeeded(cli("build", *wanted, *options, "--json", environment=pair))
    assert json.loads(done.stdout)["status"] == "built"


def test_wheels_are_known_to_put_their_files_where_uv_puts_them(tmp_path: Path) -> None:
    data = "Left_Wheel-1.0.data"
    files = {
        "left/__init__.py": b"",
        "left.data/scripts/plain": b"",
        **{f"{data}/{kind}/{kind}.txt": b"x" for kind in ("purelib", "platlib", "headers")},
        f"{data}/scripts/carried": b"#!python\n",
        f"{data}/data/share/man/left.1": b"",
    }
    scripts = "written = left:main\nOther = left.cli : main [extra]"
    wheel = small_wheels.write(tmp_path, "Left_Wheel", files, scripts)
    uv = (sys.executable, "-m", "uv")
    env = tmp_path / "env"

    def run(*argv: str) -> None:
        subprocess.run([*uv, *argv], check=True, capture_output=True)

    run("venv", "--offline", "--python", sys.executable, str(env))
    before = {path for path in env.rglob("*") if path.is_file()}
    install = ("pip", "install", "--offline", "--no-index", "--no-installer-metadata", str(wheel))
    run(*install, "--python", str(env / "bin/python"))
    installed = {path for path in env.rglob("*") if path.is_file()} - {*before, env / ".lock"}
    with zipfile.ZipFile(wheel) as archive:
        record, points = (
            archive.read(f"Left_Wheel-1.0.dist-info/{name}").decode()
            for name in ("RECORD", "entry_points.txt")
        )
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        known = contents("Left_Wheel-1.0", python, archive.namelist(), record, points)
    assert {str(path.relative_to(env)) for path in installed} == known.keys()
