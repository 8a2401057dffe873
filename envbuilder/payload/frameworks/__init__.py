"""The frameworks that the payload can judge: a row and a module each."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Optional, Tuple

if TYPE_CHECKING:
    from ..interface import Framework


@dataclass(frozen=True)
class Row:
    """What must be known of a framework before it is imported."""

    title: str
    """Its name in sentences."""
    module: str
    """Module of this package with its ``load``."""
    checks: Tuple[str, ...] = ()
    """Checks of its own that every verification must run."""


FRAMEWORKS = {
    "torch": Row("PyTorch", "torch_", checks=("arithmetic",)),
    "jax": Row("JAX", "jax_"),
    "tensorflow": Row("TensorFlow", "tensorflow_"),
}


def title(name: str) -> str:
    """Return a framework's name in sentences; an unknown one as it is."""
    return FRAMEWORKS[name].title if name in FRAMEWORKS else name


def load(name: str, accelerator: str, threads: Optional[int]) -> Framework:
    """Import a framework for an accelerator, with this many threads an operator if stated.

    Raises what its import raises.
    """
    module = import_module(f".{FRAMEWORKS[name].module}", __name__)
    framework: Framework = module.load(accelerator, threads)
    return framework
