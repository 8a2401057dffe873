"""Floating-point operations of an epoch, counted from the network's layers.

A multiplication and an addition count as two. Only convolutions and linear layers are counted;
everything else in this network is below one per cent of them. Each has three products of the same
size: the result, the weight's gradient, and the input's gradient. The images need no gradient, so
the first layer has two.
"""

from __future__ import annotations

from typing import List

from .dataset import CLASSES, SIDE

KERNEL = 3
CHANNELS = (1, 32, 64)
HIDDEN = 128


def training_flops(images: int) -> int:
    """Return the operations of one training pass over ``images`` images."""
    layers = forward_flops()
    return images * (3 * sum(layers) - layers[0])


def forward_flops() -> List[int]:
    """Return the operations for one image, by layer."""
    side, counts = SIDE, []
    for number, channels in enumerate(CHANNELS[1:]):
        side -= KERNEL - 1
        counts.append(2 * side * side * channels * CHANNELS[number] * KERNEL**2)
    pooled = CHANNELS[-1] * (side // 2) ** 2
    return [*counts, 2 * pooled * HIDDEN, 2 * HIDDEN * CLASSES]
