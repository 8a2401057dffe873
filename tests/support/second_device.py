"""A second device for PyTorch, of kind `other`: its tensors lie on the CPU and say they do not.

    import second_device

Each operator runs on the tensors below. It has what trainings need: views, in-place operators,
autograd, `.to("other")`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as tree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

KIND = "other"


class OnOther(torch.Tensor):
    """A tensor of the second device; `below` holds its numbers."""

    below: torch.Tensor

    @staticmethod
    def of(below: torch.Tensor) -> OnOther:
        """Return a tensor of the second device over one of the CPU."""
        made = torch.Tensor._make_wrapper_subclass(
            OnOther,
            below.shape,
            strides=below.stride(),
            storage_offset=below.storage_offset(),
            dtype=below.dtype,
            device=f"{KIND}:0",
        )
        made.below = below
        return made

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        """Run an operator that gets such a tensor."""
        return _run(operator, *arguments, **(options or {}))


def _below(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type == KIND:
        return value.below
    if isinstance(value, torch.device) and value.type == KIND:
        return torch.device("cpu")
    return value


def _run(operator: Any, *arguments: Any, **options: Any) -> Any:
    """Run an operator on the tensors below; what is on the second device stays there."""
    given = {
        id(value.below): value
        for value in tree.tree_leaves((arguments, options))
        if isinstance(value, torch.Tensor) and value.device.type == KIND
    }
    leaves = tree.tree_leaves((arguments, options))
    target = next((v for v in leaves if isinstance(v, torch.device)), None)
    arguments, options = tree.tree_map(_below, (arguments, options))
    out = operator(*arguments, **options)
    if target is not None and target.type == "cpu":
        return out

    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return given.get(id(value)) if id(value) in given else OnOther.of(value)

    return tree.tree_map(wrapped, out)


_setup_privateuseone_for_python_backend(KIND)
_library = torch.library.Library("_", "IMPL")
_library.fallback(_run, dispatch_key="PrivateUse1")
