"""Three steps of a framework's training, compared with numpy's in float64."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from envbuilder import payload
from envbuilder.core import resources
from tests.conftest import succeeded


def require_exact(framework: str, prefix: Path) -> None:
    """What the payload trains in this environment is the example's network and optimizer."""
    script = Path(__file__).with_name("steps_by_numpy.py")
    python = prefix / "bin/python"
    done = succeeded(
        subprocess.run(
            [str(python), str(script), framework, str(resources.mnist_subset_dir())],
            env={**os.environ, "PYTHONPATH": str(Path(payload.__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )
    )
    errors = json.loads(done.stdout)
    assert errors["images"] < 1e-6
    assert errors["loss"] < 1e-5
    assert errors["weights"] < 1e-5
