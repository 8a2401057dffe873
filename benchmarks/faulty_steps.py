"""Faults in the training steps of torch that let it learn: what do the gates refuse?

Each function changes a job before its training. Those of the numerical checks are not here: wrong
gradients alone, for example, are found without a training.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from envbuilder.payload.training import eager, model


def update_skipped(job: Any) -> None:
    """Every second update is skipped."""
    step = job.optimizer.step
    numbers = count()
    job.optimizer.step = lambda: step() if next(numbers) % 2 else None


def gradients_before(job: Any) -> None:
    """Each update takes the gradients of the step before."""
    step = job.optimizer.step
    stored: dict[int, Any] = {}

    def stale() -> None:
        for number, parameter in enumerate(job.model.parameters()):
            fresh = parameter.grad.clone()
            parameter.grad = stored.get(number, fresh)
            stored[number] = fresh
        step()

    job.optimizer.step = stale


def gradients_kept(job: Any) -> None:
    """`zero_grad` has no effect."""
    job.optimizer.zero_grad = lambda: None


def not_shuffled(job: Any) -> None:
    """Each epoch takes the images in their order."""

    def shuffle(data: Any) -> None:
        job.model.train()
        job.order = job.torch.arange(len(data.labels))
        images = model.arrange(job.torch, eager.normalise(data.images), job.form)
        job.shuffled = images, data.labels

    job.shuffle = shuffle


def half_batches(job: Any) -> None:
    """The second half of each batch takes no part."""
    step = job.step
    job.step = lambda first, size: step(first, size // 2)


def rounded_weights(job: Any) -> None:
    """After each update the weights are rounded to bfloat16."""
    step = job.optimizer.step

    def rounded() -> None:
        step()
        for parameter in job.model.parameters():
            parameter.data = parameter.data.bfloat16().float()

    job.optimizer.step = rounded


def no_schedule(job: Any) -> None:
    """The learning rate stays as it is."""
    job.scheduler.step = lambda: None


def slow(job: Any) -> None:
    """The learning rate is a fifth."""
    for group in job.optimizer.param_groups:
        group["lr"] *= 0.2


def leaky(job: Any) -> None:
    """ReLU lets a hundredth of negative values through."""
    for name in ("relu1", "relu2", "relu3"):
        setattr(job.model, name, job.torch.nn.LeakyReLU(0.01))


def convolutions_stand_still(job: Any) -> None:
    """The convolutions do not learn."""
    for name in ("conv1", "conv2"):
        getattr(job.model, name).requires_grad_(False)


FAULTS = {
    function.__name__: function
    for function in (
        update_skipped,
        gradients_before,
        gradients_kept,
        not_shuffled,
        half_batches,
        rounded_weights,
        no_schedule,
        slow,
        leaky,
        convolutions_stand_still,
    )
}
