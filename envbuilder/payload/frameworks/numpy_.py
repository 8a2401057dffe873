"""Base classes for frameworks whose arrays NumPy can read."""

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
    """A framework whose arrays NumPy can read and that depends on NumPy, so NumPy is installed."""

    numpy: Any
    label_type: str

    @abstractmethod
    def put(self, value: Any) -> Any:
        """Copy a NumPy array to the device, and return the copy."""

    @abstractmethod
    def fetch(self, array: Any) -> Any:
        """Return an array as a NumPy array, either a view or a copy."""

    @abstractmethod
    def normalise(self, images: Any) -> Any:
        """Convert image bytes (N, 28, 28) to normalized float32 images (N, 28, 28, 1).

        The normalization is that of the training.
        """

    def cut(self, array: Any, first: int, count: int) -> Any:
        """Return ``count`` elements of an array, starting at index ``first``."""
        return array[first : first + count]

    @abstractmethod
    def triad(self, size: int) -> Callable[[], Any]:
        """Return a function that reads two arrays of ``size`` bytes each and writes one."""

    def profiled(self, job: Job, batch: Any) -> None:
        """Train on a batch ``PROFILED_STEPS`` times, then wait for the device."""
        for _ in range(PROFILED_STEPS):
            loss = job.train(batch)
        self.wait(loss)

    def room(self) -> Tuple[Optional[int], Optional[int]]:
        """Return the number of bytes that can still be allocated, and the size of the CPU's caches.

        Both are None on other devices than the CPU.
        """
        cpu = self.accelerator == "cpu"
        return (hardware.available_bytes(), hardware.cache_bytes()) if cpu else (None, None)

    def copy_back(self, array: Any) -> Any:
        """Copy an array from the device to the host, and return the copy."""
        return self.fetch(array)

    def traffic(self, path: str) -> Optional[Traffic]:
        """Return a number of bytes and a function that moves them along a memory path.

        Return None if there is no such path. Paths from or to page-locked memory count as missing,
        because users of these frameworks cannot allocate such memory.
        """
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
        """Copy a split to the device: images as bytes (N, 28, 28), and labels as integers (N)."""
        labels = self.numpy.frombuffer(split.labels, self.numpy.uint8)[: split.count]
        images = self.images(split.images[: split.count * SIDE * SIDE])
        return Tensors(images, self.put(labels.astype(self.label_type)))

    def images(self, content: bytes) -> Any:
        """Copy consecutive images, given as unsigned bytes, to the device."""
        return self.put(self.numpy.frombuffer(content, self.numpy.uint8).reshape(-1, SIDE, SIDE))

    def content(self, array: Any) -> bytes:
        """Copy an array of integers back from the device, and return them as unsigned bytes."""
        return bytes(self.fetch(array).astype(self.numpy.uint8))

    def floats(self, arrays: Sequence[Any]) -> bytes:
        """Copy arrays back from the device, and return their numbers as float32 bytes."""
        parts = [self.fetch(array).astype(self.numpy.float32).ravel() for array in arrays]
        return bytes(self.numpy.concatenate(parts))

    def batches(self, data: Tensors, count: int) -> List[Tuple[Any, Any]]:
        """Return the first ``count`` normalized batches and their labels.

        If the data contain fewer batches, they are repeated.
        """
        cuts = first_batches(len(data.labels), count)
        return [(self.normalise(data.images[cut]), data.labels[cut]) for cut in cuts]


class NumpyJob(Job):
    """A training run of a NumpyFramework.

    Except for channels-last images, it has the form in which PyTorch's MNIST example is published.
    """

    framework: NumpyFramework

    @abstractmethod
    def classify(self, images: Any) -> Any:
        """Return the log-probabilities of normalized images."""

    def wait(self, result: Any = None) -> None:
        """Wait until the device has finished."""
        self.framework.wait(result)

    def taken(self) -> List[int]:
        """Return the order in which the last epoch used the images."""
        return [*map(int, self.framework.fetch(self.order))]

    def labels(self, data: Tensors) -> List[int]:
        """Return the labels of a split."""
        return [*map(int, self.framework.fetch(data.labels))]

    def predict(self, images: Any) -> Iterator[Scores]:
        """Yield the log-probabilities of uint8 images (N, 28, 28) in batches of ``TEST_BATCH``."""
        for first in range(0, len(images), TEST_BATCH):
            count = min(TEST_BATCH, len(images) - first)
            batch = self.framework.normalise(self.framework.cut(images, first, count))
            yield self.framework.fetch(self.classify(batch)).tolist()

    def inference(self, images: Any) -> Tuple[Callable[[], Any], int]:
        """Return a function that classifies the first batch of images, and the batch's size."""
        count = min(TEST_BATCH, len(images))
        batch = self.framework.normalise(self.framework.cut(images, 0, count))
        return partial(self.classify, batch), count

    def summary(self) -> Dict[str, Any]:
        """Return the optimizer and the differences from the published form, for the report."""
        return {
            "optimizer": "Adadelta",
            "extension": None,
            "reordered": None,
            "memory_format": "channels_last",
            "dropout": None,
        }
