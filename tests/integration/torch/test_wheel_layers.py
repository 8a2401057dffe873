"""The layers of the wheels of `cpu`: the bytes that they had when they were recorded.

After a wanted change: `make golden`, then say in the commit why they moved.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.oci.layer import compressor
from envbuilder.containers.oci.layout import Layout
from tests.conftest import missing
from tests.integration.conftest import Cli
from tests.support import debian_python
from tests.support.arm_host import linux_host
from tests.support.images import BASE, image as small_image

pytestmark = [pytest.mark.network, pytest.mark.slow]

ABOVE = 3
"""Layers above those of wheels: the allocator's package, the environment, the payload."""
NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere.sock"}


@pytest.fixture
def layers(cli: Cli, session_environment: dict[str, str], tmp_path: Path) -> list[dict[str, Any]]:
    """The wheel layers of `cpu` for linux/amd64 and Python 3.11, made now, on a base of few files.

    Its Python, 3.11.2, decides the bytecode.

    What is below them and above them decides none of their bytes.
    """
    if why := debian_python.unsupported():
        missing("torch", f"no base with Debian's Python: {why}")
    members = [m for m in BASE if m.path != "usr/bin/python3.11"]
    base = small_image(tmp_path / "base", ([*members, *debian_python.members()],))
    host = linux_host(session_environment, tmp_path, "x86_64", "linux/amd64")
    done = cli(
        "build",
        "--profile",
        "cpu",
        "--python-version",
        "3.11",
        "--target-host",
        str(host),
        "--base-image",
        f"oci:{base.folder}",
        "--output",
        "oci:image",
        "--rebuild",
        environment=NO_ENGINE,
    )
    if done.returncode == 1 and (
        "cannot be fetched" in done.stderr or "cannot find" in done.stderr
    ):
        missing("torch", f"the wheels of cpu cannot be had here: {done.stderr[-400:]}")
    assert done.returncode == 0, done.stderr
    layout = Layout.open(tmp_path / "image")
    manifest = layout.manifest("linux/amd64")
    config = layout.read_config(manifest)
    below = len(base.manifest("linux/amd64").layers)
    listed = zip(
        manifest.layers[below:], config["rootfs"]["diff_ids"][below:], config["history"],
        strict=True,
    )  # fmt: skip
    made = [
        {"what": h["created_by"], "digest": blob.digest, "diff_id": diff_id, "size": blob.size}
        for blob, diff_id, h in listed
    ]
    return made[:-ABOVE]


def test_wheel_layers_are_the_golden_ones(
    layers: list[dict[str, Any]], repository: Path, rewrite_golden: bool
) -> None:
    made = {"compressor": dict(compressor()), "layers": layers}
    path = repository / "tests/golden/cpu/wheel-layers.json"
    if rewrite_golden:
        path.write_text(json.dumps(made, indent=1) + "\n")
    golden = json.loads(path.read_text())
    names = ("what", "diff_id")
    assert [[f[n] for n in names] for f in layers] == [
        [f[n] for n in names] for f in golden["layers"]
    ]
    if made["compressor"] != golden["compressor"]:
        pytest.skip(
            f"recorded with {golden['compressor']}, here is {made['compressor']}: the compressed"
            " bytes may differ (the uncompressed ones were compared, and are the same)"
        )
    assert made == golden
