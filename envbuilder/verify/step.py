"""Repeat training steps and answers in float64, outside the environment that computed them.

The payload records the inputs and the results of some of its training steps
(`payload/training/outside.py`). This process repeats each of these steps (forward pass, loss,
gradients, Adadelta, learning rate), using the recorded files, its own copy of the images and the
published algorithm. It also recomputes the answers to some images of the blind test, using the last
recorded weights. No code from the environment is used, so this detects even a fault that affects
every dtype or every device in the same way.
"""

from __future__ import annotations

import importlib
import math
import os
import secrets
import stat
import statistics
import struct
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from envbuilder.core.errors import Hint, VerifyError
from envbuilder.payload.training import model
from envbuilder.payload.training.dataset import CLASSES, SIDE, Split
from envbuilder.payload.training.train import (
    BATCH,
    DEVIATION,
    EPSILON,
    GAMMA,
    LEARNING_RATE,
    MEAN,
    RHO,
    steps_of,
)
from envbuilder.verify import reference
from envbuilder.verify.report.measurements import Repeated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from envbuilder.core.console import Progress
    from envbuilder.profiles.profile import Expected

LEAST_STEPS = 5
"""Minimum number of recorded steps. With five steps, the median is correct even if two steps have a
borderline pixel or unit, which happens in one step out of a hundred."""

MOST_DRAWN = 16
"""Maximum number of epochs from which a step is drawn. Each step takes 29 MB of disk space and 0.4
s."""


class Limits(NamedTuple):
    """The largest relative errors that are allowed.

    docs/evidence/steps.md lists the errors of correct and of faulty runs.
    """

    median: float
    """Allowed error of the median step, relative to the change that the step makes. If a step's
    error is larger, the step is repeated with the units near zero placed on the other side of
    zero."""
    answers: float
    """Allowed error of all answers together, relative to their norm. The error of the answers to a
    single image may be `_OF_IMAGE` times as large."""


LIMITS = {"cpu": Limits(1e-4, 5e-6)}
ELSEWHERE = Limits(1e-3, 5e-5)
"""Limits for devices on which the errors of honest runs were not measured."""
_OF_IMAGE = 10
MOST_ERROR = 5e-2
MOST_LOSS_ERROR = 1e-4
"""Largest allowed error of a single step (`MOST_ERROR`), and of its loss (`MOST_LOSS_ERROR`)."""

_NEAR = 1e-5
_MOST_NEAR = 6
"""Limits for units of fc1 whose value is near zero.

`_NEAR` is the distance from zero within which float32 may put a unit on the other side of zero.
`_MOST_NEAR` is the maximum number of such units in a batch. Adadelta makes the difference that
results from such a unit as large as any other step.
"""

_LARGEST = 1e9
_LEAST_LOSS = 0.1
"""Lower bound for the divisor of a loss's relative error. If the loss is smaller than this value,
its error is relative to this value instead."""

_SIGMAS = 6
"""Allowed number of standard deviations for random quantities: initial weights, orders of images,
and dropout masks. A normally distributed quantity exceeds this limit once in 5e8 times."""

_UNTRAINED = 0.15
"""Largest accepted distance between the first step's loss and ln 10, in nats. It is ten standard
deviations of the first loss of 300 untrained networks (mean 2.307, standard deviation 0.0148)."""

ANSWERS = 256
"""Number of blind-test answers that are repeated. Repeating them takes 0.4 s."""


class Answers(NamedTuple):
    """Images as consecutive bytes, and the payload's ten log-probabilities for each image."""

    images: bytes
    scores: Sequence[Sequence[float]]


class Proof(Struct, frozen=True, kw_only=True):
    """The result of repeating the recorded training steps and the blind test's answers.

    `problem` says what is wrong, and is empty if nothing is. `answers_error` is the error of the
    payload's answers, relative to the norm of the repeated answers.
    """

    steps: tuple[Repeated, ...]
    answers_error: float
    problem: str

    @property
    def summary(self) -> str:
        """A sentence with the number of repeated steps, their errors, and the answers' error."""
        worst = max(self.steps, key=lambda each: each.error)
        median = statistics.median_low(each.error for each in self.steps)
        return (
            f"{len(self.steps)} steps of the training repeated outside in float64: relative error"
            f" at most {worst.error:.1e} ({worst.array}), median {median:.1e}; of the last weights'"
            f" answers {self.answers_error:.1e}"
        )


def draw(images: int, epochs: int) -> tuple[int, ...]:
    """Choose the steps to record; return their numbers, counted from 0 over all epochs.

    These are the first two steps, the first step of the second epoch (which has another learning
    rate), the last step, and one random step from each epoch. If there are more than `MOST_DRAWN`
    epochs, random steps are taken only from that many epochs. Further random steps are added until
    there are `LEAST_STEPS`. Random steps keep the environment from knowing in advance
    which steps are checked, and the last step reveals faults that begin during training.
    """
    count = steps_of(images)
    random = secrets.SystemRandom()
    possible = range(epochs * count)
    drawn = list(range(epochs))
    if epochs > MOST_DRAWN:
        drawn = [0, *random.sample(drawn[1:-1], MOST_DRAWN - 2), epochs - 1]
    steps = {0, 1, count, possible[-1]}.intersection(possible)
    for epoch in drawn:
        of_epoch = range(epoch * count, (epoch + 1) * count)
        steps.add(random.choice([n for n in of_epoch if n not in steps] or of_epoch))
    while len(steps) < min(LEAST_STEPS, len(possible)):
        steps.add(random.choice(possible))
    return tuple(sorted(steps))


def prove(
    folder: Path,
    numbers: Sequence[int],
    split: Split,
    answers: Answers,
    expects: Expected,
    progress: Progress,
) -> Proof:
    """Repeat the recorded training steps and the blind test's answers, and compare the results.

    `split` contains the training images. Return the errors, and the problem if there is one. Raise
    `VerifyError` if a recorded file is missing, damaged or of the wrong size.
    """
    numpy = _numpy()
    record = _Record(folder, split, expects.framework, numpy)
    limits = LIMITS.get(expects.device, ELSEWHERE)
    steps: list[tuple[Repeated, str, tuple[Any, ...]]] = []
    of_start = [*_start(record, split.count)]  # reads the state that the first step needs, too
    with progress.task("repeat steps") as task:
        for done, number in enumerate(numbers, 1):
            steps.append(_repeat(record, number, limits.median))
            task.update(done, len(numbers))
    repeated, wrong, masks = zip(*steps, strict=True)
    epochs = sorted({number // record.count for number in numbers})
    problems = [
        *filter(None, wrong),
        *of_start,
        *_orders(record, epochs),
        *_dropouts(masks),
    ]
    median = statistics.median_low(each.error for each in repeated)
    if not problems and median > limits.median:
        problems.append(f"half of the steps are wrong by {median:.1e} or more")
    error, of_image = _answers_error(record, record.state(numbers[-1] + 1), answers)
    if not (error <= limits.answers and of_image <= _OF_IMAGE * limits.answers):
        problems.append(
            f"the blind test was not answered by the trained network: relative error {error:.1e},"
            f" of an image {of_image:.1e}"
        )
    return Proof(steps=repeated, answers_error=error, problem=problems[0] if problems else "")


def _numpy() -> Any:
    """Import NumPy with its number of threads limited to one.

    With these matrix products, additional threads would spend more time on busy-waiting for work
    than on the work itself.
    """
    variable = "OPENBLAS_NUM_THREADS"
    if variable in os.environ:
        return importlib.import_module("numpy")
    os.environ[variable] = "1"
    try:
        return importlib.import_module("numpy")
    finally:
        del os.environ[variable]


def _start(record: _Record, images: int) -> Iterator[str]:
    """Yield a sentence for each sign that a training run did not start from scratch.

    `images` is the number of training images.
    """
    numpy = record.numpy
    first = record.state(0)
    averages = chain.from_iterable(parts[1:] for parts in first.values())
    if any(part.any() for part in averages):
        yield "Adadelta's averages are not zero before the first step"
    for name, (value, _, _) in first.items():
        # Uniform up to 1 / √inputs: of the squares of x in [-1, 1], 1/3 is the mean and 4/45 the
        # variance.
        scaled = value * math.sqrt(math.prod(_shape(f"{name.partition('.')[0]}.weight")[:-1]))
        apart = _SIGMAS / math.sqrt(value.size)
        if not (
            abs(scaled).max() <= 1 + _NEAR
            and abs(scaled.mean()) <= apart * math.sqrt(1 / 3)
            and abs(numpy.square(scaled).mean() - 1 / 3) <= apart * math.sqrt(4 / 45)
        ):
            yield (
                f"the training did not start from scratch: {name} does not look freshly initialized"
            )
    loss, _ = record.step(0, min(BATCH, images))
    if not abs(loss - math.log(CLASSES)) <= _UNTRAINED:
        yield (
            f"the training did not start from scratch: its first loss is {loss:.2f}, but that of"
            " an untrained network is about 2.30"
        )


def _answers_error(
    record: _Record, state: dict[str, tuple[Any, ...]], answers: Answers
) -> tuple[float, float]:
    """Return the relative error of all answers, and the largest error for a single image."""
    numpy = record.numpy
    weights = {name: value for name, (value, _, _) in state.items()}
    images = _normalised(numpy.frombuffer(answers.images, "u1").reshape(-1, SIDE, SIDE, 1))
    batches = (images[first : first + BATCH] for first in range(0, len(images), BATCH))
    exact = numpy.concatenate(
        [reference.forward(numpy, weights, b, ()).log_probabilities for b in batches]
    )
    apart = numpy.linalg.norm(numpy.array(answers.scores) - exact, axis=1)
    norms = numpy.linalg.norm(exact, axis=1)
    whole = float(numpy.linalg.norm(apart) / numpy.linalg.norm(norms))
    return _finite(whole), _finite(float((apart / norms).max()))


def _normalised(pixels: Any) -> Any:
    """Return pixels with 256 gray levels, normalized as input for the network.

    The result has the same shape as `pixels`.
    """
    return (pixels / 255 - MEAN) / DEVIATION


def _repeat(record: _Record, number: int, enough: float) -> tuple[Repeated, str, tuple[Any, ...]]:
    """Repeat a recorded step, and compare the result with the record.

    Return the repeated step, the problem with it (or an empty string), and its dropout masks. Each
    mask is paired with the positions at which it has an effect. A unit whose value is near zero may
    be on either side of zero because of rounding, so both sides are tried until the error is at
    most `enough`.
    """
    numpy = record.numpy
    images, labels = record.batch(number)
    loss, masks = record.step(number, len(labels))
    before = record.state(number)
    weights = {name: value for name, (value, _, _) in before.items()}
    passed = reference.forward(numpy, weights, images, labels, masks)
    near = numpy.argwhere((abs(passed.third) < _NEAR) & (masks[1] > 0))
    epoch = number // record.count
    rate = LEARNING_RATE * GAMMA**epoch
    after = record.state(number + 1)
    closest = _LARGEST, ""
    for flipped in _choices(near):
        active = passed.third > 0
        for image, unit in flipped:
            active[image, unit] ^= True
        gradients = reference.backward(numpy, passed, active)
        closest = min(closest, _worst(numpy, before, after, gradients, rate))
        if closest[0] <= enough:
            break
    # Late in a training, losses get so small that float32 rounds away more than a share of them.
    each = Repeated(
        step=number + 1,
        epoch=epoch + 1,
        error=closest[0],
        array=closest[1],
        loss_error=_finite(float(abs(loss - passed.loss) / max(passed.loss, _LEAST_LOSS))),
    )
    # Where a value is 0 anyway, that hides a mask.
    effective = (masks[0], passed.pooled > 0), (masks[1], passed.third > 0)
    return each, _wrong(each, len(near)), effective


def _choices(near: Any) -> Iterator[tuple[Any, ...]]:
    """Yield all subsets of `near`, starting with the smaller ones.

    `near` contains the units that may be on either side of zero. If there are more than
    `_MOST_NEAR` of them, for example because all weights of the network are zero, there are too
    many subsets, and only the empty one is yielded.
    """
    for count in range(len(near) + 1 if len(near) <= _MOST_NEAR else 1):
        yield from combinations(near, count)


def _worst(
    numpy: Any,
    before: dict[str, tuple[Any, ...]],
    after: dict[str, tuple[Any, ...]],
    gradients: dict[str, Any],
    rate: float,
) -> tuple[float, str]:
    """Return the largest relative error of any array, and the name of that array.

    An array's error is relative to the array's change in the step.
    """
    errors = []
    for name, gradient in gradients.items():
        value, squares, changes = before[name]
        new_squares = RHO * squares + (1 - RHO) * gradient**2
        change = numpy.sqrt((changes + EPSILON) / (new_squares + EPSILON)) * gradient
        expected = value - rate * change, new_squares, RHO * changes + (1 - RHO) * change**2
        kinds = name, f"{name}'s squared gradients", f"{name}'s squared changes"
        for kind, old, new, right in zip(kinds, before[name], after[name], expected, strict=True):
            moved = float(numpy.linalg.norm(right - old))
            error = float(numpy.linalg.norm(new - right))
            if moved:
                error /= moved
            elif error:
                # What should not move at all must not: there is nothing to be relative to.
                error = math.inf
            errors.append((_finite(error), kind))
    return max(errors)


def _finite(error: float) -> float:
    """Return the error limited to 1e9, so that it can be stored in a report.

    NaN is replaced by 1e9.
    """
    return error if error < _LARGEST else _LARGEST  # noqa: FURB136 (NaN is not below)


def _wrong(each: Repeated, near: int) -> str:
    where = f"step {each.step}, in epoch {each.epoch},"
    if not each.loss_error <= MOST_LOSS_ERROR:
        return f"{where} reports a loss that is wrong by {each.loss_error:.1e}"
    if not each.error <= MOST_ERROR:
        unclear = ""
        if near > _MOST_NEAR:
            unclear = f"; {near} units were too close to zero to judge"
        return f"{where} changes {each.array} wrongly: relative error {each.error:.1e}{unclear}"
    return ""


def _orders(record: _Record, epochs: Sequence[int]) -> Iterator[str]:
    """Yield a sentence for each sign that the images were not shuffled randomly in the epochs.

    Each epoch's order must be uncorrelated with the order in the files and with the orders of the
    other epochs. The correlation between two random orders of n images has a standard deviation of
    1 / √(n - 1).
    """
    count = len(record.order(epochs[0]))
    orders = [record.numpy.arange(count), *map(record.order, epochs)]
    most = _SIGMAS / math.sqrt(max(count - 1, 1))
    related = abs(record.numpy.corrcoef(record.numpy.array(orders)))
    for second, epoch in enumerate(epochs, 1):
        if related[0, second] > most:
            yield f"the images of epoch {epoch + 1} were not shuffled"
        for first in range(1, second):
            if related[first, second] > most:
                earlier = epochs[first - 1] + 1
                yield f"epochs {earlier} and {epoch + 1} took images in a similar order"


def _dropouts(masks: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Yield a sentence for each sign that the dropout masks are not random.

    Such signs are a wrong share of dropped values, and repeated masks. The masks of two images, or
    of two steps, may agree only as often as chance allows.
    """
    for layer, share in enumerate(model.SHARES):
        name = f"dropout {layer + 1}"
        alike = share**2 + (1 - share) ** 2
        of_layer = [mask[layer] for mask in masks]
        for kept, effective in of_layer:
            dropped = kept[effective] == 0
            if not dropped.size:
                yield f"{name} had nothing to drop, so the network is dead"
            elif not _by_chance(dropped, share):
                yield f"{name} dropped {dropped.mean():.1%}, not {share:.0%}"
        pairs = [((k[1:], e[1:]), (k[:-1], e[:-1])) for k, e in of_layer]
        for (mask, first), (other, second) in (*pairs, *combinations(of_layer, 2)):
            count = min(len(mask), len(other))
            both = first[:count] & second[:count]
            if not _by_chance(mask[:count][both] == other[:count][both], alike):
                yield f"{name} always drops the same units"


def _by_chance(events: Any, probability: float) -> bool:
    """Return whether chance can explain the observed share of true events.

    Chance can explain the share if it is within `_SIGMAS` standard deviations of `probability`.
    """
    deviation = math.sqrt(probability * (1 - probability) / max(events.size, 1))
    return not events.size or bool(abs(events.mean() - probability) <= _SIGMAS * deviation)


class _Record:
    """The recorded files, which are checked when they are read.

    `count` is the number of steps per epoch.
    """

    def __init__(self, folder: Path, split: Split, framework: str, numpy: Any) -> None:
        self._folder = folder
        self._split = split
        self.numpy = numpy
        self._rows_first = framework == "torch"
        """True if the weights of convolutions are stored with outputs and channels before rows and
        columns."""
        self.count = steps_of(split.count)
        self._orders: dict[int, Any] = {}
        self._state: tuple[int, dict[str, tuple[Any, Any, Any]]] = -1, {}

    def order(self, epoch: int) -> Any:
        """Return the order of the images in an epoch; epochs are counted from 0.

        Raise `VerifyError` unless the order contains each image exactly once.
        """
        if epoch not in self._orders:
            content = self._read(f"order-{epoch + 1}", 4 * self._split.count)
            order = self.numpy.frombuffer(content, "<i4")
            if sorted(order.tolist()) != list(range(self._split.count)):
                raise _unproven(f"epoch {epoch + 1} did not take each image once")
            self._orders[epoch] = order
        return self._orders[epoch]

    def batch(self, number: int) -> tuple[Any, Any]:
        """Return the normalized images of a step, and their labels."""
        epoch, position = divmod(number, self.count)
        taken = self.order(epoch)[position * BATCH : (position + 1) * BATCH]
        split = self._split
        pixels = self.numpy.frombuffer(split.images, "u1")[: split.count * SIDE * SIDE]
        images = pixels.reshape(-1, SIDE, SIDE, 1)[taken]
        return _normalised(images), self.numpy.frombuffer(split.labels, "u1")[taken]

    def state(self, done: int) -> dict[str, tuple[Any, Any, Any]]:
        """Return the state of each parameter after `done` steps, by parameter name.

        The state consists of the parameter's value and its two Adadelta averages.
        """
        if self._state[0] != done:
            self._state = done, dict(self._arrays(done))
        return self._state[1]

    def _arrays(self, done: int) -> Iterator[tuple[str, tuple[Any, Any, Any]]]:
        sizes = {name: math.prod(_shape(name)) for name in model.NAMES}
        content = self._read(f"state-{done}", 3 * 4 * sum(sizes.values()))
        values = self.numpy.frombuffer(content, "<f4").astype(self.numpy.float64)
        for name, size in sizes.items():
            parts = values[: 3 * size].reshape(3, size)
            values = values[3 * size :]
            value, squares, changes = (self._arranged(name, part) for part in parts)
            yield name, (value, squares, changes)

    def _arranged(self, name: str, values: Any) -> Any:
        """Return a recorded parameter, rearranged to have the shape specified in `model`."""
        shape = _shape(name)
        if not self._rows_first or len(shape) == 1:
            return values.reshape(shape)
        if len(shape) == 4:
            rows, columns, channels, outputs = shape
            return values.reshape(outputs, channels, rows, columns).transpose(2, 3, 1, 0)
        matrix = values.reshape(shape[::-1]).T
        rows, columns, channels = model.DROPPED[0]
        if shape[0] != rows * columns * channels:
            return matrix
        return matrix.reshape(channels, rows, columns, -1).transpose(1, 2, 0, 3).reshape(shape)

    def step(self, number: int, images: int) -> tuple[float, tuple[Any, Any]]:
        """Return the recorded loss of a step, and its two dropout masks."""
        sizes = [images * math.prod(shape) for shape in model.DROPPED]
        content = self._read(f"step-{number}", 8 + sum(sizes))
        values = self.numpy.frombuffer(content, "u1", offset=8)
        if values.max() > 1:
            raise _unproven(
                f"the recorded step {number + 1} is damaged: a mask has values other than 0 and 1"
            )
        rows, columns, channels = model.DROPPED[0]
        first = values[: sizes[0]]
        second = values[sizes[0] :].reshape(images, -1)
        if self._rows_first:
            first = first.reshape(images, channels, rows, columns).transpose(0, 2, 3, 1)
        (loss,) = struct.unpack("<d", content[:8])
        return loss, (first.reshape(images, *model.DROPPED[0]), second)

    def _read(self, name: str, size: int) -> bytes:
        """Return the contents of a file, which must have `size` bytes.

        Raise `VerifyError` if the file is a link, is not a regular file, or has a different size.
        """
        # Without O_NONBLOCK, a pipe in its place would never be opened.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            with os.fdopen(os.open(self._folder / name, flags), "rb") as file:
                state = os.fstat(file.fileno())
                content = file.read(size) if stat.S_ISREG(state.st_mode) else b""
        except OSError as error:
            raise _unproven(f"{name}: {error.strerror}") from error
        if state.st_size != size or len(content) != size:
            raise _unproven(f"{name} has {state.st_size} bytes, expected {size}")
        return content


def _unproven(why: str) -> VerifyError:
    return VerifyError(
        f"the training step is not proven: {why}",
        Hint(
            "Verify again, with enough free space in the cache folder. To check the space",
            ("doctor",),
        ),
    )


def _shape(name: str) -> tuple[int, ...]:
    layer, _, part = name.partition(".")
    shape = model.WEIGHTS[layer]
    if part == "weight":
        return shape
    return shape[-1:]
