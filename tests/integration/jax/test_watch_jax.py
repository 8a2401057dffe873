"""What `watch` says about trainings with JAX."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import watching

TRAINING = watching.HERE / "watched_jax.py"
FAULTS = [
    ("none", "cuda", ["device"], "jax.devices()"),
    ("float64", "cpu", ["float64"], "np.float32"),
    ("not a number", "cpu", ["not finite"], "at step 1"),
]
"""Fault, the device that is asked for, what is found, and words of it."""


@pytest.mark.soak
@pytest.mark.parametrize(("fault", "device", "kinds", "words"), FAULTS)
def test_a_fault_is_named_and_no_other(
    fault: str, device: str, kinds: list[str], words: str, jax_prefix: Path, tmp_path: Path
) -> None:
    argv = (str(TRAINING), fault)
    report = watching.require(jax_prefix, tmp_path, argv, device, kinds, words)
    assert report.on_device is (device == "cpu")


@pytest.mark.slow
def test_an_honest_training_is_not_blamed_and_computes_the_same(
    jax_prefix: Path, tmp_path: Path
) -> None:
    python = jax_prefix / "bin/python"
    report, done = watching.watched(python, tmp_path, (str(TRAINING), "none"))
    assert (report.findings, report.on_device) == ((), True)
    (trained,) = report.processes
    assert trained.finished
    # Every loss that was printed, and nothing else that was.
    losses = [float(line.split()[3].rstrip(",")) for line in done.stdout.splitlines()]
    assert len(trained.losses) == len(losses) == 400
    assert [loss for _, loss in trained.losses] == pytest.approx(losses, abs=1e-8)
    (parameters,) = trained.parameters
    assert (parameters.device, parameters.dtype) == ("cpu", "float32")
    assert parameters.bytes == pytest.approx(4 * (32 * 64 + 64 * 10), rel=0.2)
    assert len(trained.unseen) == 2
    assert done.stderr == ""
    assert done.stdout == watching.plain(python, "none", training=TRAINING)
