"""Record chosen training steps, so that envbuilder can repeat them outside of the environment.

The folder receives, in the byte order of all supported machines (little-endian):

``order-E``: the order of images in epoch E, counted from 1, as int32.
``state-N``: after N steps, each parameter in the order of ``model.NAMES``: its values, then
Adadelta's averages of its squared gradients and of its squared changes, all as float32.
``step-N``: of the step after those N, the loss as float64, then one byte for each value that the
two dropouts could drop: 1 if it was kept.

Arrays have the framework's own layout. States are copied on the device during an epoch and written
after it, so that the timed work is the training's.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, Tuple

if TYPE_CHECKING:
    from pathlib import Path

    from ..interface import Framework, Job


class Recorder:
    """Steps of one training; ``numbers`` are those to record, counted from 0 over all epochs."""

    def __init__(self, framework: Framework, folder: Path, numbers: FrozenSet[int]) -> None:
        self._framework, self._folder, self._numbers = framework, folder, numbers
        self._done = 0
        self._states: Dict[int, List[Any]] = {}
        self._steps: Dict[int, Tuple[Any, List[Any]]] = {}
        self.written = 0

    def step(self, job: Job, first: int, count: int) -> Any:
        """Train as ``Job.step`` does and return its loss; copy what goes in and comes out."""
        number, self._done = self._done, self._done + 1
        if number not in self._numbers:
            return job.step(first, count)
        if number not in self._states:
            self._states[number] = job.snapshot()
        self._steps[number] = job.step_and_masks(first, count)
        self._states[number + 1] = job.snapshot()
        return self._steps[number][0]

    def write(self, job: Job, epoch: int) -> None:
        """Write what was recorded in an epoch that has ended."""
        order = array("i", job.taken()).tobytes()
        (self._folder / f"order-{epoch}").write_bytes(order)
        for number, arrays in self._states.items():
            (self._folder / f"state-{number}").write_bytes(self._framework.floats(arrays))
        for number, (loss, masks) in self._steps.items():
            kept = b"".join(map(self._framework.content, masks))
            content = struct.pack("<d", job.fetch([loss])[0]) + kept
            (self._folder / f"step-{number}").write_bytes(content)
        self.written += len(self._steps)
        self._states, self._steps = {}, {}
