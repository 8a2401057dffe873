"""Score a trained network outside the environment that trained it, in a blind test.

After training, the payload requests images. It receives the test images without labels, in an order
that only this process knows. Each image is slightly altered, so that it matches no copy on a disk.
For each image, the payload answers with a class and ten log-probabilities, and this process
computes the score from the log-probabilities.
"""

from __future__ import annotations

import math
import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.builds.payload import RECORD
from envbuilder.core import files
from envbuilder.core.errors import VerifyError
from envbuilder.core.settings import Settings, require_writable
from envbuilder.payload.training.dataset import CLASSES, SIDE, Split
from envbuilder.payload.training.outside import IMAGES
from envbuilder.verify import step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envbuilder.verify.report.consistency import Gates
    from envbuilder.verify.report.model import Epoch

PIXELS = SIDE * SIDE
_LOWEST_BITS = int.from_bytes(bytes([3]) * PIXELS)
"""Mask of the altered bits: a pixel changes by at most 3 of 255 gray levels. This changed the
accuracy by at most 0.3 points on 1,000 images (six seeds, four epochs each)."""

_APART = 0.01
"""Tolerance for the sum of an image's probabilities, which should be 1, and for the difference
between the score of the answered class and the best score."""

_LEAST = -1e6
"""Lowest accepted log-probability. This network cannot plausibly output a lower one."""

_AGREEMENT = 0.005
_IMAGES_APART = 5
"""Largest accepted difference between the reported accuracy and the score: a fraction of the images
(`_AGREEMENT`) plus a number of images, because a few images are on the borderline between two
classes."""


@contextmanager
def exchange(settings: Settings) -> Iterator[dict[str, Path]]:
    """Create folders for exchanging files with the payload, and yield their paths by name.

    The folders are removed afterwards. This process writes to the folder `questions`, and the
    payload writes to the folder `RECORD`. They are created next to the build folders. A lock marks
    them as in use. If this process is killed, the lock is released, and `clean` can remove the
    folders.
    """
    from filelock import FileLock

    parent = require_writable(settings.cache_dir / "build", marked=False)
    with TemporaryDirectory(prefix="questions-", dir=parent) as name:
        path = Path(name)  # nobody else's: what is below may be open to all
        lock = path.with_name(f"{path.name}.lock")
        with FileLock(lock):
            files.mark_folder(path)
            # A container reads and writes as a different user.
            modes = {"questions": 0o755, RECORD: 0o777}
            for each, mode in modes.items():
                (path / each).mkdir()
                (path / each).chmod(mode)
            yield {each: path / each for each in modes}
        lock.unlink(missing_ok=True)


class Score(Struct, frozen=True, kw_only=True):
    """The score of a blind test: the accuracy as a fraction, and the mean cross-entropy in nats."""

    images: int
    accuracy: float
    loss: float


class BlindTest:
    """One blind test on a dataset split: its images and the payload's answers."""

    def __init__(self, split: Split, folder: Path) -> None:
        self._split = split
        self._folder = folder
        self._order = list(range(split.count))
        secrets.SystemRandom().shuffle(self._order)
        self._sent = b""
        self._scores: list[Sequence[float]] = []
        self._problem = ""
        self.requested = False

    def ask(self) -> None:
        """Write the images that the payload requested.

        If the images cannot be written, for example because the disk is full, `score` raises an
        error later.
        """
        if self.requested:
            self._problem = "the payload requested the images twice"
            return
        self.requested = True
        self._sent = self._images()
        try:
            files.write(self._folder / IMAGES, self._sent)
            # A container reads them as a different user.
            (self._folder / IMAGES).chmod(0o644)
        except OSError as error:
            self._problem = f"{error.filename}: {error.strerror or error}"

    def _images(self) -> bytes:
        """Return the images in the order of the test.

        The lowest two bits of each pixel are changed at random.
        """
        changed = []
        for n in self._order:
            image = int.from_bytes(self._split.images[n * PIXELS : (n + 1) * PIXELS])
            noise = int.from_bytes(os.urandom(PIXELS)) & _LOWEST_BITS
            changed.append((image ^ noise).to_bytes(PIXELS))
        return b"".join(changed)

    def answer(self, event: dict[str, Any]) -> None:
        """Record the answers that an event from the payload contains.

        If some answers are invalid, `score` raises an error later.
        """
        self._problem = self._problem or self._wrong(event)
        if not self._problem:
            self._scores += event["scores"]

    def _wrong(self, event: dict[str, Any]) -> str:
        """Return what is wrong with the answers in an event, or an empty string if nothing is."""
        if not self.requested:
            return "the payload answered before it got the images"
        first, classes, scores = map(event.get, ("first", "classes", "scores"))
        if first != len(self._scores):
            return "the answers are not in order"
        if not isinstance(classes, list) or not isinstance(scores, list):
            return "an answer lacks classes or scores"
        if len(classes) != len(scores) or first + len(scores) > self._split.count:
            return "the number of answers differs from the number of images"
        rows = zip(classes, scores, strict=True)
        return next((problem for pair in rows if (problem := _wrong_row(*pair))), "")

    def score(self) -> Score:
        """Score the answers; raise `VerifyError` if some are missing or malformed."""
        count = self._split.count
        problem = self._problem
        if not problem and len(self._scores) != count:
            problem = f"answers arrived for only {len(self._scores)} of {count} images"
        if problem:
            raise VerifyError(f"the blind test failed: {problem}")
        answers = list(zip([self._split.labels[n] for n in self._order], self._scores, strict=True))
        return Score(
            images=count,
            accuracy=sum(row.index(max(row)) == label for label, row in answers) / count,
            loss=-math.fsum(row[label] for label, row in answers) / count,
        )

    def answers(self, most: int) -> step.Answers:
        """Return the first `most` images in the order of the test, with the payload's answers."""
        return step.Answers(self._sent[: most * PIXELS], self._scores[:most])


def problem(score: Score, last: Epoch, gates: Gates) -> str:
    """Return the problem with a blind test's score, or an empty string if there is none.

    The accuracy and the losses must satisfy the gates, and the accuracy must agree with the
    accuracy that the payload reported for the last epoch.
    """
    summary = f"{score.accuracy:.2%} of {score.images} images right, cross-entropy {score.loss:.3f}"
    reported = last.accuracy or 0.0
    if score.accuracy < gates.accuracy:
        return f"{summary}, but at least {gates.accuracy:.2%} is needed"
    if not abs(score.accuracy - reported) <= _AGREEMENT + _IMAGES_APART / score.images:
        return f"{summary}, but the payload reported {reported:.2%}"
    if not score.loss <= gates.blind_loss:
        return f"{summary}, but at most {gates.blind_loss:.2f} is allowed"
    loss = last.loss or 0.0
    if loss > gates.loss:
        return f"the training loss is {loss:.3f}, but at most {gates.loss:.2f} is allowed"
    return ""


def _wrong_row(answer: Any, row: Any) -> str:
    """Return what is wrong with an image's class or scores, or an empty string if nothing is."""
    logarithms = isinstance(row, list) and all(
        isinstance(value, float | int) and _LEAST < value < 1 for value in row
    )
    if not logarithms or len(row) != CLASSES:
        return "the scores of an image are not ten log-probabilities"
    if abs(sum(map(math.exp, row)) - 1) > _APART:
        return "the probabilities of an image do not add up to 1"
    if type(answer) is not int or not 0 <= answer < CLASSES:
        return "an answer names a class that does not exist"
    if row[answer] < max(row) - _APART:
        return f"an answer names class {answer}, which is not the most probable one for its image"
    return ""
