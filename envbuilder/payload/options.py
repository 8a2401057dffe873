"""Options of a verification, and the defaults that depend on the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, FrozenSet, NamedTuple, Optional, Sequence, Tuple

from .frameworks import FRAMEWORKS
from .report import BLIND_TEST, REQUIRED, STEP
from .start import AS_FOUND, Start

if TYPE_CHECKING:
    from pathlib import Path

    from .training.dataset import Dataset

COMPILED_ONLY = "zentorch::"
"""Prefix of kernels that run only in compiled code."""

SUBSET_EPOCHS = 3
FEW = 10_000
"""Images below which one epoch is not enough: after as many, the network reaches 96 %."""


class Gates(NamedTuple):
    """What a training must reach after its last epoch; losses are mean cross-entropies in nats."""

    accuracy: float
    """The lowest fraction of right answers, to the test images and in the blind test."""
    loss: float
    """The highest loss in training, over the last epoch."""
    blind_loss: float
    """The highest loss in the blind test."""


LOSS_AT_NO_ERROR = 0.2
LOSS_PER_ERROR = 8.8
"""Bound on both losses where an accuracy is stated and not measured: its base, and its slope over
the rate of errors that are allowed. It is 0.42 for 97.5 %. A network that learned nothing has
ln 10 = 2.30.
"""


def gates_at(accuracy: float) -> Gates:
    """Return the gates that go with a stated accuracy."""
    loss = LOSS_AT_NO_ERROR + LOSS_PER_ERROR * (1 - accuracy)
    return Gates(accuracy, loss, loss)


QUICK = (Gates(0.758, 1.4, 0.7), Gates(0.887, 0.5, 0.34), Gates(0.922, 0.35, 0.23))
"""Required after one, two, and three or more epochs of 3,000 images, tested on 1,000.

With 95 % confidence one of 10,000 honest trainings misses any of the four: each loss, and the
accuracy, to the test images and in the blind test. docs/evidence/gates.md has the trainings by all
frameworks, on the CPU, and their distribution.
"""

MIN_ACCURACY = 0.975
"""Required after one epoch of `FEW` images or more, but not all: no such training was measured."""

FULL = Gates(0.972, 0.24, 0.1)
"""Required after one epoch or more of all images; measured as `QUICK` was."""


@dataclass(frozen=True)
class Options:
    """Options of a verification, named as ``arguments`` names them.

    None for ``epochs`` or ``min_accuracy`` is the data's default.
    """

    device: str
    framework: str = "torch"
    epochs: Optional[int] = None
    quick: bool = False
    seed: int = 1
    min_accuracy: Optional[float] = None
    precision: str = "float32"
    version: Optional[str] = None
    """Of the framework; without a local part, any build of that release."""
    require_kernels: Sequence[str] = ()
    compile_backends: Sequence[str] = ()
    extensions: Sequence[str] = ()
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

    def gates_for(self, data: Dataset) -> Gates:
        """Return what the training must reach: the stated accuracy, else what was measured."""
        if self.min_accuracy is not None:
            return gates_at(self.min_accuracy)
        if not data.subset:
            return FULL
        if data.train.count >= FEW:
            return gates_at(MIN_ACCURACY)
        return QUICK[min(self.epochs_for(data), len(QUICK)) - 1]

    def backends(self) -> Sequence[str]:
        """Return the compile backends to measure; a quick run measures none."""
        return () if self.quick else self.compile_backends

    def trains_baseline(self) -> bool:
        """Return whether to train a CPU baseline; not in a quick run, whose epochs are partial."""
        return self.device != "cpu" and not self.quick

    def required_kernels(self) -> Tuple[str, ...]:
        """Return the kernel prefixes this run can see; in compiled code only if it compiles."""
        return tuple(
            p for p in self.require_kernels if not (self.quick and p.startswith(COMPILED_ONLY))
        )

    def required(self) -> Tuple[str, ...]:
        """Return the names of the checks that this run must have passed."""
        names = tuple(f"extension {name}" for name in self.extensions) + REQUIRED
        names += FRAMEWORKS[self.framework].checks
        names += (BLIND_TEST,) if self.questions else ()
        names += (STEP,) if self.record else ()
        return names + (("kernels",) if self.required_kernels() else ())
