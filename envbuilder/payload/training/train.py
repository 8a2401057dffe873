"""Training and testing, with timings that leave nothing out, for any framework.

Images stay on the device as unsigned bytes. Each epoch begins by shuffling the images, converting
them to float32 and normalizing them, all at once; ``data_seconds`` is the time until this has
finished on the device. ``compute_seconds`` is the rest of the pass up to the end of the last step:
938 times forward, loss, backward and optimizer step. ``seconds`` is their sum, the time of the
whole training pass without evaluation. It includes everything that PyTorch's example does in an
epoch, and nothing is prepared in advance.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional

from ..interface import Curve, Job, Scores, Tensors
from ..machine import clock

BATCH = 64
TEST_BATCH = 1000
LEARNING_RATE = 1.0
GAMMA = 0.7
RHO = 0.9
EPSILON = 1e-6
"""Adadelta's, as in torch."""
MEAN = 0.1307
DEVIATION = 0.3081
POINTS = 200
"""Maximum number of points of a loss curve."""

Progress = Callable[[int, int, Callable[[], float]], None]
"""Receives the steps done, all steps, and a function that fetches the loss of the last step."""


def curve(images: int, epochs: int) -> Curve:
    """Return an empty curve that will have at most ``POINTS`` points after ``epochs`` epochs."""
    return Curve(every=max(1, -(-epochs * steps_of(images) // POINTS)))


def steps_of(images: int) -> int:
    """Return the number of steps in an epoch. The last step may have a smaller batch."""
    return -(-images // BATCH)


def first_batches(images: int, count: int) -> List[slice]:
    """Return the slices of the first ``count`` full batches.

    If there are fewer full batches, they are repeated.
    """
    full = max(1, images // BATCH)
    return [slice(n % full * BATCH, (n % full + 1) * BATCH) for n in range(count)]


def epoch(
    job: Job, data: Tensors, progress: Progress, step: Optional[Callable[..., Any]] = None
) -> Dict[str, float]:
    """Train on every image once, and return the timings in seconds and the mean loss.

    ``step``, if given, replaces ``Job.step`` and receives the job as its first argument. Losses
    stay on the device until the end, because fetching a number would wait for the device.
    """
    count = len(data.labels)
    sizes = [min(BATCH, count - first) for first in range(0, count, BATCH)]
    waiting: List[Any] = []
    job.wait()
    began = time.perf_counter()
    job.shuffle(data)
    job.wait()
    data_seconds = clock.since(began)
    for number, size in enumerate(sizes):
        batch = number * BATCH, size
        loss = step(job, *batch) if step else job.step(*batch)
        waiting.append(loss)
        if job.on_first_step is not None:
            job.wait(loss)
            job.on_first_step()
            job.on_first_step = None
        progress(number + 1, len(sizes), partial(_fetched, job, loss))
    job.wait(waiting)
    seconds = clock.since(began)
    job.decay()
    losses = job.fetch(waiting)
    if job.curve is not None:
        job.curve.add(losses)
    return {
        "seconds": seconds,
        "data_seconds": data_seconds,
        "compute_seconds": seconds - data_seconds,
        "samples_per_second": count / seconds,
        "loss": sum(loss * size for loss, size in zip(losses, sizes)) / count,  # noqa: B905
    }


def _fetched(job: Job, loss: Any) -> float:
    return job.fetch([loss])[0]


def classes(scores: Scores) -> List[int]:
    """Return the most probable class of each image."""
    return [row.index(max(row)) for row in scores]


def accuracy(job: Job, data: Tensors) -> float:
    """Return the fraction of images that the network classifies correctly."""
    labels = job.labels(data)
    answers: List[int] = []
    for scores in job.predict(data.images):
        answers += classes(scores)
    return sum(map(int.__eq__, answers, labels)) / len(labels)
