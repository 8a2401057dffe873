"""Floating-point operations of an epoch, counted from the network's layers.

A multiplication and an addition count as two. Only convolutions and linear layers are counted;
everything else in this network is below one per cent of them. Each has three products of the same
size: the result, the weight's gradient, and the input's gradient. The images need no gradient, so
the first layer has two.
"""

from __future__ import annotations

import math
from typing import List

from .dataset import SIDE
from .layers import WEIGHTS


def training_flops(images: int) -> int:
    """Return the operations of one training pass over ``images`` images."""
    layers = forward_flops()
    return images * (3 * sum(layers) - layers[0])


def forward_flops() -> List[int]:
    """Return the operations for one image, by layer: a convolution repeats its own per pixel."""
    side, counts = SIDE, []
    for shape in WEIGHTS.values():
        pixels = 1
        if len(shape) > 2:
            side -= shape[0] - 1
            pixels = side * side
        counts.append(2 * pixels * math.prod(shape))
    return counts
