"""A host that this machine is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.integration.conftest import start

if TYPE_CHECKING:
    from pathlib import Path


def arm_host(environment: dict[str, str], folder: Path) -> Path:
    """A file for `--target-host`: this machine, as if its processor were a 64-bit ARM."""
    done = start(("detect", "--json"), environment)
    assert done.returncode == 0, done.stderr
    detected = json.loads(done.stdout)
    detected["host"] |= {"machine": "aarch64", "platform": "linux/arm64"}
    path = folder / "host.json"
    path.write_text(json.dumps(detected))
    return path
