"""Convolution and max-pool of numpy arrays, with their gradients: the reference of other modules.

Images are (N, rows, columns, channels) and weights (rows, columns, channels, outputs), as JAX and
TensorFlow hold them. A convolution is one matrix product for each position in the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Tuple


@dataclass(frozen=True)
class Geometry:
    """How the kernel moves over the images, equal in both directions."""

    stride: int = 1
    padding: int = 0
    groups: int = 1
    dilation: int = 1


PLAIN = Geometry()


def convolve(numpy: Any, images: Any, weight: Any, geometry: Geometry = PLAIN) -> Any:
    """Return the convolution of a batch of images, without a bias."""
    padded = _pad(numpy, images, geometry.padding)
    parts = []
    for channels, outputs in _groups(weight, geometry):
        part: Any = 0
        for row, column, window in _windows(padded, weight, geometry):
            part = part + padded[window][..., channels] @ weight[row, column][:, outputs]
        parts.append(part)
    return numpy.concatenate(parts, axis=3)


def gradients(
    numpy: Any, images: Any, weight: Any, cotangent: Any, geometry: Geometry = PLAIN
) -> Tuple[Any, Any]:
    """Return the gradients of the images and of the weight."""
    padded = _pad(numpy, images, geometry.padding)
    of_padded, of_weight = numpy.zeros_like(padded), numpy.zeros_like(weight)
    for channels, outputs in _groups(weight, geometry):
        part = cotangent[..., outputs]
        for row, column, window in _windows(padded, weight, geometry):
            kernel = weight[row, column][:, outputs]
            seen = padded[window][..., channels]
            # A third of the time that numpy's tensordot over these axes takes.
            flat = seen.reshape(-1, seen.shape[-1]).T @ part.reshape(-1, part.shape[-1])
            of_weight[row, column][:, outputs] = flat
            of_padded[window][..., channels] += part @ kernel.T
    inside = slice(geometry.padding, -geometry.padding or None)
    return of_padded[:, inside, inside], of_weight


def pool(numpy: Any, images: Any) -> Tuple[Any, Any]:
    """Return the largest pixel of each window of 2 by 2, and which of the four it is.

    Of equal pixels it is the first, row by row, as in torch.
    """
    count, rows, columns, channels = images.shape
    windows = images.reshape(count, rows // 2, 2, columns // 2, 2, channels)
    windows = windows.transpose(0, 1, 3, 5, 2, 4).reshape(
        count, rows // 2, columns // 2, channels, 4
    )
    chosen = windows.argmax(axis=4)[..., None]
    return numpy.take_along_axis(windows, chosen, axis=4)[..., 0], chosen


def pool_gradient(numpy: Any, chosen: Any, cotangent: Any) -> Any:
    """Return the gradient of the images of ``pool``: all of it goes to the chosen pixels."""
    count, rows, columns, channels = cotangent.shape
    windows = numpy.zeros((*cotangent.shape, 4), cotangent.dtype)
    numpy.put_along_axis(windows, chosen, cotangent[..., None], axis=4)
    windows = windows.reshape(count, rows, columns, channels, 2, 2)
    return windows.transpose(0, 1, 4, 2, 5, 3).reshape(count, rows * 2, columns * 2, channels)


def _pad(numpy: Any, images: Any, padding: int) -> Any:
    return numpy.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))


def _groups(weight: Any, geometry: Geometry) -> Iterator[Tuple[slice, slice]]:
    """Yield the channels of each group, and its outputs."""
    channels, outputs = weight.shape[2], weight.shape[3] // geometry.groups
    for group in range(geometry.groups):
        yield (
            slice(group * channels, (group + 1) * channels),
            slice(group * outputs, (group + 1) * outputs),
        )


def _windows(
    padded: Any, weight: Any, geometry: Geometry
) -> Iterator[Tuple[int, int, Tuple[slice, slice, slice]]]:
    """Yield each position in the kernel, and the pixels that meet it."""
    spans = [_span(padded.shape[axis], weight.shape[axis - 1], geometry) for axis in (1, 2)]
    for row in range(weight.shape[0]):
        for column in range(weight.shape[1]):
            rows, columns = (
                slice(place * geometry.dilation, place * geometry.dilation + span, geometry.stride)
                for place, span in zip((row, column), spans)  # noqa: B905 - Python 3.9
            )
            yield row, column, (slice(None), rows, columns)


def _span(size: int, kernel: int, geometry: Geometry) -> int:
    """Return how many pixels the kernel's first position passes over, from the first on."""
    return size - (kernel - 1) * geometry.dilation
