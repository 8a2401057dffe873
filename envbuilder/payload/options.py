"""What a verification was asked to do, and the defaults that depend on the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional, Tuple

from .report import BLIND_TEST, REQUIRED
from .start import AS_FOUND, Start

if TYPE_CHECKING:
    from pathlib import Path

    from .training.dataset import Dataset

MIN_ACCURACY = 0.975
"""After one epoch of MNIST. Published runs of this network reach 98.1 % or more."""

SUBSET_EPOCHS = 3
SUBSET_MIN_ACCURACY = (0.85, 0.90, 0.92)
"""After one, two, and three or more epochs of 3,000 images, tested on 1,000.

Measured on the CPU with torch 2.13.0: seeds 1 to 8 on the shipped subset and on MNIST's first
images, 16 runs, give 89.2-93.2 %, 93.1-95.1 % and 93.8-95.9 %. With convolutions that do not learn
(what a wrong gradient did in one build) six runs gave at most 77.4 %, 85.3 % and 86.9 %.
"""

LOSS_AT_NO_ERROR, LOSS_PER_ERROR = 0.2, 8.8
"""The mean training loss of the last epoch may be this much, and so much for each share of wrong
images that the least accuracy allows: 0.42 for MNIST; 1.52, 1.08 and 0.90 after one, two and three
epochs of the subset. Measured: 0.19 for MNIST; at most 1.04, 0.30 and 0.21 for six seeds on the
subset. A network that learned nothing has ln 10 = 2.30.
"""


@dataclass(frozen=True)
class Options:
    """What was asked for. ``epochs`` and ``min_accuracy`` of None mean the data's own defaults."""

    device: str
    epochs: Optional[int] = None
    quick: bool = False
    seed: int = 1
    min_accuracy: Optional[float] = None
    precision: str = "float32"
    torch_version: Optional[str] = None
    require_kernels: Tuple[str, ...] = ()
    compile_backends: Tuple[str, ...] = ()
    extensions: Tuple[str, ...] = ()
    baseline: bool = True
    questions: Optional[Path] = None
    """Folder in which the images of the blind test appear once they are asked for."""
    start: Start = AS_FOUND

    def epochs_for(self, data: Dataset) -> int:
        """Epochs to train: 1 on MNIST, more on a subset, which one pass does not teach enough."""
        return self.epochs or (SUBSET_EPOCHS if data.subset else 1)

    def gate_for(self, data: Dataset) -> float:
        """Least accuracy, a fraction."""
        if self.min_accuracy is not None:
            return self.min_accuracy
        if not data.subset:
            return MIN_ACCURACY
        return SUBSET_MIN_ACCURACY[min(self.epochs_for(data), len(SUBSET_MIN_ACCURACY)) - 1]

    def most_loss_for(self, data: Dataset) -> float:
        """Mean training loss of the last epoch at most: how far it must have fallen."""
        return LOSS_AT_NO_ERROR + LOSS_PER_ERROR * (1 - self.gate_for(data))

    def backends(self) -> Tuple[str, ...]:
        """Compile backends to measure; a quick run measures none."""
        return () if self.quick else self.compile_backends

    def trains_baseline(self) -> bool:
        """Whether to train on the CPU too; never in part, since part of an epoch is no epoch."""
        return self.baseline and self.device != "cpu" and not self.quick

    def required_kernels(self) -> Tuple[str, ...]:
        """Kernel prefixes that this run can see; those of compiled code only if it compiles."""
        return tuple(p for p in self.require_kernels if not (only_compiled(p) and self.quick))

    def required(self) -> Tuple[str, ...]:
        """Names of the checks that this run must have passed."""
        names = tuple(f"extension {name}" for name in self.extensions) + REQUIRED
        names += (BLIND_TEST,) if self.questions else ()
        return names + (("kernels",) if self.required_kernels() else ())


def only_compiled(prefix: str) -> bool:
    """Whether kernels of this prefix run only in compiled code; zentorch replaces none in eager."""
    return prefix.startswith("zentorch::")
