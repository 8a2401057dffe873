"""One training by JAX: its state stays on the device, and each step replaces it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from .. import interface
from ..training import layers
from ..training.train import GAMMA, LEARNING_RATE, TEST_BATCH
from .jax_programs import State

if TYPE_CHECKING:
    from ..interface import Tensors
    from .jax_device import JaxDevice
    from .jax_programs import Programs

Batch = Tuple[Any, Any]
"""Images, normalised, and their labels."""


class Job(interface.Job):
    """One training on a device."""

    def __init__(self, device: JaxDevice, programs: Programs, seed: int) -> None:
        self._device, self._programs = device, programs
        random, numpy = device.jax.random, device.numpy
        weights = layers.initial(numpy, seed)
        zeros = {name: numpy.zeros_like(value) for name, value in weights.items()}
        shuffling, dropping = random.split(random.key(seed))
        self._shuffling = device.put(shuffling)
        self.state: State = device.put(State(weights, zeros, zeros, dropping))
        self._rate = device.put(numpy.float32(LEARNING_RATE))
        self._shuffled: Optional[Batch] = None

    def wait(self, result: Any = None) -> None:
        """Wait until the device has finished."""
        self._device.wait(result)

    def shuffle(self, data: Tensors) -> None:
        """Begin an epoch. The order is drawn on the device."""
        self._shuffling, used = self._device.jax.random.split(self._shuffling)
        images, labels, self.order = self._programs.shuffle(data.images, data.labels, used)
        self._shuffled = images, labels

    def step(self, first: int, count: int) -> Any:
        """Train on a batch of the shuffled images and return its loss."""
        assert self._shuffled is not None
        images, labels = (self._programs.cut(part, first, count) for part in self._shuffled)
        return self.train((images, labels))

    def step_and_masks(self, first: int, count: int) -> Tuple[Any, List[Any]]:
        """Train as ``step`` does; the masks follow from the random key that the step uses."""
        masks = self._programs.masks(self.state.key, count)
        return self.step(first, count), masks

    def snapshot(self) -> List[Any]:
        """Copy each parameter and Adadelta's averages: a step replaces their memory."""
        copy = self._device.jax.numpy.copy
        return [copy(part[name]) for name in layers.NAMES for part in self.state[:3]]

    def train(self, batch: Batch) -> Any:
        """Train on a batch and return its loss."""
        self.state, loss = self.executable(batch)(self.state, *batch, self._rate)
        return loss

    def executable(self, batch: Batch) -> Any:
        """Return what trains on batches of this size."""
        return self._programs.step(self.state, *batch, self._rate)

    def decay(self) -> None:
        """End an epoch: reduce the learning rate."""
        self._rate = self._rate * GAMMA

    def fetch(self, losses: Sequence[Any]) -> List[float]:
        """Return losses as numbers, all at once."""
        return [float(loss) for loss in self._device.jax.device_get(list(losses))]

    def taken(self) -> List[int]:
        """Return the order of the last epoch."""
        return [int(number) for number in self._device.fetch(self.order)]

    def labels(self, data: Tensors) -> List[int]:
        """Return the labels of a split."""
        return [int(label) for label in self._device.fetch(data.labels)]

    def predict(self, images: Any) -> Iterator[interface.Scores]:
        """Yield log-probabilities of images as bytes, by ``TEST_BATCH``."""
        for first in range(0, len(images), TEST_BATCH):
            count = min(TEST_BATCH, len(images) - first)
            batch = self._programs.normalise(self._programs.cut(images, first, count))
            scores = self._programs.classify(self.state.weights, batch)
            yield self._device.fetch(scores).tolist()

    def inference(self, images: Any) -> Tuple[Callable[[], Any], int]:
        """Return a function that classifies the first batch of images, and how many these are."""
        count = min(TEST_BATCH, len(images))
        batch = self._programs.normalise(self._programs.cut(images, 0, count))
        return partial(self._programs.classify, self.state.weights, batch), count

    def weights(self) -> Dict[str, Any]:
        """Copy the parameters by name: numpy's float64."""
        fetch, double = self._device.fetch, self._device.numpy.float64
        return {name: fetch(value).astype(double) for name, value in self.state.weights.items()}

    def summary(self) -> Dict[str, Any]:
        """Return the optimizer; the form is the published one, with channels last."""
        return {
            "optimizer": "Adadelta",
            "extension": None,
            "reordered": None,
            "memory_format": "channels_last",
            "dropout": None,
        }
