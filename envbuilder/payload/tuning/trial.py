"""One trial: part of the real training under one setting, timed.

Threads, allocator and start method belong to a process, so each trial is a separate process. The
workload is the verified one: network, optimizer, order of images and conversion to float32.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from ..machine import clock, device, facts, threads
from ..machine.accelerators import ACCELERATORS, FALLBACK_VARIABLES
from ..numerics import compilers, extensions, numerics, precision
from ..training import loader, model, train
from ..training.dataset import Split

if TYPE_CHECKING:
    from ..training.dataset import Dataset

STEPS, WARM_UP = 150, 30
"""Steps of batch 64; other batch sizes use as many images."""

CHUNKS = 10
TESTED = 2_000
"""Images on which accuracy is measured."""


@dataclass(frozen=True)
class Asked:
    """One setting, and how long to train under it."""

    device: str
    form: model.Form
    steps: int = STEPS
    warm_up: int = WARM_UP
    seed: int = 1
    batch: int = train.BATCH
    bfloat16: bool = False
    flush_denormal: bool = False
    compile_backend: Optional[str] = None
    workers: Optional[int] = None
    start_method: Optional[str] = None
    ipex: bool = False

    @property
    def samples(self) -> int:
        """Return the images to train on, warm-up included: those of batch 64, in full batches."""
        return max(2, (self.warm_up + self.steps) * train.BATCH // self.batch) * self.batch

    @property
    def untimed(self) -> int:
        """Return the steps before the clock starts."""
        return max(1, self.warm_up * train.BATCH // self.batch)


@dataclass
class Feed:
    """Source of the batches, and the seconds of preparation before the first one."""

    batches: Iterator[Tuple[Any, Any]]
    seconds: float = 0.0
    start_method: Optional[str] = None


@dataclass
class Timed:
    """The measurements: images per second of each chunk, and the mean loss over them."""

    rates: List[float] = field(default_factory=list)
    loss: float = 0.0


def run(asked: Asked, data: Dataset) -> Dict[str, Any]:
    """Train under the setting and return what was measured and what was really in effect.

    Raises RuntimeError, ValueError or ImportError if the setting is not available here.
    """
    import torch

    _prepare(torch, asked)
    generator = torch.Generator().manual_seed(asked.seed)
    order = _order(torch, data.train.count, asked.samples, generator)
    # Workers start before the device is used: its contexts do not survive a fork.
    feed = _feed(torch, asked, data, order)
    job = _job(torch, asked)
    timed = _train(job, asked, feed)
    accuracy = train.accuracy(job, train.tensors(torch, _first(data.test), asked.device))
    dtypes = [] if asked.compile_backend else _dtypes(job, asked, data)
    # Preparation before the loop counts as part of an image's time, as it does in an epoch.
    seconds = 1 / statistics.median(timed.rates) + feed.seconds / asked.samples
    return {
        "samples_per_second": 1 / seconds,
        "samples": asked.samples,
        "chunks": timed.rates,
        "accuracy": accuracy,
        "loss": timed.loss,
        "settings": {
            "threads": torch.get_num_threads(),
            "allocator": facts.allocator(),
            "workers": asked.workers,
            "start_method": feed.start_method,
            "batch": asked.batch,
            "dtypes": dtypes,
            "flush_denormal": asked.flush_denormal,
            "compile": asked.compile_backend,
            **asked.form.summary(),
        },
    }


def check_compile(asked: Asked, data: Dataset) -> Dict[str, Any]:
    """Check whether a compile backend is right here, with the gradient check of ``verify``."""
    import torch

    backend = str(asked.compile_backend)
    tolerance = numerics.GRADIENT_TOLERANCE["float32"]
    _prepare(torch, asked)
    training = train.tensors(torch, data.train, asked.device)
    bench = compilers.Bench(
        torch,
        asked.device,
        asked.form,
        training,
        train.tensors(torch, _first(data.test), asked.device),
        numerics.trials(torch, training, numerics.TRIALS),
        tolerance,
    )
    outcome = compilers.measure(bench, backend, lambda done, total: None)
    _, detail = compilers.verdict(outcome, tolerance)
    passed = outcome.error is None and outcome.gradients_pass(tolerance)
    return {"backend": backend, "passed": passed, "detail": detail}


def _prepare(torch: Any, asked: Asked) -> None:
    for name in FALLBACK_VARIABLES:
        os.environ.pop(name, None)
    if threads.chosen_by_user(os.environ.get("OMP_NUM_THREADS")) is None:
        torch.set_num_threads(threads.decide(threads.fetch()))
    precision.prepare(torch, "float32")
    # Threads inherit the mode from the one that starts them, so it is set before any start.
    if asked.flush_denormal and not torch.set_flush_denormal(True):
        raise RuntimeError("this processor cannot flush denormal numbers to zero")


def _order(torch: Any, count: int, samples: int, generator: Any) -> Any:
    passes = [torch.randperm(count, generator=generator) for _ in range(-(-samples // count))]
    return torch.cat(passes)[:samples]


def _first(split: Split) -> Split:
    return Split(split.images, split.labels, min(split.count, TESTED))


def _feed(torch: Any, asked: Asked, data: Dataset, order: Any) -> Feed:
    if asked.workers is None:
        return _from_device(torch, asked, data, order)
    # Starting workers is not timed: it is paid once per training, not for each image.
    made = loader.make(
        torch,
        train.tensors(torch, data.train, "cpu"),
        order.tolist(),
        asked.batch,
        asked.workers,
        asked.start_method,
        pinned=ACCELERATORS[asked.device].pinned,
    )
    arrived = iter(made)

    def batches() -> Iterator[Tuple[Any, Any]]:
        for images, labels in arrived:
            here = images.to(asked.device, non_blocking=True)
            yield model.arrange(torch, here, asked.form), labels.to(asked.device)

    return Feed(batches(), start_method=loader.method_of(made))


def _from_device(torch: Any, asked: Asked, data: Dataset, order: Any) -> Feed:
    held = train.tensors(torch, data.train, asked.device)
    device.synchronize(torch, asked.device)
    began = time.perf_counter()
    there = order.to(asked.device)
    images = model.arrange(torch, train.normalise(held.images[there]), asked.form)
    labels = held.labels[there]
    device.synchronize(torch, asked.device)
    pairs = zip(images.split(asked.batch), labels.split(asked.batch))  # noqa: B905 - not in 3.9
    return Feed(pairs, clock.since(began))


def _job(torch: Any, asked: Asked) -> train.Job:
    job = train.prepare(torch, asked.device, asked.form, asked.seed)
    if asked.ipex:
        extensions.optimize(extensions.load("ipex"), job)
    if asked.bfloat16:
        autocast = torch.autocast(asked.device, dtype=torch.bfloat16)
        job.model.forward = autocast(job.model.forward)
    if asked.compile_backend == "zentorch":
        extensions.load("zentorch")
    if asked.compile_backend is not None:
        job.model = torch.compile(job.model, backend=asked.compile_backend, dynamic=False)
    job.model.train()
    return job


def _train(job: train.Job, asked: Asked, feed: Feed) -> Timed:
    torch, timed = job.torch, Timed()
    for _ in range(asked.untimed):
        train.step(job, *next(feed.batches))
    left = asked.samples // asked.batch - asked.untimed
    size = -(-left // CHUNKS)
    total = torch.zeros((), device=asked.device)
    for first in range(0, left, size):
        steps = min(size, left - first)
        device.synchronize(torch, asked.device)
        began = time.perf_counter()
        for _ in range(steps):
            total += train.step(job, *next(feed.batches))
        device.synchronize(torch, asked.device)
        timed.rates.append(steps * asked.batch / clock.since(began))
    timed.loss = float(total) / left
    return timed


def _dtypes(job: train.Job, asked: Asked, data: Dataset) -> List[str]:
    """Return the dtypes of tensors in a training step; they show whether bfloat16 took part."""
    few = Split(data.train.images, data.train.labels, min(data.train.count, train.BATCH))
    images, labels = train.batches(train.tensors(job.torch, few, asked.device), 1)[0]
    batch = model.arrange(job.torch, images, job.form)
    return sorted(train.observe(job, batch, labels).dtypes)
