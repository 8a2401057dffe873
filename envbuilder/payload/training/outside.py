"""What envbuilder verifies outside the environment: recorded steps, and answers to a blind test.

envbuilder repeats chosen training steps. These steps are recorded in a folder of files, in the byte
order of all supported machines (little-endian):

- ``order-E``: the order of images in epoch E, counted from 1, as int32.
- ``state-N``: the state after N steps. For each parameter, in the order of ``model.NAMES``, it
  contains the values, then Adadelta's averages of the squared gradients and of the squared
  changes, all as float32.
- ``step-N``: the step after those N steps. It contains the loss as float64, then one byte for each
  value that the two dropouts could drop: 1 if the value was kept.

Arrays have the framework's own layout. States are copied on the device during an epoch and written
to files after it, so that the timed work is only that of the training.

The blind test is the classification of images without labels, after the training. The core, which
started this process, writes the images in an order that only the core knows, and scores the
answers. So the score is not computed inside the environment.
"""

from __future__ import annotations

import struct
import time
from array import array
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, Tuple

from ..report import CheckError
from .dataset import SIDE
from .train import classes

if TYPE_CHECKING:
    from pathlib import Path

    from ..events import Events
    from ..interface import Framework, Job

IMAGES = "images"
"""Name of the file that appears in the folder, complete: unsigned bytes, image after image."""

PATIENCE = 120.0
"""Seconds until the images must be there; the core writes them in one."""

PAUSE = 0.02


class Recorder:
    """A recorder of training steps. ``numbers`` are the steps, counted from 0 over all epochs."""

    def __init__(self, framework: Framework, folder: Path, numbers: FrozenSet[int]) -> None:
        self._framework = framework
        self._folder = folder
        self._numbers = numbers
        self._done = 0
        self._states: Dict[int, List[Any]] = {}
        self._steps: Dict[int, Tuple[Any, List[Any]]] = {}
        self.written = 0

    def step(self, job: Job, first: int, count: int) -> Any:
        """Train as ``Job.step`` does, and return the loss.

        If the step is to be recorded, keep its loss, its masks, and copies of the states before and
        after it.
        """
        number = self._done
        self._done = self._done + 1
        if number not in self._numbers:
            return job.step(first, count)
        if number not in self._states:
            self._states[number] = job.snapshot()
        self._steps[number] = job.step_and_masks(first, count)
        self._states[number + 1] = job.snapshot()
        return self._steps[number][0]

    def write(self, job: Job, epoch: int) -> None:
        """Write the files for what was recorded in an epoch that has ended."""
        (self._folder / f"order-{epoch}").write_bytes(array("i", job.taken()).tobytes())
        for number, arrays in self._states.items():
            (self._folder / f"state-{number}").write_bytes(self._framework.floats(arrays))
        for number, (loss, masks) in self._steps.items():
            kept = b"".join(map(self._framework.content, masks))
            content = struct.pack("<d", job.fetch([loss])[0]) + kept
            (self._folder / f"step-{number}").write_bytes(content)
        self.written += len(self._steps)
        self._states = {}
        self._steps = {}


def answer(framework: Framework, job: Job, folder: Path, events: Events) -> int:
    """Request the images of the blind test, classify them, and return how many there were.

    Raise CheckError if the images do not arrive, or are not images of the right size.
    """
    events.write("questions")
    content = _wait(folder / IMAGES)
    count, rest = divmod(len(content), SIDE * SIDE)
    if rest or not count:
        raise CheckError(f"the blind test sent {len(content)} bytes, which are not images")
    first = 0
    for scores in job.predict(framework.images(content)):
        events.answers(first, classes(scores), scores)
        first += len(scores)
    return count


def _wait(path: Path) -> bytes:
    ends = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > ends:
            raise CheckError(f"the images of the blind test did not arrive within {PATIENCE:.0f} s")
        time.sleep(PAUSE)
    return path.read_bytes()
