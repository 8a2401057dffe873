"""One more package in a project: what was locked stays, and so do the layers of large wheels."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds.image.wheels import LARGE
from envbuilder.containers.oci.layout import Descriptor, Layout
from tests.conftest import missing, succeeded
from tests.integration.conftest import Cli
from tests.support import make_wheels
from tests.support.images import image as small_image

PROJECT = "profiles: [tiny]\nrequirements: [{}]\n"


@pytest.fixture
def build(cli: Cli, tiny: Path, tmp_path: Path) -> Callable[..., tuple[Any, list[Descriptor]]]:
    """Lock and build the project with some requirements; return the lock and the layers."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    # No compressor makes it small enough to share a layer.
    weights = random.Random(0).randbytes(LARGE + 1)
    make_wheels.write(wheels, "large_frame", {"large_frame.bin": weights})
    for version in ("1.0", "2.0"):
        files = {"moving.py": version.encode()}
        make_wheels.write(wheels, "moving", files, version=version)
    make_wheels.write(wheels, "one_more", {"one_more.py": b""}, needs=["moving"])
    environment = {"PIP_FIND_LINKS": str(wheels)}
    base = f"oci:{small_image(tmp_path / 'base').folder}"

    def call(*requirements: str) -> tuple[Any, list[Descriptor]]:
        (tmp_path / "envbuilder.yaml").write_text(PROJECT.format(", ".join(requirements)))
        done = cli("lock", environment=environment)
        if done.returncode != 0:
            missing("network", f"the package index cannot be asked: {done.stdout}{done.stderr}")
        place = tmp_path / f"image{len(requirements)}"
        options = ("--base-image", base, "--output", f"oci:{place}")
        done = succeeded(cli("build", "--profile", "tiny", *options, environment=environment))
        lock = json.loads((tmp_path / "envbuilder.lock/default.tiny.json").read_text())
        return lock, list(Layout.open(place).manifest("linux/amd64").layers)

    return call


@pytest.mark.slow
def test_one_more_package_changes_its_own_lines_and_one_layer(
    build: Callable[..., tuple[Any, list[Descriptor]]],
) -> None:
    before, layers = build("large-frame", "moving<2")
    # Without the bound, the newest version would fit; the locked one stays.
    after, more = build("large-frame", "moving", "one-more")
    for target, newer in zip(before["targets"], after["targets"], strict=True):
        kept = [file for file in newer["files"] if file["name"] != "one-more"]
        assert kept == target["files"]
        assert len(newer["files"]) == len(kept) + 1
    assert len(layers) == len(more)
    changed = [one for one, other in zip(layers, more, strict=True) if one != other]
    assert len(changed) == 1, "that of all small packages"
    assert changed[0].size < LARGE
