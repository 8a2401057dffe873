"""One trial: part of the real training under one setting, timed.

Threads, allocator and start method belong to a process, so each trial is a separate process. The
workload is the verified one: network, optimizer, order of images and conversion to float32.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from . import start
from .machine import clock, contention, device, facts, threads
from .machine.accelerators import ACCELERATORS, FALLBACK_VARIABLES, device_of
from .numerics import compilers, numerics, precision
from .training import dataset, eager, model, train

if TYPE_CHECKING:
    from .interface import Tensors

CHUNKS = 10
TESTED = 2_000
"""Images on which accuracy is measured."""


@dataclass(frozen=True)
class Setting:
    """One setting, and how long to train under it."""

    device: str
    form: model.Form
    steps: int
    warm_up: int
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


def run(setting: Setting, data: dataset.Dataset) -> Dict[str, Any]:
    """Train under the setting and return what was measured and what was really in effect.

    Raises RuntimeError, ValueError or ImportError if the setting is not available here.
    """
    device.require_nodes(setting.device)
    import torch

    _prepare(torch, setting)
    generator = torch.Generator().manual_seed(setting.seed)
    passes = -(-setting.samples // data.train.count)
    orders = [torch.randperm(data.train.count, generator=generator) for _ in range(passes)]
    # Workers start before the device is used: its contexts do not survive a fork.
    feed = _feed(torch, setting, data, torch.cat(orders)[: setting.samples])
    job = _job(torch, setting)
    counted = contention.read()
    rates, loss = _train(job, setting, feed)
    workers = torch.get_num_threads() if setting.device == "cpu" else None
    meanwhile = contention.between(counted, contention.read(), workers)
    accuracy = train.accuracy(job, eager.tensors(torch, data.test.first(TESTED), setting.device))
    dtypes = [] if setting.compile_backend else _dtypes(job, setting, data)
    # Preparation before the loop counts as part of an image's time, as it does in an epoch.
    seconds = 1 / statistics.median(rates) + feed.seconds / setting.samples
    return {
        "samples_per_second": 1 / seconds,
        "samples": setting.samples,
        "chunks": rates,
        "accuracy": accuracy,
        "loss": loss,
        # Its own worker processes also wait for CPUs, which looks like the work of others.
        "contention": None if setting.workers else meanwhile,
        "settings": {
            "threads": torch.get_num_threads(),
            "allocator": facts.allocator(),
            "workers": setting.workers,
            "start_method": feed.start_method,
            "batch": setting.batch,
            "dtypes": dtypes,
            "flush_denormal": setting.flush_denormal,
            "compile": setting.compile_backend,
            **setting.form.summary(),
        },
    }


def check_compile(setting: Setting, data: dataset.Dataset) -> Dict[str, Any]:
    """Check whether a compile backend is right here, with the gradient check of ``verify``."""
    device.require_nodes(setting.device)
    import torch

    backend = str(setting.compile_backend)
    tolerance = numerics.GRADIENT_TOLERANCE["float32"]
    _prepare(torch, setting)
    training = eager.tensors(torch, data.train, setting.device)
    bench = compilers.Bench(
        torch,
        setting.device,
        setting.form,
        training,
        eager.tensors(torch, data.test.first(TESTED), setting.device),
        numerics.trials(torch, training, numerics.TRIALS),
        tolerance,
    )
    outcome = compilers.measure(bench, backend, lambda done, total: None)
    _, detail = compilers.verdict(outcome, tolerance)
    passed = outcome.error is None and outcome.gradients_pass(tolerance)
    return {"backend": backend, "passed": passed, "detail": detail}


def _prepare(torch: Any, setting: Setting) -> None:
    for name in FALLBACK_VARIABLES:
        os.environ.pop(name, None)
    if threads.chosen_by_user(os.environ.get("OMP_NUM_THREADS")) is None:
        torch.set_num_threads(threads.decide(threads.fetch()))
    precision.prepare(torch, "float32")
    # Threads inherit the mode from the one that starts them, so it is set before any start.
    if setting.flush_denormal and not torch.set_flush_denormal(True):
        raise RuntimeError("this processor cannot flush denormal numbers to zero")


def _feed(torch: Any, setting: Setting, data: dataset.Dataset, order: Any) -> Feed:
    if setting.workers is None:
        return _from_device(torch, setting, data, order)
    # Starting workers is not timed: it is paid once per training, not for each image.
    dataloader = load(
        torch,
        eager.tensors(torch, data.train, "cpu"),
        order.tolist(),
        setting.batch,
        setting.workers,
        setting.start_method,
        pinned=ACCELERATORS[setting.device].pinned,
    )
    arrived = iter(dataloader)
    place = device_of(setting.device)

    def batches() -> Iterator[Tuple[Any, Any]]:
        for images, labels in arrived:
            moved = images.to(place, non_blocking=True)
            yield model.arrange(torch, moved, setting.form), labels.to(place)

    # The start method that really is in use.
    context = dataloader.multiprocessing_context if setting.workers else None
    return Feed(batches(), start_method=str(context.get_start_method()) if context else None)


def _from_device(torch: Any, setting: Setting, data: dataset.Dataset, order: Any) -> Feed:
    held = eager.tensors(torch, data.train, setting.device)
    device.synchronize(torch, setting.device)
    began = time.perf_counter()
    indices = order.to(device_of(setting.device))
    images = model.arrange(torch, eager.normalise(held.images[indices]), setting.form)
    labels = held.labels[indices]
    device.synchronize(torch, setting.device)
    pairs = zip(images.split(setting.batch), labels.split(setting.batch))  # noqa: B905 - not in 3.9
    return Feed(pairs, clock.since(began))


def _job(torch: Any, setting: Setting) -> eager.Job:
    job = eager.prepare(torch, setting.device, setting.form, setting.seed)
    if setting.ipex:
        eager.optimize_by_ipex(facts.load_extension("ipex"), job)
    if setting.bfloat16:
        autocast = torch.autocast(device_of(setting.device), dtype=torch.bfloat16)
        job.model.forward = autocast(job.model.forward)
    if setting.compile_backend == "zentorch":
        facts.load_extension("zentorch")
    if setting.compile_backend is not None:
        job.model = torch.compile(job.model, backend=setting.compile_backend, dynamic=False)
    job.model.train()
    return job


def _train(job: eager.Job, setting: Setting, feed: Feed) -> Tuple[List[float], float]:
    """Return the images per second of each timed chunk of steps, and the mean loss over them."""
    torch = job.torch
    rates = []
    for _ in range(setting.untimed):
        eager.step(job, *next(feed.batches))
    timed_steps = setting.samples // setting.batch - setting.untimed
    size = -(-timed_steps // CHUNKS)
    total = torch.zeros((), device=device_of(setting.device))
    for first in range(0, timed_steps, size):
        steps = min(size, timed_steps - first)
        device.synchronize(torch, setting.device)
        began = time.perf_counter()
        for _ in range(steps):
            total += eager.step(job, *next(feed.batches))
        device.synchronize(torch, setting.device)
        rates.append(steps * setting.batch / clock.since(began))
    return rates, float(total) / timed_steps


def _dtypes(job: eager.Job, setting: Setting, data: dataset.Dataset) -> List[str]:
    """Return the dtypes of tensors in a training step; they show whether bfloat16 took part."""
    few = eager.tensors(job.torch, data.train.first(train.BATCH), setting.device)
    images, labels = eager.batches(few, 1)[0]
    batch = model.arrange(job.torch, images, job.form)
    return sorted({dtype for _, dtype in eager.observe(job, batch, labels)})


# ---- data loading in worker processes, as users of DataLoader do it
#
# Workers find these names by importing this module, so they must not be closures or names of
# ``__main__``: spawned workers import them from the zipapp.


class Images:
    """Images and labels in memory; an image is converted and normalised on access."""

    def __init__(self, data: Tensors) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data.labels)

    def __getitem__(self, index: int) -> Tuple[Any, int]:
        return eager.normalise(self._data.images[index]), int(self._data.labels[index])


def begin_worker(isolated: bool, bytecode: Optional[str], worker: int) -> None:
    """Set up a worker: require its parent's isolation, and use one thread.

    Workers run side by side; threads of their own would compete.
    """
    start.require_like(isolated, bytecode)
    import torch

    torch.set_num_threads(1)


def load(
    torch: Any,
    data: Tensors,
    order: List[int],
    batch: int,
    workers: int,
    method: Optional[str],
    *,
    pinned: bool,
) -> Any:
    """Return a DataLoader over full batches of ``order``, which are indices into ``data``.

    ``method`` is the start method of the workers: fork, forkserver or spawn; it has no effect
    without workers.
    """
    alike = partial(begin_worker, bool(sys.flags.isolated), sys.pycache_prefix)
    return torch.utils.data.DataLoader(
        Images(data),
        batch_size=batch,
        sampler=order,
        drop_last=True,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        worker_init_fn=alike if workers else None,
        pin_memory=pinned,
    )
