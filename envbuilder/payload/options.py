"""The options of a verification, and the defaults that depend on the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, FrozenSet, Optional, Sequence, Tuple

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


@dataclass(frozen=True)
class Options:
    """The options of a verification, with the names that ``arguments`` gives them.

    If ``epochs`` is None, the number of epochs depends on the data.
    """

    device: str
    framework: str = "torch"
    epochs: Optional[int] = None
    quick: bool = False
    seed: int = 1
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
        """Return the number of epochs.

        The default is 1, or more if there are too few images for one epoch to suffice.
        """
        return self.epochs or (SUBSET_EPOCHS if data.train.count < FEW else 1)

    def backends(self) -> Sequence[str]:
        """Return the compile backends to measure; a quick run measures none."""
        return () if self.quick else self.compile_backends

    def trains_baseline(self) -> bool:
        """Return whether to train a CPU baseline.

        A quick run does not, because its epochs are partial. On the CPU, no baseline is needed.
        """
        return self.device != "cpu" and not self.quick

    def required_kernels(self) -> Tuple[str, ...]:
        """Return the prefixes of required kernels. A quick run omits those of compiled code."""
        return tuple(
            p for p in self.require_kernels if not (self.quick and p.startswith(COMPILED_ONLY))
        )

    def required(self) -> Tuple[str, ...]:
        """Return the names of the checks that this run must pass."""
        names = tuple(f"extension {name}" for name in self.extensions) + REQUIRED
        names += FRAMEWORKS[self.framework].checks
        names += (BLIND_TEST,) if self.questions else ()
        names += (STEP,) if self.record else ()
        return names + (("kernels",) if self.required_kernels() else ())
