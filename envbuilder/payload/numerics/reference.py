"""The network's loss and gradients in float64, computed by numpy: for frameworks other than torch.

Names and shapes of the parameters are those of ``training.layers``; there is no dropout.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

from ..training import layers
from .convolution import convolve, gradients, pool, pool_gradient
from .numerics import LEARNING_RATE, SEED, Step, Trial
from .numerics import compare as compare_by

if TYPE_CHECKING:
    from ..evidence import Comparison


def step(numpy: Any, weights: Dict[str, Any], images: Any, labels: Any) -> Step:
    """Return the mean loss of a batch, and the gradient of each parameter.

    ``images`` are (N, 28, 28, 1), normalised; everything is converted to float64.
    """
    exact = {name: value.astype(numpy.float64) for name, value in weights.items()}
    images, rows = images.astype(numpy.float64), numpy.arange(len(labels))

    first = convolve(numpy, images, exact["conv1.weight"]) + exact["conv1.bias"]
    first_active = numpy.maximum(first, 0)
    second = convolve(numpy, first_active, exact["conv2.weight"]) + exact["conv2.bias"]
    pooled, chosen = pool(numpy, numpy.maximum(second, 0))
    flat = pooled.reshape(len(images), -1)
    third = flat @ exact["fc1.weight"] + exact["fc1.bias"]
    third_active = numpy.maximum(third, 0)
    log_probabilities = log_softmax(numpy, third_active @ exact["fc2.weight"] + exact["fc2.bias"])
    loss = -log_probabilities[rows, labels].mean()

    # Backwards: each name is now the loss's gradient of what it was above.
    scores = numpy.exp(log_probabilities)
    scores[rows, labels] -= 1
    scores /= len(labels)
    of_third = scores @ exact["fc2.weight"].T * (third > 0)
    of_pooled = (of_third @ exact["fc1.weight"].T).reshape(pooled.shape)
    of_second = pool_gradient(numpy, chosen, of_pooled) * (second > 0)
    of_first, of_conv2 = gradients(numpy, first_active, exact["conv2.weight"], of_second)
    of_first *= first > 0
    _, of_conv1 = gradients(numpy, images, exact["conv1.weight"], of_first)
    return Step(
        float(loss),
        {
            "conv1.weight": of_conv1,
            "conv1.bias": of_first.sum(axis=(0, 1, 2)),
            "conv2.weight": of_conv2,
            "conv2.bias": of_second.sum(axis=(0, 1, 2)),
            "fc1.weight": flat.T @ of_third,
            "fc1.bias": of_third.sum(axis=0),
            "fc2.weight": third_active.T @ scores,
            "fc2.bias": scores.sum(axis=0),
        },
    )


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
