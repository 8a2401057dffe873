"""What `watch` says about trainings with TensorFlow: Keras' `fit`, and a loop of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import watching

TRAINING = watching.HERE / "watched_tensorflow.py"
FAULTS = [
    ("none", "cuda", ["device"], "list_physical_devices"),
    ("loop", "cuda", ["device"], "list_physical_devices"),
    ("float64", "cpu", ["float64"], "np.float32"),
    ("not a number", "cpu", ["not finite"], "step"),
    ("rate zero", "cpu", ["no update"], "learning rate"),
]
"""Fault, the device that is asked for, what is found, and words of it."""


@pytest.mark.soak
@pytest.mark.parametrize(("fault", "device", "kinds", "words"), FAULTS)
def test_a_fault_is_named_and_no_other(
    fault: str, device: str, kinds: list[str], words: str, tensorflow_prefix: Path, tmp_path: Path
) -> None:
    argv = (str(TRAINING), fault)
    report = watching.require(tensorflow_prefix, tmp_path, argv, device, kinds, words)
    assert report.on_device is (device == "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "steps"), [("none", 256), pytest.param("loop", 100, marks=pytest.mark.soak)]
)
def test_an_honest_training_is_not_blamed_and_computes_the_same(
    kind: str, steps: int, tensorflow_prefix: Path, tmp_path: Path
) -> None:
    python = tensorflow_prefix / "bin/python"
    report, done = watching.watched(python, tmp_path, (str(TRAINING), kind))
    assert (report.findings, report.on_device) == ((), True)
    (trained,) = report.processes
    assert trained.finished
    assert (trained.steps, trained.optimizers) == (steps, 1)
    (parameters,) = trained.parameters
    size = 4 * (32 * 64 + 64 + 64 * 10 + 10)
    assert (parameters.device, parameters.dtype, parameters.bytes) == ("cpu", "float32", size)
    if kind == "none":
        assert trained.samples == 16 * (steps - 1)
        assert len(trained.losses) > 10
        assert len(trained.unseen) == 1
    else:
        assert "the loss" in trained.unseen[1]
    assert done.stdout == watching.plain(python, kind, training=TRAINING)
