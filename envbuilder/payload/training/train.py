"""Training and testing, with timings that leave nothing out.

Images stay on the device as unsigned bytes. Each epoch begins by shuffling them, converting them to
float32 and normalising them, all at once: ``data_seconds`` is the time until this has finished on
the device. ``compute_seconds`` is the rest of the pass up to the end of the last step: 938 times
forward, loss, backward and optimizer step. ``seconds`` is their sum, the whole training pass
without evaluation. Nothing that PyTorch's example does in an epoch is left out of it, and nothing
is prepared in advance.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from ..machine import clock, device
from ..machine.accelerators import device_of
from . import model
from .dataset import SIDE

if TYPE_CHECKING:
    from .dataset import Split
    from .model import Form

BATCH = 64
TEST_BATCH = 1000
LEARNING_RATE = 1.0
GAMMA = 0.7
MEAN, DEVIATION = 0.1307, 0.3081
POINTS = 200
"""Maximum number of points of a loss curve."""

Progress = Callable[[int, int, Callable[[], float]], None]
"""Receives the steps done, all steps, and a function that fetches the loss of the last step."""


@dataclass
class Tensors:
    """One split on a device: images as unsigned bytes (N, 1, 28, 28), labels as int64 (N)."""

    images: Any
    labels: Any

    def nbytes(self) -> int:
        """Return the bytes that both take on the device."""
        return int(self.images.nbytes + self.labels.nbytes)


@dataclass
class Curve:
    """The loss curve, kept on the device until an epoch's end: fetching a number would wait."""

    every: int
    steps: int = 0
    points: List[Tuple[int, float]] = field(default_factory=list)
    waiting: List[Any] = field(default_factory=list)

    def add(self, loss: Any) -> None:
        """Count one step and keep its loss if it is due; the first one always is."""
        if self.steps % self.every == 0:
            self.waiting.append(loss)
        self.steps += 1

    def fetch(self, torch: Any) -> None:
        """Fetch the losses that are still on the device, all at once."""
        if self.waiting:
            losses = torch.stack(self.waiting).tolist()
            first = len(self.points)
            self.points += [(1 + (first + n) * self.every, loss) for n, loss in enumerate(losses)]
            self.waiting.clear()


def curve(images: int, epochs: int) -> Curve:
    """Return a curve of at most ``POINTS`` points over ``epochs`` epochs."""
    return Curve(every=max(1, -(-epochs * steps_of(images) // POINTS)))


def steps_of(images: int) -> int:
    """Return the steps of one epoch; the last one may have a smaller batch."""
    return -(-images // BATCH)


@dataclass
class Job:
    """One training: what is trained, on which device, and how; the state that its steps share."""

    torch: Any
    accelerator: str
    form: Form
    model: Any
    optimizer: Any
    scheduler: Any
    generator: Any
    curve: Optional[Curve] = None
    on_first_step: Optional[Callable[[], None]] = None
    order: Any = None
    """The order of images in the last epoch, on the device."""
    epochs: List[Dict[str, float]] = field(default_factory=list)


def tensors(torch: Any, split: Split, accelerator: str) -> Tensors:
    """Copy a split to the device."""
    pixels = torch.frombuffer(bytearray(split.images), dtype=torch.uint8)
    images = pixels.view(-1, 1, SIDE, SIDE)[: split.count]
    labels = torch.frombuffer(bytearray(split.labels), dtype=torch.uint8)[: split.count]
    place = device_of(accelerator)
    return Tensors(images.to(place), labels.to(place, torch.int64))


def content(torch: Any, tensor: Any) -> bytes:
    """Return a tensor's integers as unsigned bytes, copied back from the device."""
    copy = tensor.to("cpu", torch.uint8).contiguous()
    # Read directly from memory: torch's own access to the values is what is being checked.
    return ctypes.string_at(copy.data_ptr(), copy.nbytes)


def normalise(images: Any) -> Any:
    """Convert bytes to float32 with MNIST's mean and deviation, as the example's transforms do."""
    return images.float().div_(255).sub_(MEAN).div_(DEVIATION)


def batches(data: Tensors, count: int) -> List[Tuple[Any, Any]]:
    """Return the first ``count`` batches, normalised, with labels; small data are repeated."""
    full = max(1, len(data.labels) // BATCH)
    cuts = [slice(n % full * BATCH, (n % full + 1) * BATCH) for n in range(count)]
    return [(normalise(data.images[cut]), data.labels[cut]) for cut in cuts]


def prepare(torch: Any, accelerator: str, form: Form, seed: int) -> Job:
    """Prepare a new network on the device with the example's optimizer and schedule."""
    net = model.build(torch, seed, form).to(device_of(accelerator))
    optimizer = torch.optim.Adadelta(net.parameters(), lr=LEARNING_RATE)
    return Job(
        torch,
        accelerator,
        form,
        net,
        optimizer,
        torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=GAMMA),
        # The order of images is drawn on the CPU, so it is the same on every device.
        torch.Generator().manual_seed(seed),
    )


def step(job: Job, images: Any, labels: Any) -> Any:
    """Run one optimizer step on one batch; return the loss, still on the device."""
    job.optimizer.zero_grad()
    loss = job.torch.nn.functional.nll_loss(job.model(images), labels)
    loss.backward()
    job.optimizer.step()
    return loss.detach()


def epoch(job: Job, data: Tensors, progress: Progress) -> Dict[str, float]:
    """Train on every image once; return seconds and mean loss, and record them in the job."""
    torch, count, place = job.torch, len(data.labels), device_of(job.accelerator)
    job.model.train()
    device.synchronize(torch, job.accelerator)
    began = time.perf_counter()
    order = job.order = torch.randperm(count, generator=job.generator).to(place)
    images = model.arrange(torch, normalise(data.images[order]), job.form)
    labels = data.labels[order]
    device.synchronize(torch, job.accelerator)
    data_seconds = clock.since(began)

    total = torch.zeros((), device=place)
    steps = steps_of(count)
    for number in range(steps):
        batch = slice(number * BATCH, (number + 1) * BATCH)
        loss = step(job, images[batch], labels[batch])
        total += loss * len(labels[batch])
        if job.curve is not None:
            job.curve.add(loss)
        if job.on_first_step is not None:
            device.synchronize(torch, job.accelerator)
            job.on_first_step()
            job.on_first_step = None
        progress(number + 1, steps, loss.item)
    device.synchronize(torch, job.accelerator)
    seconds = clock.since(began)
    job.scheduler.step()
    if job.curve is not None:
        job.curve.fetch(torch)
    result = {
        "seconds": seconds,
        "data_seconds": data_seconds,
        "compute_seconds": seconds - data_seconds,
        "samples_per_second": count / seconds,
        "loss": float(total) / count,
    }
    job.epochs.append(result)
    return result


def require_every_image(job: Job, count: int) -> None:
    """Raise RuntimeError unless the last epoch trained on each of ``count`` images once."""
    # Sorted in Python: torch's own sort belongs to what is being checked.
    if sorted(job.order.tolist()) != list(range(count)):
        raise RuntimeError(f"the training did not take each of the {count} images once")


def predict(job: Job, images: Any) -> Iterator[Any]:
    """Yield log-probabilities (N, 10) of images as bytes (N, 1, 28, 28), by ``TEST_BATCH``.

    The network is in evaluation mode and its output stays on the device.
    """
    job.model.eval()
    with job.torch.no_grad():
        for first in range(0, len(images), TEST_BATCH):
            batch = normalise(images[first : first + TEST_BATCH])
            yield job.model(model.arrange(job.torch, batch, job.form))


def accuracy(job: Job, data: Tensors) -> float:
    """Return the fraction of images that the network classifies correctly."""
    correct = 0
    for number, scores in enumerate(predict(job, data.images)):
        labels = data.labels[number * TEST_BATCH : (number + 1) * TEST_BATCH]
        correct += int((scores.argmax(dim=1) == labels).sum())
    return correct / len(data.labels)


def weights(net: Any) -> Dict[str, Any]:
    """Copy a network's parameters by name, in float64 on the CPU.

    IPEX packs parameters; ``state_dict`` returns them unpacked.
    """
    return {name: value.detach().cpu().double().clone() for name, value in net.state_dict().items()}


def changes(before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, float]:
    """Return how far each parameter moved: |after - before| / |before|, Euclidean norms."""
    return {
        name: float((after[name] - value).norm() / value.norm()) for name, value in before.items()
    }


@dataclass
class Census:
    """Device types and dtypes of parameters, gradients and activations in a training step."""

    devices: Set[str] = field(default_factory=set)
    dtypes: Set[str] = field(default_factory=set)

    def add(self, tensor: Any) -> None:
        """Record one tensor."""
        self.devices.add(tensor.device.type)
        self.dtypes.add(str(tensor.dtype).replace("torch.", ""))


def observe(job: Job, images: Any, labels: Any) -> Census:
    """Run one more training step and record the device and dtype of each of its tensors."""
    census = Census()
    hooks = [
        layer.register_forward_hook(lambda _layer, _inputs, output: census.add(output))
        for layer in job.model.children()
    ]
    try:
        step(job, images, labels)
    finally:
        for hook in hooks:
            hook.remove()
    for parameter in job.model.parameters():
        census.add(parameter)
        if parameter.grad is not None:
            census.add(parameter.grad)
    return census
