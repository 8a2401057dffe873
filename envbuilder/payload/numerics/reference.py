"""The network's loss and gradients in float64, computed by numpy.

Frameworks other than torch are compared with them inside of an environment, without dropout, and
the recorded steps of every framework outside of it. Names and shapes of the parameters are those of
``training.layers``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

from ..training import layers
from .convolution import convolve, gradients, pool, pool_gradient
from .numerics import LEARNING_RATE, SEED, Step, Trial
from .numerics import compare as compare_by

if TYPE_CHECKING:
    from ..evidence import Comparison


@dataclass(frozen=True)
class Forward:
    """What a forward pass computed, as far as the backward pass needs it; all in float64."""

    weights: Dict[str, Any]
    images: Any
    labels: Any
    scales: Tuple[Any, Any]
    """What the two dropouts multiplied values by: 0, or the inverse of the share they keep."""
    first: Any
    second: Any
    pooled: Any
    chosen: Any
    flat: Any
    """What fc1 receives."""
    third: Any
    """What fc1 returns, before the ReLU."""
    fourth: Any
    """What fc2 receives."""
    log_probabilities: Any

    @property
    def loss(self) -> Any:
        """Return the mean negative log-probability of the labels, an array without dimensions."""
        return -self.log_probabilities[range(len(self.labels)), self.labels].mean()


def forward(
    numpy: Any, weights: Dict[str, Any], images: Any, labels: Any, masks: Sequence[Any] = ()
) -> Forward:
    """Compute the network's result for a batch; ``masks`` are those of the two dropouts.

    ``images`` are (N, 28, 28, 1), normalised; everything is converted to float64. Without masks
    nothing is dropped.
    """
    exact = {name: value.astype(numpy.float64) for name, value in weights.items()}
    images = images.astype(numpy.float64)
    scales = [mask / (1 - share) for mask, share in zip(masks, layers.SHARES)] or [1.0, 1.0]  # noqa: B905
    first = convolve(numpy, images, exact["conv1.weight"]) + exact["conv1.bias"]
    second = convolve(numpy, numpy.maximum(first, 0), exact["conv2.weight"]) + exact["conv2.bias"]
    pooled, chosen = pool(numpy, numpy.maximum(second, 0))
    flat = (pooled * scales[0]).reshape(len(images), -1)
    third = flat @ exact["fc1.weight"] + exact["fc1.bias"]
    fourth = numpy.maximum(third, 0) * scales[1]
    result = log_softmax(numpy, fourth @ exact["fc2.weight"] + exact["fc2.bias"])
    return Forward(
        *(exact, images, labels, (scales[0], scales[1])),
        *(first, second, pooled, chosen, flat, third, fourth, result),
    )


def backward(numpy: Any, passed: Forward, active: Any) -> Dict[str, Any]:
    """Return the loss's gradient of each parameter; ``active`` are the units of fc1 above 0."""
    exact, count = passed.weights, len(passed.labels)
    # Each name is the loss's gradient of what it is in the forward pass.
    scores = numpy.exp(passed.log_probabilities)
    scores[range(count), passed.labels] -= 1
    scores /= count
    third = scores @ exact["fc2.weight"].T * passed.scales[1] * active
    pooled = (third @ exact["fc1.weight"].T).reshape(passed.pooled.shape) * passed.scales[0]
    second = pool_gradient(numpy, passed.chosen, pooled) * (passed.second > 0)
    first_active = numpy.maximum(passed.first, 0)
    first, of_conv2 = gradients(numpy, first_active, exact["conv2.weight"], second)
    first *= passed.first > 0
    _, of_conv1 = gradients(numpy, passed.images, exact["conv1.weight"], first)
    return {
        "conv1.weight": of_conv1,
        "conv1.bias": first.sum(axis=(0, 1, 2)),
        "conv2.weight": of_conv2,
        "conv2.bias": second.sum(axis=(0, 1, 2)),
        "fc1.weight": passed.flat.T @ third,
        "fc1.bias": third.sum(axis=0),
        "fc2.weight": passed.fourth.T @ scores,
        "fc2.bias": scores.sum(axis=0),
    }


def step(numpy: Any, weights: Dict[str, Any], images: Any, labels: Any) -> Step:
    """Return the mean loss of a batch without dropout, and the gradient of each parameter."""
    passed = forward(numpy, weights, images, labels)
    return Step(float(passed.loss), backward(numpy, passed, passed.third > 0))


def log_softmax(numpy: Any, scores: Any) -> Any:
    """Return the logarithms of the probabilities of each row's classes."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=1, keepdims=True))


def trials(numpy: Any, batches: Sequence[Tuple[Any, Any]]) -> List[Trial]:
    """Compute one step on each batch: normalised images (N, 28, 28, 1), and labels as integers.

    The weights move from step to step, because a framework may be right at first and then reuse
    cached ones.
    """
    weights = layers.initial(numpy, SEED)
    result = []
    for images, labels in batches:
        exact = step(numpy, weights, images, labels)
        result.append(Trial(images, labels, weights, exact))
        # Rounded to float32, so that both sides of the next trial begin with equal weights.
        weights = {
            name: (value - LEARNING_RATE * exact.gradients[name]).astype(numpy.float32)
            for name, value in weights.items()
        }
    return result


def compare(numpy: Any, results: List[Step], steps: List[Trial]) -> Comparison:
    """Return the largest errors of a framework's results, one for each trial."""
    return compare_by(results, steps, lambda *pair: relative_error(numpy, *pair))


def relative_error(numpy: Any, array: Any, exact: Any) -> float:
    """Return the difference's norm over that of ``exact``; infinite if anything is not finite."""
    difference = numpy.linalg.norm((numpy.asarray(array, numpy.float64) - exact).ravel())
    error = float(difference / numpy.linalg.norm(exact.ravel()))
    return error if math.isfinite(error) else math.inf
