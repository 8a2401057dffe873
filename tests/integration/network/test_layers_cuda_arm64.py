"""`cuda` for 64-bit ARM by `layers`, from small wheels under the names of the locked ones."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import NamedTuple

import pytest

from envbuilder.containers.oci.layout import Layout
from envbuilder.core import console, types
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import load as load_settings
from envbuilder.packages import fetch
from envbuilder.packages.store import Store
from tests.conftest import missing, succeeded
from tests.integration.conftest import start_with_umask
from tests.support import image_files, images, shipped_locks
from tests.support.arm_host import arm_host

SHIPPED = shipped_locks.target("cuda", "linux/arm64")
PROFILE = """\
extends: cuda
description: cuda for 64-bit ARM alone, for tests
python: {default: "3.11", supported: ["3.11"]}
platforms: [linux/arm64]
bytecode: false
"""
LIBRARY = b"\x7fELF\x02\x01\x01" + bytes(11) + image_files.AARCH64.to_bytes(2, "little") + bytes(40)
SITE = "opt/env/lib/python3.11/site-packages/"
VARIABLES = {"DOCKER_HOST": "unix:///nowhere.sock"}
GB10 = {
    "vendor": "nvidia",
    "name": "NVIDIA GB10",
    "state": "usable",
    "sm": "12.1",
    "driver_version": "580.95.05",
}


class Made(NamedTuple):
    digest: str
    layout: Layout


@pytest.fixture
def wheels(tmp_path: Path) -> dict[str, Path]:
    """File name → the generated wheel."""
    return shipped_locks.generate(tmp_path / "wheels", SHIPPED, LIBRARY)


def build(
    folder: Path, wheels: dict[str, Path], base: Layout, environment: dict[str, str], umask: int
) -> Made:
    """Make the image in a folder of its own, from nothing but the wheels and the locked uv."""
    folder.mkdir()
    store = Store(folder / "cache/store")
    lock = shipped_locks.lay(folder, PROFILE, "cuda", SHIPPED, wheels, store)
    own = {**environment, **VARIABLES, "ENVBUILDER_CACHE_DIR": str(folder / "cache")}
    settings = load_settings({**os.environ, **own})
    tool = lock.tool(types.container_platform(platform.machine()))
    try:
        fetch.fetch([tool], lock.targets[0], settings, console.PlainProgress(lambda line: None))
    except BuildError as error:
        missing("network", f"uv cannot be had here: {error.message}")
    host = arm_host(environment, folder)
    there = json.loads(host.read_text())
    there["host"]["gpus"] = [GB10]
    host.write_text(json.dumps(there))
    done = succeeded(start_with_umask(
        ("build", "--profile", "mine", "--builder", "layers", "--target-host", str(host),
         "--base-image", f"oci:{base.folder}", "--output", "oci:image", "--json"),
        {**own, "PIP_INDEX_URL": "http://127.0.0.1:9/nothing"},
        umask,
        cwd=folder,
    ))  # fmt: skip
    return Made(json.loads(done.stdout)["artifact"]["digest"], Layout.open(folder / "image"))


@pytest.mark.slow
def test_the_image_is_the_same_twice_and_holds_every_file(
    wheels: dict[str, Path], session_environment: dict[str, str], tmp_path: Path
) -> None:
    base = images.image(tmp_path / "base", architecture="arm64")
    once = build(tmp_path / "once", wheels, base, session_environment, 0o022)
    again = build(tmp_path / "with a space", wheels, base, session_environment, 0o077)
    assert once.digest == again.digest
    manifest = once.layout.manifest("linux/arm64")
    assert manifest == again.layout.manifest("linux/arm64")
    config = once.layout.read_config(manifest)
    assert (config["os"], config["architecture"]) == ("linux", "arm64")
    assert "NVIDIA_VISIBLE_DEVICES=all" in config["config"]["Env"]

    found = image_files.read(once.layout, manifest)
    expected: dict[str, str] = {}
    for path in wheels.values():
        expected |= {SITE + p: s for p, s in image_files.record(path).items()}
    assert len(expected) == len(wheels) * 5
    there = {p: c.sha256 for p, c in found.items() if p.startswith(SITE)}
    assert {p for p in expected if there.get(p) != expected[p]} == set()
    assert {p.rpartition("/")[2] for p in there.keys() - expected.keys()} == {"RECORD"}
    libraries = {p: c.machine for p, c in found.items() if p.endswith(".so")}
    assert len(libraries) == len(wheels)
    assert set(libraries.values()) == {image_files.AARCH64}
