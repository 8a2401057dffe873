"""Training of the network in PyTorch, step by step as in PyTorch's MNIST example."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from .. import interface
from ..interface import Kernel, Observation, Split, Tensors
from ..machine import device
from ..machine.accelerators import ACCELERATORS, device_of
from . import model
from .dataset import SIDE
from .train import DEVIATION, GAMMA, LEARNING_RATE, MEAN, TEST_BATCH, first_batches

Batch = Tuple[Any, Any]
"""Images, normalised and in the form's memory layout, and their labels."""


@dataclass
class Job(interface.Job):
    """One training run: the network, its device and form, and the state shared by its steps."""

    torch: Any
    accelerator: str
    form: model.Form
    model: Any
    optimizer: Any
    scheduler: Any
    generator: Any
    extension: Optional[str] = None
    """What an extension of torch did to the network and its optimizer."""
    shuffled: Optional[Batch] = None
    """All images of the current epoch."""

    def wait(self, result: Any = None) -> None:
        """Wait until the device has finished."""
        device.synchronize(self.torch, self.accelerator)

    def shuffle(self, data: Tensors) -> None:
        """Begin an epoch by shuffling and normalizing the images.

        The order is drawn on the CPU, so that it is the same on every device.
        """
        place = device_of(self.accelerator)
        self.model.train()
        self.order = self.torch.randperm(len(data.labels), generator=self.generator).to(place)
        images = model.arrange(self.torch, normalise(data.images[self.order]), self.form)
        self.shuffled = images, data.labels[self.order]

    def step(self, first: int, count: int) -> Any:
        """Train on a batch of the shuffled images and return its loss."""
        assert self.shuffled is not None
        images, labels = self.shuffled
        batch = slice(first, first + count)
        return step(self, images[batch], labels[batch])

    def step_and_masks(self, first: int, count: int) -> Tuple[Any, List[Any]]:
        """Train as ``step`` does, and return the loss and the masks of the two dropouts.

        The masks tell which values each dropout kept.
        """
        masks: List[Any] = []
        layers = (self.model.dropout1, self.model.dropout2)
        hooks = [layer.register_forward_hook(partial(_add_mask, masks)) for layer in layers]
        try:
            return self.step(first, count), masks
        finally:
            for hook in hooks:
                hook.remove()

    def snapshot(self) -> List[Any]:
        """Return copies of each parameter and its Adadelta averages.

        The averages are zero before the first step. IPEX packs parameters and averages; the two
        ``state_dict`` methods return them unpacked.
        """
        averages = self.optimizer.state_dict()["state"]
        copies = []
        for number, value in enumerate(self.model.state_dict().values()):
            zero = self.torch.zeros_like(value)
            kept = averages.get(number, {})
            parts = (value, kept.get("square_avg", zero), kept.get("acc_delta", zero))
            copies += [part.detach().clone() for part in parts]
        return copies

    def train(self, batch: Batch) -> Any:
        """Train on a batch and return its loss."""
        return step(self, *batch)

    def decay(self) -> None:
        """Reduce the learning rate at the end of an epoch."""
        self.scheduler.step()

    def fetch(self, losses: Sequence[Any]) -> List[float]:
        """Fetch all losses from the device at once, and return them as numbers."""
        return list(self.torch.stack(list(losses)).tolist())

    def taken(self) -> List[int]:
        """Return the order in which the last epoch used the images."""
        return [*map(int, self.order.tolist())]

    def labels(self, data: Tensors) -> List[int]:
        """Return the labels of a split."""
        return list(content(self.torch, data.labels))

    def predict(self, images: Any) -> Iterator[interface.Scores]:
        """Yield log-probabilities of uint8 images (N, 1, 28, 28) in batches of ``TEST_BATCH``."""
        self.model.eval()
        with self.torch.no_grad():
            for first in range(0, len(images), TEST_BATCH):
                batch = normalise(images[first : first + TEST_BATCH])
                yield self.model(model.arrange(self.torch, batch, self.form)).tolist()

    def inference(self, images: Any) -> Tuple[Callable[[], Any], int]:
        """Return a function that classifies the first batch of images, and the batch's size."""
        batch = model.arrange(self.torch, normalise(images[:TEST_BATCH]), self.form)
        self.model.eval()
        return self.torch.no_grad()(partial(self.model, batch)), len(batch)

    def summary(self) -> Dict[str, Any]:
        """Return the optimizer and the differences from the published form, for the report."""
        optimizer = type(self.optimizer).__name__
        return {"optimizer": optimizer, "extension": self.extension, **self.form.summary()}


def tensors(torch: Any, split: Split, accelerator: str) -> Tensors:
    """Copy a split to the device: images (N, 1, 28, 28) as unsigned bytes, labels (N) as int64."""
    labels = torch.frombuffer(bytearray(split.labels), dtype=torch.uint8)[: split.count]
    return Tensors(
        images_of(torch, split.images[: split.count * SIDE * SIDE], accelerator),
        labels.to(device_of(accelerator), torch.int64),
    )


def images_of(torch: Any, content: bytes, accelerator: str) -> Any:
    """Copy consecutive images, given as unsigned bytes, to the device."""
    pixels = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return pixels.view(-1, 1, SIDE, SIDE).to(device_of(accelerator))


def content(torch: Any, tensor: Any) -> bytes:
    """Copy a tensor of integers back from the device, and return them as unsigned bytes."""
    copy = tensor.to("cpu", torch.uint8).contiguous()
    # Read directly from memory: torch's own access to the values is what is being checked.
    return ctypes.string_at(copy.data_ptr(), copy.numel())


def floats(torch: Any, tensors: Sequence[Any]) -> bytes:
    """Copy tensors to the CPU, and return their values as consecutive float32 bytes.

    This does not need NumPy.
    """
    joined = torch.cat([t.detach().to("cpu", torch.float32).reshape(-1) for t in tensors])
    return ctypes.string_at(joined.data_ptr(), 4 * joined.numel())


def normalise(images: Any) -> Any:
    """Convert bytes to float32, normalized as the example's transforms do.

    They are normalized by MNIST's mean and standard deviation.
    """
    return images.float().div_(255).sub_(MEAN).div_(DEVIATION)


def batches(data: Tensors, count: int) -> List[Batch]:
    """Return the first ``count`` normalized batches and their labels.

    If the data contain fewer batches, they are repeated.
    """
    cuts = first_batches(len(data.labels), count)
    return [(normalise(data.images[cut]), data.labels[cut]) for cut in cuts]


def prepare(torch: Any, accelerator: str, form: model.Form, seed: int) -> Job:
    """Prepare a new network on the device, with the example's optimizer and schedule, as a job."""
    net = model.build(torch, seed, form).to(device_of(accelerator))
    job = Job(torch, accelerator, form, net, None, None, torch.Generator().manual_seed(seed))
    return scheduled(job, torch.optim.Adadelta(net.parameters(), lr=LEARNING_RATE))


def scheduled(job: Job, optimizer: Any) -> Job:
    """Give a job this optimizer and the example's schedule for it, and return the job."""
    job.optimizer = optimizer
    job.scheduler = job.torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=GAMMA)
    return job


def optimize_by_ipex(ipex: Any, job: Job) -> None:
    """Let IPEX replace the job's network and optimizer by its own, in float32, for training."""
    job.model.train()
    job.model, optimizer = ipex.optimize(job.model, optimizer=job.optimizer)
    job.extension = "ipex.optimize"
    # The existing schedule would still change the learning rate of the old optimizer.
    scheduled(job, optimizer)


def step(job: Job, images: Any, labels: Any) -> Any:
    """Run one optimizer step on one batch, and return the loss. The loss stays on the device."""
    job.optimizer.zero_grad()
    loss = job.torch.nn.functional.nll_loss(job.model(images), labels)
    loss.backward()
    job.optimizer.step()
    return loss.detach()


def _add_mask(masks: List[Any], _layer: Any, inputs: Tuple[Any, ...], output: Any) -> None:
    # A value that was 0 before says nothing, and changes nothing.
    masks.append((output.detach() != 0) | (inputs[0].detach() == 0))


def observe(job: Job, images: Any, labels: Any) -> Set[Tuple[str, str]]:
    """Run one more training step, and return the device types and dtypes of its tensors."""
    seen: Set[Tuple[str, str]] = set()

    def add(tensor: Any) -> None:
        seen.add((tensor.device.type, str(tensor.dtype).replace("torch.", "")))

    hooks = [
        layer.register_forward_hook(lambda _layer, _inputs, output: add(output))
        for layer in job.model.children()
    ]
    try:
        step(job, images, labels)
    finally:
        for hook in hooks:
            hook.remove()
    for parameter in job.model.parameters():
        add(parameter)
        if parameter.grad is not None:
            add(parameter.grad)
    return seen


def profile(torch: Any, accelerator: str, work: Callable[[], Any]) -> Observation:
    """Profile ``work`` and return what ran, including device activity if it can be profiled."""
    cpu = torch.profiler.ProfilerActivity.CPU
    activity = ACCELERATORS[accelerator].profiler
    if activity:
        device_activity = getattr(torch.profiler.ProfilerActivity, activity)
        try:
            return _profile(torch, accelerator, work, [cpu, device_activity])
        except RuntimeError:
            # The profiler's library for the device is missing or blocked; if the work itself is at
            # fault, it raises again below.
            pass
    return _profile(torch, accelerator, work, [cpu])


def _profile(
    torch: Any, accelerator: str, work: Callable[[], Any], activities: List[Any]
) -> Observation:
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        device.synchronize(torch, accelerator)
    return Observation(tuple(_kernels(torch, profiler)))


def _kernels(torch: Any, profiler: Any) -> Iterator[Kernel]:
    for event in profiler.key_averages():
        on_device = event.device_type != torch.autograd.DeviceType.CPU
        # torch before 2.4 calls every device CUDA here.
        new = hasattr(event, "self_device_time_total")
        place = ("device" if new else "cuda") if on_device else "cpu"
        yield Kernel(event.key, float(getattr(event, f"self_{place}_time_total")), on_device)
