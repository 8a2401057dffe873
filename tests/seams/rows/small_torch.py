"""A framework that counts steps, and nothing else: the source of the wheels called torch."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

Hooks = list[Any]
BEFORE: Hooks = []
AFTER: Hooks = []


def _module(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
    return module


class Tensor:
    """A tensor that holds nothing."""


class Optimizer:
    """An optimizer without parameters."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []

    def step(self) -> None:
        """Call what was registered, as torch does."""
        for hook in BEFORE:
            hook(self, (), {})
        for hook in AFTER:
            hook(self, (), {})


def is_grad_enabled() -> bool:
    """Return whether gradients are recorded."""
    return True


def get_num_threads() -> int:
    """Return how many threads operators use."""
    return 1


def train(steps: int = 50) -> None:
    """Train so many steps."""
    optimizer = Optimizer()
    for _ in range(steps):
        optimizer.step()


if __name__ == "torch":
    cuda = _module("torch.cuda", is_initialized=lambda: False, is_available=lambda: False)
    _C = _module("torch._C", _len_torch_dispatch_stack=lambda: 0)
    _dispatch = _module(
        "torch.utils._python_dispatch",
        _get_current_dispatch_mode=lambda: None,
        _disable_current_modes=contextlib.nullcontext,
    )
    utils = _module("torch.utils", _python_dispatch=_dispatch)
    _hooks = _module(
        "torch.optim.optimizer",
        register_optimizer_step_pre_hook=BEFORE.append,
        register_optimizer_step_post_hook=AFTER.append,
    )
    optim = _module("torch.optim", optimizer=_hooks, Optimizer=Optimizer)
    autograd = _module("torch.autograd", _profiler_enabled=lambda: True)
