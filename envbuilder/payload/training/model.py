"""The network of PyTorch's MNIST example: its parameters, and the forms in which torch computes it.

Source: pytorch/examples, mnist/main.py. ReLU and max-pool commute exactly, because ReLU never
decreases. If pooling is done first, ReLU has only a quarter of the numbers to process.

Frameworks other than torch compute with arrays. The weights of convolutions have the shape (rows,
columns, channels, outputs), and those of linear layers have the shape (inputs, outputs). Images
have the shape (N, rows, columns, channels), and are flattened in this order.

On the CPU, torch draws the masks of its own dropout in one thread, with a 64-bit number for each
element. This takes 4 of the 24 ms of a training step with torch 2.13.0+cpu
(docs/evidence/benchmarks.md). Eight elements can share one number, since a quarter and a half are
multiples of 1/256: a byte is below 64 with a probability of exactly a quarter.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

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
    """Return random float32 weights and biases, distributed as in torch.

    The distribution is uniform between ±1 / √n for a neuron with n inputs. The numbers are drawn by
    NumPy on the CPU, so that they are the same on every device.
    """
    generator = numpy.random.default_rng(seed)
    result = {}
    for layer, shape in WEIGHTS.items():
        bound = 1 / math.sqrt(math.prod(shape[:-1]))
        for name, size in ((f"{layer}.weight", shape), (f"{layer}.bias", shape[-1:])):
            result[name] = generator.uniform(-bound, bound, size).astype(numpy.float32)
    return result


@dataclass(frozen=True)
class Form:
    """How the same function is computed: the order of two layers, memory layout, dropout masks."""

    pool_first: bool
    channels_last: bool
    byte_masks: bool = False

    def summary(self) -> Dict[str, Any]:
        """Return the report's entries for the differences from the published form."""
        return {
            "reordered": "max-pool before relu" if self.pool_first else None,
            "memory_format": "channels_last" if self.channels_last else "contiguous",
            "dropout": "masks drawn as bytes" if self.byte_masks else None,
        }


PUBLISHED = Form(pool_first=False, channels_last=False)


def fastest(accelerator: str) -> Form:
    """Return the fastest form for training on an accelerator.

    channels_last and byte masks are used only on the CPU. channels_last was measured to be faster
    there. Other devices draw dropout masks in parallel, so byte masks would not help them.
    """
    cpu = accelerator == "cpu"
    return Form(pool_first=True, channels_last=cpu, byte_masks=cpu)


def build(torch: Any, seed: int, form: Form, shares: Tuple[float, float] = SHARES) -> Any:
    """Build a new network on the CPU. The same seed gives the same weights in every form."""
    nn = torch.nn
    torch.manual_seed(seed)
    pool = ("pool", nn.MaxPool2d(2))
    relu = ("relu2", nn.ReLU())
    stack: List[Tuple[str, Any]] = [
        ("conv1", nn.Conv2d(1, 32, 3)),
        ("relu1", nn.ReLU()),
        ("conv2", nn.Conv2d(32, 64, 3)),
        *([pool, relu] if form.pool_first else [relu, pool]),
        ("dropout1", dropout(torch, shares[0], form)),
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(9216, 128)),
        ("relu3", nn.ReLU()),
        ("dropout2", dropout(torch, shares[1], form)),
        ("fc2", nn.Linear(128, 10)),
        ("log_softmax", nn.LogSoftmax(dim=1)),
    ]
    return arrange(torch, nn.Sequential(OrderedDict(stack)), form)


def dropout(torch: Any, share: float, form: Form) -> Any:
    """Return the dropout layer of a form."""
    return byte_dropout(torch, share) if form.byte_masks else torch.nn.Dropout(share)


def arrange(torch: Any, value: Any, form: Form) -> Any:
    """Return a model or a batch of images in the form's memory layout."""
    if not form.channels_last:
        return value
    if isinstance(value, torch.nn.Module):
        return value.to(memory_format=torch.channels_last)
    return value.contiguous(memory_format=torch.channels_last)


def drop(torch: Any, values: Any, share: float) -> Any:
    """Set each value to 0 with probability ``share``, and divide the others by 1 - ``share``.

    ``values`` must be dense. The result has the same shape and memory layout. ``share`` is a
    multiple of 1/256 below 1.
    """
    numbers = torch.empty(-(-values.numel() // 8), dtype=torch.int64, device=values.device)
    # Over all 64 bits; without a lower bound, random_() leaves the sign bit 0.
    drawn = numbers.random_(-(2**63), None).view(torch.uint8)[: values.numel()]
    # The same memory layout as the values', so that multiplication is sequential.
    dense = torch.empty_like(values)
    drawn = drawn.as_strided(dense.shape, dense.stride())
    mask = (drawn >= int(share * 256)).to(values.dtype)
    return values * mask.mul_(1 / (1 - share))


def byte_dropout(torch: Any, share: float) -> Any:
    """Return a module like `torch.nn.Dropout`; ``share`` is a multiple of 1/256 below 1."""

    class ByteDropout(torch.nn.Module):  # type: ignore[misc]
        def forward(self, values: Any) -> Any:
            return drop(torch, values, share) if self.training and share else values

    return ByteDropout()
