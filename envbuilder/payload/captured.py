"""The same epochs with the whole step captured as a CUDA graph: a measurement, not the proof.

Eager training of this network is bound by the launches of some hundred small kernels a step; a
captured step is one launch. Net, batch, optimizer, precision and order of images are those of the
eager training, and so are the losses: the first ones are compared, and if they differ the time
does not count. Weights, optimizer and random numbers are put back after the warm-up that a capture
needs (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).

Written for CUDA; HIP has the same interface. Neither has run it yet.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, List

from .machine import clock
from .machine.accelerators import device_of
from .training import eager, model
from .training.train import BATCH, LEARNING_RATE, steps_of

if TYPE_CHECKING:
    from .interface import Tensors

WARM_UP = 3
"""Steps on a stream of their own before the capture, in which libraries choose and allocate."""

COMPARED = 10
TOLERANCE = 1e-5
"""Greatest difference of a loss, which is 2.3 at first."""


def offered(torch: Any, accelerator: str) -> bool:
    """Return whether torch captures graphs on this accelerator."""
    return accelerator != "cpu" and hasattr(getattr(torch, device_of(accelerator)), "CUDAGraph")


def measure(torch: Any, accelerator: str, data: Tensors, seed: int) -> Dict[str, Any]:
    """Return the report's ``captured``: seconds of two epochs, the first with the capture.

    ``largest_difference`` is that of the losses of eager and captured steps in deterministic mode;
    ``counts`` says whether it is small enough.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        job = eager.prepare(torch, accelerator, model.fastest(accelerator), seed)
        job.shuffle(data)
        count = min(COMPARED, len(data.labels) // BATCH)
        eagerly = job.fetch([job.step(number * BATCH, BATCH) for number in range(count)])
        captured = Captured(torch, accelerator, data, seed)
        captured.begin(data)
        for _ in eagerly:
            captured.replay()
        replayed = captured.losses[:count].tolist()
    finally:
        torch.use_deterministic_algorithms(before)
    difference = max(abs(ours - theirs) for ours, theirs in zip(replayed, eagerly))  # noqa: B905
    began = time.perf_counter()
    captured = Captured(torch, accelerator, data, seed)
    captured.epoch(data)
    first = clock.since(began)
    began = time.perf_counter()
    captured.epoch(data)
    return {
        "first_seconds": first,
        "seconds": clock.since(began),
        "compared": len(eagerly),
        "largest_difference": difference,
        "counts": difference <= TOLERANCE,
    }


class Captured:
    """A training whose step is one graph over buffers that keep their place."""

    def __init__(self, torch: Any, accelerator: str, data: Tensors, seed: int) -> None:
        self.torch = torch
        self.place = device_of(accelerator)
        self.seed = seed
        job = eager.prepare(torch, accelerator, model.fastest(accelerator), seed)
        # An optimizer that keeps everything on the device, the learning rate too.
        rate = torch.tensor(LEARNING_RATE, device=self.place)
        adadelta = torch.optim.Adadelta(job.model.parameters(), lr=rate, capturable=True)
        self.job = eager.scheduled(job, adadelta)
        count = len(data.labels)
        self.full = count // BATCH
        self.images = torch.zeros(data.images.shape, dtype=torch.float32, device=self.place)
        self.labels = torch.zeros_like(data.labels)
        self.losses = torch.zeros(steps_of(count), device=self.place)
        self.first = torch.zeros(1, dtype=torch.int64, device=self.place)
        self.offsets = torch.arange(BATCH, device=self.place)
        self.job.model.train()
        before = [parameter.detach().clone() for parameter in self.job.model.parameters()]
        self.replay = self._capture()
        self._put_back(before)

    def step(self) -> None:
        """Train on the batch that begins at ``first``, note its loss, and go on to the next."""
        batch = self.first + self.offsets
        images = self.images.index_select(0, batch)
        labels = self.labels.index_select(0, batch)
        loss = eager.step(self.job, images, labels)
        self.losses.index_copy_(0, self.first // BATCH, loss.reshape(1))
        self.first += BATCH

    def _capture(self) -> Any:
        """Return a function that does one step."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay

    def _put_back(self, before: List[Any]) -> None:
        """Undo the warm-up in place: the graph holds the addresses."""
        with self.torch.no_grad():
            for parameter, value in zip(self.job.model.parameters(), before):  # noqa: B905
                parameter.copy_(value)
            for state in self.job.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        self.torch.manual_seed(self.seed)

    def begin(self, data: Tensors) -> None:
        """Begin an epoch: shuffle, convert and normalise, as in eager mode."""
        self.job.shuffle(data)
        assert self.job.shuffled is not None
        images, labels = self.job.shuffled
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.first.zero_()

    def epoch(self, data: Tensors) -> List[float]:
        """Train on every image once and return the losses; the last, smaller batch runs eagerly."""
        self.begin(data)
        for _ in range(self.full):
            self.replay()
        if len(self.losses) > self.full:
            rest = slice(self.full * BATCH, None)
            self.losses[self.full] = eager.step(self.job, self.images[rest], self.labels[rest])
        self.job.decay()
        return list(self.losses.tolist())
