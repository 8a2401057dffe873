"""An accelerator whose every operation runs on the CPU without a word, and whose memory "grows"."""

from __future__ import annotations

import itertools
from typing import Any

import torch

ACCELERATORS = ("mps", "cuda")
held = itertools.count(0, 1 << 30)


def here(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple("cpu" if given in ACCELERATORS else given for given in arguments)


def on_the_cpu(real: Any) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        if options.get("device") in ACCELERATORS:
            options["device"] = "cpu"
        return real(*here(arguments), **options)

    return call


def allocated() -> int:
    return next(held)


for name in ("arange", "ones", "zeros", "rand", "randn", "empty"):
    setattr(torch, name, on_the_cpu(getattr(torch, name)))
for kind in (torch.Tensor, torch.nn.Module):
    kind.to = on_the_cpu(kind.to)
torch.backends.mps.is_built = torch.backends.mps.is_available = lambda: True
torch.__version__ = torch.__version__.partition("+")[0]  # as Macs' wheels have it
torch.mps.synchronize = lambda: None
torch.mps.recommended_max_memory = lambda: 1 << 34
torch.mps.current_allocated_memory = allocated
