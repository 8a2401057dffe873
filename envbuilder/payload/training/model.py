"""The network of PyTorch's MNIST example, in its published form or an equal, faster one.

Source: pytorch/examples, mnist/main.py. ReLU and max-pool commute exactly, because ReLU never
decreases; pooling first leaves ReLU a quarter of the numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Tuple

from . import dropout, layers


@dataclass(frozen=True)
class Form:
    """How the same function is computed: order of two layers, memory layout, dropout masks."""

    pool_first: bool
    channels_last: bool
    byte_masks: bool = False

    def summary(self) -> Dict[str, Any]:
        """Return the report's entries on what differs from the published form."""
        return {
            "reordered": "max-pool before relu" if self.pool_first else None,
            "memory_format": "channels_last" if self.channels_last else "contiguous",
            "dropout": "masks drawn as bytes" if self.byte_masks else None,
        }

    def for_compilers(self) -> Form:
        """Return the form for `torch.compile`, whose generated code draws the dropout masks."""
        return replace(self, byte_masks=False)


PUBLISHED = Form(pool_first=False, channels_last=False)


def fastest(accelerator: str) -> Form:
    """Return the form to train in.

    channels_last is used only on the CPU, where it was measured to be faster. Other devices draw
    dropout masks in parallel.
    """
    cpu = accelerator == "cpu"
    return Form(pool_first=True, channels_last=cpu, byte_masks=cpu)


def build(torch: Any, seed: int, form: Form, shares: Tuple[float, float] = layers.SHARES) -> Any:
    """Build a new network on the CPU; the same seed gives the same weights in every form."""
    nn = torch.nn
    torch.manual_seed(seed)
    pool = ("pool", nn.MaxPool2d(2))
    relu = ("relu2", nn.ReLU())
    stack: List[Tuple[str, Any]] = [
        ("conv1", nn.Conv2d(1, 32, 3)),
        ("relu1", nn.ReLU()),
        ("conv2", nn.Conv2d(32, 64, 3)),
        *([pool, relu] if form.pool_first else [relu, pool]),
        ("dropout1", drop(torch, shares[0], form)),
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(9216, 128)),
        ("relu3", nn.ReLU()),
        ("dropout2", drop(torch, shares[1], form)),
        ("fc2", nn.Linear(128, 10)),
        ("log_softmax", nn.LogSoftmax(dim=1)),
    ]
    model = nn.Sequential(OrderedDict(stack))
    return arrange(torch, model, form)


def drop(torch: Any, share: float, form: Form) -> Any:
    """Return the dropout layer of a form."""
    return dropout.layer(torch, share) if form.byte_masks else torch.nn.Dropout(share)


def arrange(torch: Any, value: Any, form: Form) -> Any:
    """Return a model or a batch of images in the form's memory layout."""
    if not form.channels_last:
        return value
    if isinstance(value, torch.nn.Module):
        return value.to(memory_format=torch.channels_last)
    return value.contiguous(memory_format=torch.channels_last)
