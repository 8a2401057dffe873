"""Small computations on contiguous and on strided arrays, for frameworks other than torch.

Each is written once over ``Operators``: a framework computes it on its device and differentiates it
by itself, numpy computes it in float64, and the gradient's formula stands beside it. As in
``cases``, the result is its own cotangent, so that gradients depend on each of its elements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .convolution import PLAIN, Geometry, convolve, pool
from .convolution import gradients as of_convolution
from .reference import log_softmax

MANY_CHANNELS = (1 << 16) + 1
LONG = 50_003
"""Within float16, in which TensorFlow counts the elements of a mean (tensorflow#115732)."""
CLASSES = 10

Compute = Callable[..., Any]
"""Takes operators and the inputs; slices and the signs of arithmetic are the arrays' own."""

Formula = Callable[..., Sequence[Any]]
"""Takes numpy, the cotangent and the inputs, and returns the gradient of each input."""


class Operators(ABC):
    """What the cases need beside slices and the signs of arithmetic, ``@`` among them.

    Images are (N, rows, columns, channels), weights (rows, columns, channels, outputs).
    """

    @abstractmethod
    def transpose(self, array: Any, axes: Tuple[int, ...]) -> Any:
        """Return an array with its axes in another order."""

    @abstractmethod
    def broadcast(self, array: Any, shape: Tuple[int, ...]) -> Any:
        """Return an array repeated along its axes of size 1."""

    @abstractmethod
    def tanh(self, array: Any) -> Any:
        """Return the hyperbolic tangent of each element."""

    @abstractmethod
    def sum(self, array: Any, axis: int) -> Any:
        """Return sums along an axis."""

    @abstractmethod
    def mean(self, array: Any) -> Any:
        """Return the mean of all elements."""

    @abstractmethod
    def variance(self, array: Any, axis: int) -> Any:
        """Return variances along an axis, as means of squares."""

    @abstractmethod
    def norm(self, array: Any, axis: int) -> Any:
        """Return Euclidean norms along an axis."""

    @abstractmethod
    def maximum(self, array: Any, axis: int) -> Any:
        """Return the largest elements along an axis."""

    @abstractmethod
    def convolve(self, images: Any, weight: Any, geometry: Geometry) -> Any:
        """Return a convolution without a bias."""

    @abstractmethod
    def pool(self, images: Any) -> Any:
        """Return the largest pixel of each window of 2 by 2."""

    @abstractmethod
    def loss(self, scores: Any, labels: List[int]) -> Any:
        """Return the mean negative log-probability of the labels, as the training computes it."""


class LikeNumpy(Operators):
    """The operators of numpy, and of a framework that has a module with the same names."""

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy

    def transpose(self, array: Any, axes: Tuple[int, ...]) -> Any:
        """Return an array with its axes in another order."""
        return array.transpose(axes)

    def broadcast(self, array: Any, shape: Tuple[int, ...]) -> Any:
        """Return an array repeated along its axes of size 1."""
        return self._numpy.broadcast_to(array, shape)

    def tanh(self, array: Any) -> Any:
        """Return the hyperbolic tangent of each element."""
        return self._numpy.tanh(array)

    def sum(self, array: Any, axis: int) -> Any:
        """Return sums along an axis."""
        return array.sum(axis=axis)

    def mean(self, array: Any) -> Any:
        """Return the mean of all elements."""
        return array.mean()

    def variance(self, array: Any, axis: int) -> Any:
        """Return variances along an axis, as means of squares."""
        return array.var(axis=axis)

    def norm(self, array: Any, axis: int) -> Any:
        """Return Euclidean norms along an axis."""
        return self._numpy.linalg.norm(array, axis=axis)

    def maximum(self, array: Any, axis: int) -> Any:
        """Return the largest elements along an axis."""
        return array.max(axis=axis)


class Reference(LikeNumpy):
    """The operators of numpy itself."""

    def convolve(self, images: Any, weight: Any, geometry: Geometry) -> Any:
        """Return a convolution without a bias."""
        return convolve(self._numpy, images, weight, geometry)

    def pool(self, images: Any) -> Any:
        """Return the largest pixel of each window of 2 by 2."""
        return pool(self._numpy, images)[0]

    def loss(self, scores: Any, labels: List[int]) -> Any:
        """Return the mean negative log-probability of the labels."""
        rows = self._numpy.arange(len(labels))
        return -log_softmax(self._numpy, scores)[rows, labels].mean()


@dataclass(frozen=True)
class Case:
    """A computation: shapes of its inputs, what it computes, and the gradient's formula.

    Without a formula only the result is compared.
    """

    shapes: Tuple[Tuple[int, ...], ...]
    compute: Compute
    formula: Optional[Formula] = None


def _matmul(operators: Operators, left: Any, right: Any) -> Any:
    return left @ right


def _of_matmul(numpy: Any, cotangent: Any, left: Any, right: Any) -> Sequence[Any]:
    return cotangent @ right.T, left.T @ cotangent


def _matmul_strided(operators: Operators, left: Any, right: Any) -> Any:
    return operators.transpose(left, (1, 0))[1:, :] @ right[::2, :]


def _of_matmul_strided(numpy: Any, cotangent: Any, left: Any, right: Any) -> Sequence[Any]:
    of_left, of_right = numpy.zeros_like(left), numpy.zeros_like(right)
    of_left.T[1:, :] = cotangent @ right[::2, :].T
    of_right[::2, :] = left[:, 1:] @ cotangent
    return of_left, of_right


def _matmul_chunks(operators: Operators, whole: Any) -> Any:
    first, second, third = (whole[:, n : n + 32] for n in (0, 32, 64))
    return second @ operators.transpose(third, (1, 0)) @ first


def _of_matmul_chunks(numpy: Any, cotangent: Any, whole: Any) -> Sequence[Any]:
    first, second, third = (whole[:, n : n + 32] for n in (0, 32, 64))
    of_first = third @ second.T @ cotangent
    of_second = cotangent @ first.T @ third
    of_third = first @ cotangent.T @ second
    return (numpy.concatenate([of_first, of_second, of_third], axis=1),)


def _matmul_expanded(operators: Operators, left: Any, right: Any) -> Any:
    return operators.broadcast(left, (7, 33, 65)) @ right


def _of_matmul_expanded(numpy: Any, cotangent: Any, left: Any, right: Any) -> Sequence[Any]:
    of_left = (cotangent @ right.transpose(0, 2, 1)).sum(axis=0, keepdims=True)
    return of_left, left.transpose(0, 2, 1) @ cotangent


def _linear(operators: Operators, values: Any, weight: Any, bias: Any) -> Any:
    return values[:, 5:] @ operators.transpose(weight, (1, 0)) + bias


def _of_linear(numpy: Any, cotangent: Any, values: Any, weight: Any, bias: Any) -> Sequence[Any]:
    of_values = numpy.zeros_like(values)
    of_values[:, 5:] = cotangent @ weight
    return of_values, cotangent.T @ values[:, 5:], cotangent.sum(axis=0)


def _elementwise(operators: Operators, whole: Any) -> Any:
    first, second, third = (whole[:, n : n + 32] for n in (0, 32, 64))
    return first * second + operators.tanh(third)


def _of_elementwise(numpy: Any, cotangent: Any, whole: Any) -> Sequence[Any]:
    first, second, third = (whole[:, n : n + 32] for n in (0, 32, 64))
    slope = 1 - numpy.tanh(third) ** 2
    parts = [cotangent * second, cotangent * first, cotangent * slope]
    return (numpy.concatenate(parts, axis=1),)


def _convolution(
    images: Tuple[int, ...], weight: Tuple[int, ...], geometry: Geometry = PLAIN
) -> Case:
    def compute(operators: Operators, images: Any, weight: Any) -> Any:
        return operators.convolve(images, weight, geometry)

    def formula(numpy: Any, cotangent: Any, images: Any, weight: Any) -> Sequence[Any]:
        return of_convolution(numpy, images, weight, cotangent, geometry)

    return Case((images, weight), compute, formula)


def _convolution_slice(operators: Operators, images: Any, weight: Any) -> Any:
    return operators.convolve(images[:, :, :, 2:18], weight, PLAIN)


def _of_convolution_slice(numpy: Any, cotangent: Any, images: Any, weight: Any) -> Sequence[Any]:
    of_images = numpy.zeros_like(images)
    of_images[..., 2:18], of_weight = of_convolution(numpy, images[..., 2:18], weight, cotangent)
    return of_images, of_weight


STRIDED = Geometry(stride=2, padding=1)


def _convolution_strided(operators: Operators, images: Any, weight: Any) -> Any:
    return operators.convolve(images, operators.transpose(weight, (0, 1, 3, 2)), STRIDED)


def _of_convolution_strided(numpy: Any, cotangent: Any, images: Any, weight: Any) -> Sequence[Any]:
    turned = weight.transpose(0, 1, 3, 2)
    of_images, of_turned = of_convolution(numpy, images, turned, cotangent, STRIDED)
    return of_images, of_turned.transpose(0, 1, 3, 2)


DILATED = Geometry(dilation=2)


def _convolution_expanded(operators: Operators, images: Any, weight: Any) -> Any:
    return operators.convolve(operators.broadcast(images, (8, 12, 12, 16)), weight, DILATED)


def _of_convolution_expanded(numpy: Any, cotangent: Any, images: Any, weight: Any) -> Sequence[Any]:
    expanded = numpy.broadcast_to(images, (8, 12, 12, 16))
    of_images, of_weight = of_convolution(numpy, expanded, weight, cotangent, DILATED)
    return of_images.sum(axis=0, keepdims=True), of_weight


def _pool(operators: Operators, images: Any) -> Any:
    return operators.pool(images)


def _sum_rows(operators: Operators, values: Any) -> Any:
    return operators.sum(values, 0)


def _of_sum_rows(numpy: Any, cotangent: Any, values: Any) -> Sequence[Any]:
    return (numpy.broadcast_to(cotangent, values.shape),)


def _sum_columns(operators: Operators, values: Any) -> Any:
    return operators.sum(values, 1)


def _of_sum_columns(numpy: Any, cotangent: Any, values: Any) -> Sequence[Any]:
    return (numpy.broadcast_to(cotangent[:, None], values.shape),)


def _sum_strided(operators: Operators, values: Any) -> Any:
    return operators.sum(operators.transpose(values, (1, 0))[3:, ::2], 0)


def _of_sum_strided(numpy: Any, cotangent: Any, values: Any) -> Sequence[Any]:
    of_values = numpy.zeros_like(values)
    of_values.T[3:, ::2] = cotangent
    return (of_values,)


def _sum_expanded(operators: Operators, values: Any) -> Any:
    return operators.sum(operators.broadcast(values, (129, 65)), 0)


def _of_sum_expanded(numpy: Any, cotangent: Any, values: Any) -> Sequence[Any]:
    return (numpy.broadcast_to(cotangent.sum(), values.shape),)


def _mean_long(operators: Operators, values: Any) -> Any:
    # Long enough that accumulation in half precision would stall.
    return operators.mean(values + 1)


def _variance(operators: Operators, values: Any) -> Any:
    return operators.variance(operators.transpose(values, (1, 0)), 0)


def _of_variance(numpy: Any, cotangent: Any, values: Any) -> Sequence[Any]:
    deviations = values - values.mean(axis=1, keepdims=True)
    return (cotangent[:, None] * deviations * 2 / values.shape[1],)


def _norm(operators: Operators, values: Any) -> Any:
    return operators.norm(operators.transpose(values, (1, 0)), 1)


def _of_norm(numpy: Any, cotangent: Any, values: Any) -> Sequence[Any]:
    return (cotangent * values / numpy.linalg.norm(values, axis=0),)


def _maximum(operators: Operators, values: Any) -> Any:
    return operators.maximum(operators.transpose(values, (1, 0))[1:], 0)


def _of_maximum(numpy: Any, cotangent: Any, values: Any) -> Sequence[Any]:
    of_values = numpy.zeros_like(values)
    used = values[:, 1:]
    # All that are equal share the gradient, as JAX and TensorFlow have it.
    largest = used == used.max(axis=1, keepdims=True)
    of_values[:, 1:] = largest * (cotangent / largest.sum(axis=1))[:, None]
    return (of_values,)


LABELS = [n % CLASSES for n in range(64)]


def _loss(operators: Operators, scores: Any) -> Any:
    return operators.loss(operators.transpose(scores, (1, 0)), LABELS)


def _of_loss(numpy: Any, cotangent: Any, scores: Any) -> Sequence[Any]:
    of_scores = numpy.exp(log_softmax(numpy, scores.T))
    of_scores[numpy.arange(len(LABELS)), LABELS] -= 1
    return (cotangent * of_scores.T / len(LABELS),)


CASES: Dict[str, Case] = {
    "matmul": Case(((257, 129), (129, 65)), _matmul, _of_matmul),
    "matmul of strided views": Case(((129, 257), (258, 65)), _matmul_strided, _of_matmul_strided),
    "matmul of chunks": Case(((64, 96),), _matmul_chunks, _of_matmul_chunks),
    "matmul of an expanded batch": Case(
        ((1, 33, 65), (7, 65, 17)), _matmul_expanded, _of_matmul_expanded
    ),
    "linear of a slice": Case(((64, 134), (10, 129), (10,)), _linear, _of_linear),
    "elementwise on chunks": Case(((33, 96),), _elementwise, _of_elementwise),
    "conv2d": _convolution((8, 20, 20, 16), (3, 3, 16, 24)),
    "conv2d of one channel": _convolution((8, 28, 28, 1), (3, 3, 1, 32)),
    "conv2d of a channel slice": Case(
        ((8, 20, 20, 20), (3, 3, 16, 24)), _convolution_slice, _of_convolution_slice
    ),
    "conv2d with a transposed weight": Case(
        ((8, 20, 20, 16), (3, 3, 24, 16)), _convolution_strided, _of_convolution_strided
    ),
    "conv2d in groups": _convolution((8, 20, 20, 16), (3, 3, 4, 24), Geometry(groups=4)),
    "conv2d of an expanded image": Case(
        ((1, 12, 12, 16), (3, 3, 16, 24)), _convolution_expanded, _of_convolution_expanded
    ),
    "conv2d of 65,537 channels": _convolution((1, 1, 2, MANY_CHANNELS), (1, 1, MANY_CHANNELS, 2)),
    "max_pool2d": Case(((8, 20, 20, 16),), _pool),
    "sum of rows": Case(((129, 257),), _sum_rows, _of_sum_rows),
    "sum of columns": Case(((129, 257),), _sum_columns, _of_sum_columns),
    "sum of a strided view": Case(((129, 257),), _sum_strided, _of_sum_strided),
    "sum of an expanded array": Case(((129, 1),), _sum_expanded, _of_sum_expanded),
    "mean of 50,003 numbers": Case(((LONG,),), _mean_long),
    "variance": Case(((65, 129),), _variance, _of_variance),
    "norm": Case(((65, 129),), _norm, _of_norm),
    "maximum": Case(((65, 129),), _maximum, _of_maximum),
    "log_softmax and loss": Case(((10, 64),), _loss, _of_loss),
}
