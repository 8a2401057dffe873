"""Print how far a framework's training is from numpy's: shuffled images, weights after three steps.

Runs in an interpreter with that framework, without dropout, whose masks numpy does not draw.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy

from envbuilder.payload import frameworks
from envbuilder.payload.frameworks import jax_job, tensorflow_job
from envbuilder.payload.training import dataset, model
from envbuilder.verify import reference

BATCH = 64


class Adadelta:
    """The optimizer as Zeiler's paper and torch have it, in float64."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = weights
        self.squares = {name: numpy.zeros_like(value) for name, value in weights.items()}
        self.changes = {name: numpy.zeros_like(value) for name, value in weights.items()}

    def step(self, gradients: dict[str, Any]) -> None:
        for name, gradient in gradients.items():
            self.squares[name] = 0.9 * self.squares[name] + 0.1 * gradient**2
            ratio = (self.changes[name] + 1e-6) / (self.squares[name] + 1e-6)
            change = numpy.sqrt(ratio) * gradient
            self.changes[name] = 0.9 * self.changes[name] + 0.1 * change**2
            self.weights[name] = self.weights[name] - change


def weights(framework: Any, job: Any) -> dict[str, Any]:
    """The parameters by name, in float64."""
    parameters = map(framework.fetch, job.snapshot()[::3])
    return {n: p.astype("float64") for n, p in zip(model.NAMES, parameters, strict=True)}


def error_of(array: Any, exact: Any) -> float:
    """The difference's norm over that of `exact`."""
    return float(numpy.linalg.norm((array - exact).ravel()) / numpy.linalg.norm(exact.ravel()))


def main(name: str, folder: Path) -> None:
    split = dataset.load(folder).train
    jax_job.Programs._drop = lambda self, values, share, key: values
    tensorflow_job.drop = lambda tensorflow, values, share, seed: values
    framework = frameworks.load(name, "cpu", None)
    framework.state_precision("float32")
    data = framework.hold(split)
    job = framework.job(1)
    exact = Adadelta(weights(framework, job))
    job.shuffle(data)
    pixels = numpy.frombuffer(split.images, numpy.uint8).reshape(-1, 28, 28, 1)[: split.count]
    images = ((pixels / 255 - 0.1307) / 0.3081)[job.taken()]
    labels = numpy.frombuffer(split.labels, numpy.uint8)[job.taken()]
    shuffled = framework.fetch(job._shuffled[0])
    for number in range(3):
        part = slice(number * BATCH, (number + 1) * BATCH)
        passed = reference.forward(numpy, exact.weights, images[part], labels[part])
        loss = job.fetch([job.step(number * BATCH, BATCH)])[0]
        exact.step(reference.backward(numpy, passed, passed.third > 0))
    errors = {
        name: error_of(value, exact.weights[name])
        for name, value in weights(framework, job).items()
    }
    result = {
        "images": error_of(shuffled, images),
        "loss": float(abs(loss - passed.loss) / passed.loss),
        "weights": max(errors.values()),
    }
    print(json.dumps(result))


main(sys.argv[1], Path(sys.argv[2]))
