"""Comparison of two trainings from one seed: whether they give the same weights.

Reported, not judged: cuDNN and MPS choose kernels and orders of summation for speed, and equal
results must be requested. A difference comes from the random numbers or from the arithmetic.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

from ..training import train

if TYPE_CHECKING:
    from ..training.train import Job

STEPS, QUICK_STEPS = 20, 5


def compare(make: Callable[[], Job], batches: List[Tuple[Any, Any]]) -> Dict[str, Any]:
    """Return the report's ``determinism``: train twice on the same batches and compare the weights.

    ``make`` prepares a new job from one seed. The largest absolute difference of two weights is
    infinite if a weight is not finite.
    """
    first, second = (_weights(make(), batches) for _ in range(2))
    largest = 0.0
    for name, values in first.items():
        difference = float((values - second[name]).abs().max())
        largest = max(largest, difference if math.isfinite(difference) else math.inf)
    return {"steps": len(batches), "equal": largest == 0.0, "largest_difference": largest}


def _weights(job: Job, batches: List[Tuple[Any, Any]]) -> Dict[str, Any]:
    job.model.train()
    for images, labels in batches:
        train.step(job, images, labels)
    return {name: value.detach().cpu().double() for name, value in job.model.state_dict().items()}
