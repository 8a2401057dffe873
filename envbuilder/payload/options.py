"""Options of a verification, and the defaults that depend on the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, FrozenSet, Optional, Tuple

from .frameworks import FRAMEWORKS
from .report import BLIND_TEST, REQUIRED, STEP
from .start import AS_FOUND, Start

if TYPE_CHECKING:
    from pathlib import Path

    from .training.dataset import Dataset

MIN_ACCURACY = 0.975
"""Required after one epoch of MNIST. Published runs of this network reach 98.1 % or more."""

SUBSET_EPOCHS = 3
FEW = 10_000
"""Images below which one epoch is not enough: after as many, the network reaches 96 %."""
SUBSET_MIN_ACCURACY = (0.85, 0.90, 0.92)
"""Required after one, two, and three or more epochs of 3,000 images, tested on 1,000.

Measured on the CPU with torch 2.13.0: 16 runs (seeds 1 to 8, on the shipped subset and on MNIST's
first images) reach 89.2-93.2 %, 93.1-95.1 % and 93.8-95.9 %. With convolutions that do not learn
(the effect of wrong gradients in one build) six runs reached at most 77.4 %, 85.3 % and 86.9 %.
With TensorFlow 2.21.0 the same 16 runs reach 87.9-92.6 %, 93.4-95.4 % and 94.2-95.8 %, and eight
with convolutions that do not learn at most 82.1 %, 88.4 % and 89.2 %.
"""

LOSS_AT_NO_ERROR, LOSS_PER_ERROR = 0.2, 8.8
"""Bound on the last epoch's mean training loss: its base, and its slope over the error rate.

The error rate is the fraction of wrong images that the required accuracy allows. The bound is 0.42
for MNIST; 1.52, 1.08 and 0.90 after one, two and three epochs of the subset. Measured: 0.19 for
MNIST; at most 1.04, 0.30 and 0.21 for six seeds on the subset. A network that learned nothing has
ln 10 = 2.30.
"""


@dataclass(frozen=True)
class Options:
    """Options of a verification; None for ``epochs`` or ``min_accuracy`` is the data's default."""

    device: str
    framework: str = "torch"
    epochs: Optional[int] = None
    quick: bool = False
    seed: int = 1
    min_accuracy: Optional[float] = None
    precision: str = "float32"
    version: Optional[str] = None
    """Of the framework; without a local part, any build of that release."""
    require_kernels: Tuple[str, ...] = ()
    compile_backends: Tuple[str, ...] = ()
    extensions: Tuple[str, ...] = ()
    baseline: bool = True
    questions: Optional[Path] = None
    """Folder in which the images of the blind test appear once they are requested."""
    record: Optional[Path] = None
    """Folder that receives the recorded steps; without it, the training stays unproven."""
    recorded: FrozenSet[int] = frozenset()
    """Numbers of the steps to record, counted from 0."""
    start: Start = AS_FOUND

    def epochs_for(self, data: Dataset) -> int:
        """Return the epochs to train: 1, or more on few images, where one is not enough."""
        return self.epochs or (SUBSET_EPOCHS if data.train.count < FEW else 1)

    def gate_for(self, data: Dataset) -> float:
        """Return the required accuracy, a fraction."""
        if self.min_accuracy is not None:
            return self.min_accuracy
        if not data.subset:
            return MIN_ACCURACY
        return SUBSET_MIN_ACCURACY[min(self.epochs_for(data), len(SUBSET_MIN_ACCURACY)) - 1]

    def most_loss_for(self, data: Dataset) -> float:
        """Return the bound on the mean training loss of the last epoch."""
        return LOSS_AT_NO_ERROR + LOSS_PER_ERROR * (1 - self.gate_for(data))

    def backends(self) -> Tuple[str, ...]:
        """Return the compile backends to measure; a quick run measures none."""
        return () if self.quick else self.compile_backends

    def trains_baseline(self) -> bool:
        """Return whether to train a CPU baseline; not in a quick run, whose epochs are partial."""
        return self.baseline and self.device != "cpu" and not self.quick

    def required_kernels(self) -> Tuple[str, ...]:
        """Return the kernel prefixes this run can see; in compiled code only if it compiles."""
        return tuple(p for p in self.require_kernels if not (only_compiled(p) and self.quick))

    def required(self) -> Tuple[str, ...]:
        """Return the names of the checks that this run must have passed."""
        names = tuple(f"extension {name}" for name in self.extensions) + REQUIRED
        names += FRAMEWORKS[self.framework].checks
        names += (BLIND_TEST,) if self.questions else ()
        names += (STEP,) if self.record else ()
        return names + (("kernels",) if self.required_kernels() else ())


def only_compiled(prefix: str) -> bool:
    """Return whether kernels of this prefix run only in compiled code, as all of zentorch's do."""
    return prefix.startswith("zentorch::")
