"""One trial: part of the real training under one setting, timed.

The thread count and the allocator are fixed for a process, so each trial is a separate process. The
workload is the one that is verified: the same network, optimizer, order of images and conversion to
float32.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .machine import clock, contention, device, facts, threads
from .machine.accelerators import FALLBACK_VARIABLES, device_of
from .numerics import compilers, numerics, precision
from .training import dataset, eager, model, train

CHUNKS = 10
TESTED = 2_000
"""Images on which accuracy is measured."""
Batches = Iterator[Tuple[Any, Any]]
"""Images and labels on the device."""


@dataclass(frozen=True)
class Setting:
    """One setting to try, and how long to train under it."""

    device: str
    form: model.Form
    steps: int
    warm_up: int
    seed: int = 1
    batch: int = train.BATCH
    bfloat16: bool = False
    compile_backend: Optional[str] = None
    ipex: bool = False

    @property
    def samples(self) -> int:
        """The number of images to train on, including the warm-up.

        It is the number of images in ``warm_up`` plus ``steps`` batches of 64, rounded to full
        batches of the setting's size.
        """
        return max(2, (self.warm_up + self.steps) * train.BATCH // self.batch) * self.batch

    @property
    def untimed(self) -> int:
        """The number of warm-up steps, before the clock starts."""
        return max(1, self.warm_up * train.BATCH // self.batch)


def run(setting: Setting, data: dataset.Dataset) -> Dict[str, Any]:
    """Train under the setting, and return the measurements and the settings really in effect.

    Raise RuntimeError, ValueError or ImportError if the setting is not available on this machine.
    """
    device.require_nodes(setting.device)
    import torch

    _prepare(torch, setting)
    generator = torch.Generator().manual_seed(setting.seed)
    passes = -(-setting.samples // data.train.count)
    orders = [torch.randperm(data.train.count, generator=generator) for _ in range(passes)]
    order = torch.cat(orders)[: setting.samples]
    batches, prepared = _batches(torch, setting, data, order)
    job = _job(torch, setting)
    counted = contention.read()
    rates, loss = _train(job, setting, batches)
    workers = torch.get_num_threads() if setting.device == "cpu" else None
    meanwhile = contention.between(counted, contention.read(), workers)
    accuracy = train.accuracy(job, eager.tensors(torch, data.test.first(TESTED), setting.device))
    dtypes = [] if setting.compile_backend else _dtypes(job, setting, data)
    # Preparation before the loop counts as part of an image's time, as it does in an epoch.
    seconds = 1 / statistics.median(rates) + prepared / setting.samples
    return {
        "samples_per_second": 1 / seconds,
        "samples": setting.samples,
        "chunks": rates,
        "accuracy": accuracy,
        "loss": loss,
        "contention": meanwhile,
        "settings": {
            "threads": torch.get_num_threads(),
            "allocator": facts.allocator(),
            "batch": setting.batch,
            "dtypes": dtypes,
            "compile": setting.compile_backend,
            **setting.form.summary(),
        },
    }


def check_compile(setting: Setting, data: dataset.Dataset) -> Dict[str, Any]:
    """Run ``verify``'s gradient check for the setting's compile backend, and return its result."""
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
        numerics.trials(torch, training),
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


def _batches(
    torch: Any, setting: Setting, data: dataset.Dataset, order: Any
) -> Tuple[Batches, float]:
    """Prepare the batches on the device. Return them and the seconds that the preparation took."""
    held = eager.tensors(torch, data.train, setting.device)
    device.synchronize(torch, setting.device)
    began = time.perf_counter()
    indices = order.to(device_of(setting.device))
    images = model.arrange(torch, eager.normalise(held.images[indices]), setting.form)
    labels = held.labels[indices]
    device.synchronize(torch, setting.device)
    pairs = zip(images.split(setting.batch), labels.split(setting.batch))  # noqa: B905 - not in 3.9
    return pairs, clock.since(began)


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


def _train(job: eager.Job, setting: Setting, batches: Batches) -> Tuple[List[float], float]:
    """Train, and return the speed of each timed chunk of steps and the mean loss of these steps.

    The speed is in images per second.
    """
    torch = job.torch
    rates = []
    for _ in range(setting.untimed):
        eager.step(job, *next(batches))
    timed_steps = setting.samples // setting.batch - setting.untimed
    size = -(-timed_steps // CHUNKS)
    total = torch.zeros((), device=device_of(setting.device))
    for first in range(0, timed_steps, size):
        steps = min(size, timed_steps - first)
        device.synchronize(torch, setting.device)
        began = time.perf_counter()
        for _ in range(steps):
            total += eager.step(job, *next(batches))
        device.synchronize(torch, setting.device)
        rates.append(steps * setting.batch / clock.since(began))
    return rates, float(total) / timed_steps


def _dtypes(job: eager.Job, setting: Setting, data: dataset.Dataset) -> List[str]:
    """Return the dtypes of the tensors in a training step.

    They show whether bfloat16 was really used.
    """
    few = eager.tensors(job.torch, data.train.first(train.BATCH), setting.device)
    images, labels = eager.batches(few, 1)[0]
    batch = model.arrange(job.torch, images, job.form)
    return sorted({dtype for _, dtype in eager.observe(job, batch, labels)})
