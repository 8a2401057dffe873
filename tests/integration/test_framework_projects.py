"""Projects for JAX and TensorFlow in `examples/`: from a clone to a training in two commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import succeeded
from tests.integration.conftest import Cli
from tests.support import examples
from tests.support.folders import names_in


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fixture", "framework", "title"),
    [
        pytest.param("flax", "jax_prefix", "jax 0.12.0.1", "JAX", marks=pytest.mark.jax),
        pytest.param(
            "keras",
            "tensorflow_prefix",
            "tensorflow 2.21.0",
            "TensorFlow",
            marks=[pytest.mark.tensorflow, pytest.mark.soak],
        ),
    ],
)
def test_a_project_for_another_framework(
    cli: Cli,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    name: str,
    fixture: str,
    framework: str,
    title: str,
) -> None:
    request.getfixturevalue(fixture)
    examples.copy(name, tmp_path)
    succeeded(cli("lock"))
    kind = framework.partition(" ")[0]
    locked = names_in(tmp_path / "envbuilder.lock")
    assert locked == {f"default.{kind}-cpu.json", f"default.{kind}-cuda.json"}
    assert cli("check").returncode == 0
    ran = cli("run", "--backend", "venv", "--", *examples.ONE_THREAD, "python", "train.py")
    examples.require_learned(ran, framework)
    assert f"profile {kind}-cpu: {title}, because requirements.txt:2 requires {kind}" in ran.stderr
