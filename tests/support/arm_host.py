"""A host that this machine is not."""

from __future__ import annotations

import json
from pathlib import Path

from envbuilder.core import types as words
from tests.conftest import succeeded
from tests.integration.conftest import start


def arm_host(environment: dict[str, str], folder: Path) -> Path:
    """A file for `--target-host`: this machine, as if its processor were a 64-bit ARM."""
    return linux_host(environment, folder, "aarch64", "linux/arm64")


def linux_host(
    environment: dict[str, str], folder: Path, machine: str, platform: words.Platform
) -> Path:
    """Return a file for `--target-host`: this machine, as if it had another processor."""
    detected = json.loads(succeeded(start(("detect", "--json"), environment)).stdout)
    detected["host"] |= {"machine": machine, "platform": platform}
    path = folder / "host.json"
    path.write_text(json.dumps(detected))
    return path
