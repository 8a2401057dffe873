"""Compute the network's loss and gradients in float64 with NumPy.

The training steps that were recorded in an environment are compared with these results. The
parameters have the same names and shapes as those of `training.model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envbuilder.payload.training import model

_CORNERS = [
    (slice(None), slice(row, None, 2), slice(column, None, 2))
    for row in (0, 1)
    for column in (0, 1)
]
"""Slices that select the pixels at each of the four positions of a pooling window, row by row."""


@dataclass(frozen=True)
class Forward:
    """The results of a forward pass that the backward pass needs, as float64 arrays."""

    weights: dict[str, Any]
    images: Any
    labels: Any
    scales: tuple[Any, Any]
    """Factors applied by the two dropout layers: 0 for a dropped value, otherwise 1 / (share of
    kept values)."""
    first: Any
    second: Any
    pooled: Any
    chosen: Any
    flat: Any
    """Input of fc1."""
    third: Any
    """Output of fc1, before the ReLU."""
    fourth: Any
    """Input of fc2."""
    log_probabilities: Any

    @property
    def loss(self) -> Any:
        """The mean negative log-probability of the labels, as a zero-dimensional array."""
        return -self.log_probabilities[range(len(self.labels)), self.labels].mean()


def forward(
    numpy: Any, weights: dict[str, Any], images: Any, labels: Any, masks: Sequence[Any] = ()
) -> Forward:
    """Run a batch through the network, and return the results that the backward pass needs.

    `images` must be normalized and have the shape (N, 28, 28, 1). `masks` contains the masks of the
    two dropout layers. If it is empty, nothing is dropped. Weights and images are converted to
    float64.
    """
    exact = {name: numpy.asarray(value, numpy.float64) for name, value in weights.items()}
    images = numpy.asarray(images, numpy.float64)
    scales = [mask / (1 - share) for mask, share in zip(masks, model.SHARES, strict=False)] or [
        1.0,
        1.0,
    ]
    first = convolve(numpy, images, exact["conv1.weight"]) + exact["conv1.bias"]
    second = convolve(numpy, numpy.maximum(first, 0), exact["conv2.weight"]) + exact["conv2.bias"]
    pooled, chosen = pool(numpy, numpy.maximum(second, 0))
    flat = (pooled * scales[0]).reshape(len(images), -1)
    third = flat @ exact["fc1.weight"] + exact["fc1.bias"]
    fourth = numpy.maximum(third, 0) * scales[1]
    result = log_softmax(numpy, fourth @ exact["fc2.weight"] + exact["fc2.bias"])
    return Forward(
        exact,
        images,
        labels,
        (scales[0], scales[1]),
        first,
        second,
        pooled,
        chosen,
        flat,
        third,
        fourth,
        result,
    )


def backward(numpy: Any, passed: Forward, active: Any) -> dict[str, Any]:
    """Return the gradient of the loss with respect to each parameter, by parameter name.

    `active` is a mask of the fc1 units whose output is above 0.
    """
    exact = passed.weights
    count = len(passed.labels)
    # Each name is the loss's gradient of what it is in the forward pass.
    scores = numpy.exp(passed.log_probabilities)
    scores[range(count), passed.labels] -= 1
    scores /= count
    third = scores @ exact["fc2.weight"].T * passed.scales[1] * active
    pooled = (third @ exact["fc1.weight"].T).reshape(passed.pooled.shape) * passed.scales[0]
    second = pool_gradient(numpy, passed.chosen, pooled) * (passed.second > 0)
    first_active = numpy.maximum(passed.first, 0)
    first, of_conv2 = convolution_gradients(numpy, first_active, exact["conv2.weight"], second)
    first *= passed.first > 0
    _, of_conv1 = convolution_gradients(numpy, passed.images, exact["conv1.weight"], first)
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


def log_softmax(numpy: Any, scores: Any) -> Any:
    """Return the log-probabilities of the classes for each row of `scores`."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=1, keepdims=True))


def convolve(numpy: Any, images: Any, weight: Any) -> Any:
    """Return the convolution of a batch of images, without padding or bias."""
    matrix = weight.reshape(-1, weight.shape[-1])
    return numpy.stack([_patches(numpy, image, weight) @ matrix for image in images])


def convolution_gradients(numpy: Any, images: Any, weight: Any, cotangent: Any) -> tuple[Any, Any]:
    """Return the gradients of a convolution with respect to its images and to its weight."""
    rows, columns = (size - 1 for size in weight.shape[:2])
    padded = numpy.pad(cotangent, ((0, 0), (rows, rows), (columns, columns), (0, 0)))
    of_images = convolve(numpy, padded, weight[::-1, ::-1].transpose(0, 1, 3, 2))
    of_weight = numpy.zeros((weight[..., 0].size, weight.shape[-1]))
    for image, each in zip(images, cotangent, strict=True):
        patches = _patches(numpy, image, weight)
        of_weight += patches.reshape(-1, len(of_weight)).T @ each.reshape(-1, each.shape[-1])
    return of_images, of_weight.reshape(weight.shape)


def _patches(numpy: Any, image: Any, weight: Any) -> Any:
    """Return the pixels under each position of the kernel, in the shape (rows, columns, values).

    The result is a copy. Since the copy for a single image fits into the processor's cache,
    multiplying it is twice as fast as multiplying views into all images.
    """
    size = weight.shape[:2]
    windows = numpy.lib.stride_tricks.sliding_window_view(image, size, axis=(0, 1))
    return windows.transpose(0, 1, 3, 4, 2).reshape(*windows.shape[:2], -1)


def pool(numpy: Any, images: Any) -> tuple[Any, Any]:
    """Return the largest pixel of each 2 × 2 window, and its position in the window.

    Positions are numbered from 0 to 3, row by row. If several pixels are equal, the first one is
    chosen, as in PyTorch.
    """
    largest = images[_CORNERS[0]]
    chosen = numpy.zeros(largest.shape, "u1")
    for number, corner in enumerate(_CORNERS[1:], 1):
        pixels = images[corner]
        chosen[pixels > largest] = number
        largest = numpy.maximum(pixels, largest)
    return largest, chosen


def pool_gradient(numpy: Any, chosen: Any, cotangent: Any) -> Any:
    """Return the gradient with respect to the images that `pool` received.

    The chosen pixel of each window receives the whole gradient of that window.
    """
    count, rows, columns, channels = cotangent.shape
    of_images = numpy.empty((count, 2 * rows, 2 * columns, channels))
    for number, corner in enumerate(_CORNERS):
        of_images[corner] = cotangent * (chosen == number)
    return of_images
