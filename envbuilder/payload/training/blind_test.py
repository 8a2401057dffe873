"""The blind test: classification of images that come without labels, after the training.

The core, which started this process, writes the images, in an order that only it knows, and scores
the answers. So the score does not come from inside the environment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..report import CheckError
from . import train
from .dataset import SIDE

if TYPE_CHECKING:
    from pathlib import Path

    from ..events import Events
    from ..interface import Framework, Job

IMAGES = "images"
"""Name of the file that appears in the folder, complete: unsigned bytes, image after image."""

PATIENCE = 120.0
"""Seconds until the images must be there; the core writes them in one."""

PAUSE = 0.02


def answer(framework: Framework, job: Job, folder: Path, events: Events) -> int:
    """Request the images, classify them, and return how many there were.

    Raises CheckError if they do not come, or are not images of this size.
    """
    events.questions()
    content = _wait(folder / IMAGES)
    count, rest = divmod(len(content), SIDE * SIDE)
    if rest or not count:
        raise CheckError(f"the blind test sent {len(content)} bytes, which are not images")
    first = 0
    for scores in job.predict(framework.images(content)):
        events.answers(first, train.classes(scores), scores)
        first += len(scores)
    return count


def _wait(path: Path) -> bytes:
    ends = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > ends:
            raise CheckError(f"the images of the blind test did not arrive within {PATIENCE:.0f} s")
        time.sleep(PAUSE)
    return path.read_bytes()
