"""What frameworks have in common whose arrays numpy reads: their references and their content."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ..interface import (
    PROFILED_STEPS,
    Framework,
    Job,
    Scores,
    Split,
    Tensors,
    Traffic,
)
from ..machine import hardware
from ..measure import COPY, array_bytes
from ..training.dataset import SIDE
from ..training.train import TEST_BATCH, first_batches


class NumpyFramework(Framework):
    """A framework judged by numpy, which it has brought along."""

    numpy: Any
    label_type: str

    @abstractmethod
    def put(self, value: Any) -> Any:
        """Copy numpy's array to the device."""

    @abstractmethod
    def fetch(self, array: Any) -> Any:
        """Return a copy or a view of an array as numpy's."""

    @abstractmethod
    def normalise(self, images: Any) -> Any:
        """Convert bytes (N, 28, 28) to float32 (N, 28, 28, 1), as the training does."""

    def cut(self, array: Any, first: int, count: int) -> Any:
        """Return a part of an array."""
        return array[first : first + count]

    @abstractmethod
    def triad(self, size: int) -> Callable[[], Any]:
        """Return a function that reads two arrays of this many bytes and writes one."""

    def profiled(self, job: Job, batch: Any) -> None:
        """Train on a batch a few times, and wait for the device."""
        for _ in range(PROFILED_STEPS):
            loss = job.train(batch)
        self.wait(loss)

    def room(self) -> Tuple[Optional[int], Optional[int]]:
        """Return the bytes that can still be allocated, and those of the CPU's caches."""
        cpu = self.accelerator == "cpu"
        return (hardware.available_bytes(), hardware.cache_bytes()) if cpu else (None, None)

    def copy_back(self, array: Any) -> Any:
        """Copy an array from the device."""
        return self.fetch(array)

    def traffic(self, path: str) -> Optional[Traffic]:
        """Return what moves bytes along a path; there is no page-locked memory of the user's."""
        if path == "device":
            size = array_bytes(self.accelerator, *self.room())
            return 3 * size, self.triad(size)
        if self.accelerator == "cpu" or path not in ("host_to_device", "device_to_host"):
            return None
        host = self.numpy.ones(COPY // 4, self.numpy.float32)
        if path == "host_to_device":
            return COPY, partial(self.put, host)
        return COPY, partial(self.copy_back, self.put(host))

    def hold(self, split: Split) -> Tensors:
        """Copy a split to the device: images as bytes (N, 28, 28), labels as integers (N)."""
        labels = self.numpy.frombuffer(split.labels, self.numpy.uint8)[: split.count]
        images = self.images(split.images[: split.count * SIDE * SIDE])
        return Tensors(images, self.put(labels.astype(self.label_type)))

    def images(self, content: bytes) -> Any:
        """Copy images to the device."""
        return self.put(self.numpy.frombuffer(content, self.numpy.uint8).reshape(-1, SIDE, SIDE))

    def content(self, array: Any) -> bytes:
        """Return an array's integers as unsigned bytes, copied back from the device."""
        return bytes(self.fetch(array).astype(self.numpy.uint8))

    def floats(self, arrays: Sequence[Any]) -> bytes:
        """Return the numbers of arrays as float32, copied back from the device."""
        parts = [self.fetch(array).astype(self.numpy.float32).ravel() for array in arrays]
        return bytes(self.numpy.concatenate(parts))

    def batches(self, data: Tensors, count: int) -> List[Tuple[Any, Any]]:
        """Return the first batches, normalised, with labels; small data are repeated."""
        cuts = first_batches(len(data.labels), count)
        return [(self.normalise(data.images[cut]), data.labels[cut]) for cut in cuts]


class NumpyJob(Job):
    """One training by such a framework, in the published form but for the channels' place."""

    framework: NumpyFramework

    @abstractmethod
    def classify(self, images: Any) -> Any:
        """Return log-probabilities of normalised images."""

    def wait(self, result: Any = None) -> None:
        """Wait until the device has finished."""
        self.framework.wait(result)

    def taken(self) -> List[int]:
        """Return the order of the last epoch."""
        return [*map(int, self.framework.fetch(self.order))]

    def labels(self, data: Tensors) -> List[int]:
        """Return the labels of a split."""
        return [*map(int, self.framework.fetch(data.labels))]

    def predict(self, images: Any) -> Iterator[Scores]:
        """Yield log-probabilities of images as bytes (N, 28, 28), by ``TEST_BATCH``."""
        for first in range(0, len(images), TEST_BATCH):
            count = min(TEST_BATCH, len(images) - first)
            batch = self.framework.normalise(self.framework.cut(images, first, count))
            yield self.framework.fetch(self.classify(batch)).tolist()

    def inference(self, images: Any) -> Tuple[Callable[[], Any], int]:
        """Return a function that classifies the first batch of images, and how many these are."""
        count = min(TEST_BATCH, len(images))
        batch = self.framework.normalise(self.framework.cut(images, 0, count))
        return partial(self.classify, batch), count

    def summary(self) -> Dict[str, Any]:
        """Return the optimizer, and what differs from the published form."""
        return {
            "optimizer": "Adadelta",
            "extension": None,
            "reordered": None,
            "memory_format": "channels_last",
            "dropout": None,
        }
