"""Comparison of two trainings from one seed: whether they give the same weights.

Reported, not judged: cuDNN and MPS choose kernels and orders of summation for speed, and equal
results must be requested. A difference comes from the random numbers or from the arithmetic.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    from ..interface import Framework

STEPS, QUICK_STEPS = 20, 5


def compare(framework: Framework, seed: int, batches: List[Any]) -> Dict[str, Any]:
    """Return the report's ``determinism``: train twice on the same batches and compare the weights.

    The largest absolute difference of two weights is infinite if a weight is not finite.
    """
    first, second = (_weights(framework, seed, batches) for _ in range(2))
    largest = 0.0
    for name, values in first.items():
        difference = framework.largest(values - second[name])
        largest = max(largest, difference if math.isfinite(difference) else math.inf)
    return {"steps": len(batches), "equal": largest == 0.0, "largest_difference": largest}


def _weights(framework: Framework, seed: int, batches: List[Any]) -> Dict[str, Any]:
    job = framework.job(seed)
    for batch in batches:
        job.train(batch)
    return job.weights()
