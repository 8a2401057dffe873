"""numpy's loss and gradients of the network are those of torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy
import pytest

from envbuilder import payload
from envbuilder.core import resources
from envbuilder.payload.training import dataset, model
from envbuilder.verify import reference
from tests.conftest import ran, succeeded


def by_torch(name: str, value: Any) -> Any:
    """A parameter in torch's layout; images are flattened there channel by channel."""
    if name == "fc1.weight":
        value = value.reshape(12, 12, 64, 128).transpose(2, 0, 1, 3).reshape(9216, 128)
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T


@pytest.mark.slow
def test_the_reference_agrees_with_torch_in_float64(torch_python: Path, tmp_path: Path) -> None:
    split = dataset.load(resources.mnist_subset_dir()).train
    images = numpy.frombuffer(split.images, numpy.uint8).reshape(-1, 28, 28, 1)[:64] / 255 - 0.13
    labels = numpy.frombuffer(split.labels, numpy.uint8)[:64].astype(numpy.int64)
    weights = model.initial(numpy, 1)
    passed = reference.forward(numpy, weights, images, labels)
    gradients = reference.backward(numpy, passed, passed.third > 0)
    (tmp_path / "images").write_bytes(images.tobytes())
    (tmp_path / "labels").write_bytes(labels.tobytes())
    for name, value in weights.items():
        (tmp_path / name).write_bytes(by_torch(name, value).astype(float).tobytes())

    done = succeeded(
        ran(
            [
                str(torch_python),
                str(Path(__file__).with_name("gradients_by_torch.py")),
                str(tmp_path),
            ],
            env={**os.environ, "PYTHONPATH": str(Path(payload.__file__).parents[2])},
        )
    )
    assert float(done.stdout) == pytest.approx(passed.loss, rel=1e-13)
    for name, gradient in gradients.items():
        exact = numpy.frombuffer((tmp_path / f"{name}.gradient").read_bytes())
        ours = by_torch(name, gradient).ravel()
        assert numpy.linalg.norm(ours - exact) < 1e-12 * numpy.linalg.norm(exact), name
