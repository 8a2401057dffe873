"""A training of the network in numpy's float32 that is recorded as the payload's is.

It stands for an environment: `Faults` are what its framework may do wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from envbuilder.payload.training import model, outside, train
from envbuilder.payload.training.dataset import SIDE, Split
from envbuilder.verify import reference

Arrays = dict[str, Any]


def same(value: Any, *_: Any) -> Any:
    return value


@dataclass(frozen=True)
class Faults:
    """Functions that change one thing; each gets the right value first, then the step's number."""

    order: Callable[..., Any] = same
    images: Callable[..., Any] = same
    labels: Callable[..., Any] = same
    kept: Callable[..., Any] = same
    gradients: Callable[..., Arrays] = same
    rate: Callable[..., float] = same
    updated: Callable[..., Any] = same
    """Gets the new and the old value of one array."""
    loss: Callable[..., float] = same
    first: Callable[..., Any] = same
    """Gets one array of the weights before the first step, and its name instead of a number."""
    averages: Callable[..., Any] = same
    rho: float = train.RHO


class Numpy:
    """What `Recorder` needs of a framework; `rows_first` is torch's layout."""

    def __init__(self, *, rows_first: bool = False) -> None:
        self.rows_first = rows_first

    def floats(self, arrays: list[Any]) -> bytes:
        return b"".join(self._arranged(a).astype("<f4").tobytes() for a in arrays)

    def content(self, mask: Any) -> bytes:
        if self.rows_first and mask.ndim == 4:
            mask = mask.transpose(0, 3, 1, 2)
        return bytes(mask.astype("u1").tobytes())

    def _arranged(self, array: Any) -> Any:
        if not self.rows_first or array.ndim == 1:
            return array
        if len(array) == model.WEIGHTS["fc1"][0]:
            array = array.reshape(*model.DROPPED[0], -1)
        return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


class Job:
    """One training, from a seed."""

    def __init__(self, split: Split, seed: int, faults: Faults) -> None:
        self.split = split
        self.faults = faults
        self.random = numpy.random.default_rng(seed)
        weights = model.initial(numpy, seed)
        self.arrays = {
            name: [faults.first(w, name), numpy.zeros_like(w), numpy.zeros_like(w)]
            for name, w in weights.items()
        }
        self.done = 0
        self.rate = train.LEARNING_RATE

    def shuffle(self) -> None:
        self.order = self.faults.order(self.random.permutation(self.split.count), self.done)

    def taken(self) -> list[int]:
        return [int(number) for number in self.order]

    def fetch(self, losses: list[float]) -> list[float]:
        return losses

    def snapshot(self) -> list[Any]:
        return [part.copy() for parts in self.arrays.values() for part in parts]

    def step(self, first: int, count: int) -> float:
        return float(self.step_and_masks(first, count)[0])

    def step_and_masks(self, first: int, count: int) -> tuple[float, list[Any]]:
        number = self.done
        faults = self.faults
        taken = self.order[first : first + count]
        pixels = numpy.frombuffer(self.split.images, "u1").reshape(-1, SIDE, SIDE, 1)[taken]
        images = faults.images((pixels / 255 - train.MEAN) / train.DEVIATION, number)
        labels = faults.labels(numpy.frombuffer(self.split.labels, "u1")[taken], number)
        kept = [self.random.random((count, *shape)) >= share for shape, share in DROPOUTS]
        kept = faults.kept(kept, number)
        weights = {name: parts[0] for name, parts in self.arrays.items()}
        passed = reference.forward(numpy, weights, images, labels, kept)
        exact = reference.backward(numpy, passed, passed.third > 0)
        self._update(faults.gradients(exact, number), faults.rate(self.rate, number))
        self.done += 1
        return faults.loss(float(passed.loss), number), kept

    def _update(self, gradients: Arrays, rate: float) -> None:
        rho = self.faults.rho
        faults = self.faults
        for name, gradient in gradients.items():
            value, squares, changes = self.arrays[name]
            new_squares = rho * squares + (1 - rho) * gradient**2
            change = (
                numpy.sqrt((changes + train.EPSILON) / (new_squares + train.EPSILON)) * gradient
            )
            averages = [new_squares, rho * changes + (1 - rho) * change**2]
            new = faults.updated(value - rate * change, value, self.done)
            parts = [new, *(faults.averages(each, self.done) for each in averages)]
            self.arrays[name] = [part.astype("f4") for part in parts]

    def decay(self) -> None:
        self.rate *= train.GAMMA


DROPOUTS = tuple(zip(model.DROPPED, model.SHARES, strict=True))


def digits(count: int) -> Split:
    """Blurred random images, with random labels: nothing to learn, but gradients like any."""
    random = numpy.random.default_rng(count)
    coarse = random.integers(0, 256, (count, 7, 7), dtype="u1")
    images = coarse.repeat(4, axis=1).repeat(4, axis=2)
    return Split(images.tobytes(), random.integers(0, 10, count, dtype="u1").tobytes(), count)


def train_and_record(
    folder: Path,
    split: Split,
    numbers: tuple[int, ...],
    epochs: int,
    faults: Faults = Faults(),
    framework: Numpy | None = None,
) -> None:
    """Train and write the record of the steps with these numbers."""
    job = Job(split, 1, faults)
    recorder = outside.Recorder(framework or Numpy(), folder, frozenset(numbers))  # type: ignore[arg-type]
    for epoch in range(1, epochs + 1):
        job.shuffle()
        for first in range(0, split.count, train.BATCH):
            recorder.step(job, first, min(train.BATCH, split.count - first))  # type: ignore[arg-type]
        recorder.write(job, epoch)  # type: ignore[arg-type]
        job.decay()
