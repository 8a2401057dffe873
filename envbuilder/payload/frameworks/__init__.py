"""The frameworks that the payload can verify, each described by a row and a module."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Optional, Tuple

if TYPE_CHECKING:
    from ..interface import Framework


@dataclass(frozen=True)
class Row:
    """The information about a framework that is needed before its import."""

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
    """Return a framework's name for use in sentences. Return an unknown name unchanged."""
    return FRAMEWORKS[name].title if name in FRAMEWORKS else name


def load(name: str, accelerator: str, threads: Optional[int]) -> Framework:
    """Import a framework for use with an accelerator and return it.

    ``threads``, if given, is the number of threads per operator. Errors raised by the import are
    passed on.
    """
    module = import_module(f".{FRAMEWORKS[name].module}", __name__)
    framework: Framework = module.load(accelerator, threads)
    return framework
