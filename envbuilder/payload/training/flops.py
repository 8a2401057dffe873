"""Floating-point operations of an epoch, counted from the network's layers.

A multiplication and an addition count as two. Only convolutions and linear layers are counted;
everything else in this network is below one per cent of them. Each has three products of the same
size: the result, the weight's gradient, and the input's gradient. The images need no gradient, so
the first layer has two.
"""

from __future__ import annotations

from typing import Any, List

from . import model
from .dataset import SIDE


def training_flops(torch: Any, images: int) -> int:
    """Return the operations of one training pass over ``images`` images."""
    layers = forward_flops(torch)
    return images * (3 * sum(layers) - layers[0])


def forward_flops(torch: Any) -> List[int]:
    """Return the operations for one image, by layer, in the network's published form."""
    nn, side, counts = torch.nn, SIDE, []
    for layer in model.build(torch, 1, model.PUBLISHED).children():
        if isinstance(layer, nn.Conv2d):
            side -= layer.kernel_size[0] - 1
            counts.append(2 * side * side * layer.weight.numel())
        elif isinstance(layer, nn.MaxPool2d):
            side //= layer.kernel_size
        elif isinstance(layer, nn.Linear):
            counts.append(2 * layer.weight.numel())
    return counts
