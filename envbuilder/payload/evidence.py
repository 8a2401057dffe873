"""What the frameworks' modules observe, and what it says: the same data for each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Tuple

TOP = 15
"""Maximum number of kernels that the report names."""


@dataclass(frozen=True)
class Kernel:
    """One operator or device kernel: its name, self time in microseconds, and which side ran it."""

    name: str
    microseconds: float
    on_device: bool


@dataclass(frozen=True)
class Observation:
    """The kernels that the profiler saw."""

    kernels: Tuple[Kernel, ...]

    def on_device(self) -> List[Kernel]:
        """Return the kernels that a device other than the CPU ran."""
        return [kernel for kernel in self.kernels if kernel.on_device]

    def matching(self, prefix: str) -> List[str]:
        """Return the names of kernels that begin with ``prefix``."""
        return sorted({k.name for k in self.kernels if k.name.startswith(prefix)})

    def top(self) -> List[str]:
        """Return the names of the most expensive kernels: the device's own if there are any."""
        chosen = self.on_device() or list(self.kernels)
        names = [k.name for k in sorted(chosen, key=lambda k: -k.microseconds)]
        return list(dict.fromkeys(names))[:TOP]


@dataclass
class Errors:
    """Largest error of each case in one dtype, and the cases that the device does not support."""

    dtype: str
    tolerance: float
    by_case: Dict[str, float] = field(default_factory=dict)
    lacking: List[str] = field(default_factory=list)

    def wrong(self) -> List[str]:
        """Return a phrase for each case outside the tolerance."""
        return [
            f"{self.dtype} {name} (relative error {error:.1e})"
            for name, error in self.by_case.items()
            if not error <= self.tolerance
        ]

    def phrase(self) -> str:
        """Return a short summary of the cases that ran."""
        if not self.by_case:
            return f"no {self.dtype} on this device"
        text = (
            f"{self.dtype} {len(self.by_case)} cases, largest relative error "
            f"{max(self.by_case.values()):.1e} (tolerance {self.tolerance:.0e})"
        )
        lacking = f", not offered: {', '.join(self.lacking)}" if self.lacking else ""
        return text + lacking


@dataclass(frozen=True)
class Comparison:
    """Largest errors over all trials: of the loss, and of each parameter's gradient."""

    loss: float
    gradients: Dict[str, float]

    def worst(self) -> Tuple[str, float]:
        """Return name and error of the largest difference; in a tie, that nearest to the input."""
        name = max(self.gradients, key=lambda key: self.gradients[key])
        if self.loss > self.gradients[name]:
            return "loss", self.loss
        return name, self.gradients[name]

    def passed(self, tolerance: float) -> bool:
        """Return whether the loss and all gradients are within the tolerance."""
        return self.worst()[1] <= tolerance
