"""What machines and lists of steps share."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import missing


@pytest.fixture(scope="session")
def uv_wheel(request: pytest.FixtureRequest) -> Path:
    """The wheel of uv that locks name."""
    folder = Path(request.config.cache.mkdir("seams-tools"))
    if not list(folder.glob("uv-*")):
        pip = (sys.executable, "-m", "pip", "--quiet", "download", "--no-deps")
        wanted = f"uv=={version('uv')}"
        done = subprocess.run(
            (*pip, "--dest", folder, wanted), capture_output=True, text=True, check=False
        )
        if done.returncode:
            missing("network", done.stderr)
    return next(folder.glob("uv-*"))
