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
    """The wheel of uv that locks name, beside what builds envbuilder's own wheel."""
    folder = Path(request.config.cache.mkdir("seams-tools"))
    if not list(folder.glob("trove_classifiers-*")):
        pip = (sys.executable, "-m", "pip", "--quiet", "download", "--dest", folder)
        wanted = (*pip, f"uv=={version('uv')}", "hatchling>=1.27")
        done = subprocess.run(wanted, capture_output=True, text=True, check=False)
        if done.returncode:
            missing("network", done.stderr)
    return next(folder.glob("uv-*"))
