"""What the payload trains by JAX is the network of the example, with its optimizer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from envbuilder import payload
from envbuilder.core import resources


def test_three_steps_are_those_of_numpy_in_float64(jax_prefix: Path) -> None:
    script = Path(__file__).with_name("steps_by_jax.py")
    done = subprocess.run(
        [str(jax_prefix / "bin" / "python"), str(script), str(resources.mnist_subset_dir())],
        env={**os.environ, "PYTHONPATH": str(Path(payload.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout)
    assert errors["images"] < 1e-6
    assert errors["loss"] < 1e-5
    assert errors["weights"] < 1e-5
