"""The network's parameters for frameworks that compute with arrays: shapes and initial values.

Convolutions have weights (rows, columns, channels, outputs) and linear layers (inputs, outputs).
Images are (N, rows, columns, channels), and are flattened in this order.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Tuple

WEIGHTS = {
    "conv1": (3, 3, 1, 32),
    "conv2": (3, 3, 32, 64),
    "fc1": (9216, 128),
    "fc2": (128, 10),
}

NAMES = tuple(f"{layer}.{part}" for layer in WEIGHTS for part in ("weight", "bias"))
SHARES: Tuple[float, float] = (0.25, 0.5)
"""Fractions that the two dropouts drop: of the pooled images, and of what leaves fc1."""
DROPPED = ((12, 12, 64), (128,))
"""Shapes of one image's values that they drop from."""


def initial(numpy: Any, seed: int) -> Dict[str, Any]:
    """Draw weights and biases in float32, uniformly as torch does: up to 1 / √inputs of a neuron.

    They are drawn by numpy on the CPU, so that they are the same on every device.
    """
    generator = numpy.random.default_rng(seed)
    result = {}
    for layer, shape in WEIGHTS.items():
        bound = 1 / math.sqrt(math.prod(shape[:-1]))
        for name, size in ((f"{layer}.weight", shape), (f"{layer}.bias", shape[-1:])):
            result[name] = generator.uniform(-bound, bound, size).astype(numpy.float32)
    return result
