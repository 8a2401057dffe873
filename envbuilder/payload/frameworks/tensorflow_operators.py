"""The operators of ``plain_cases`` in TensorFlow, run one by one on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Tuple

from ..numerics.arithmetic import says_lacking
from ..numerics.plain_arithmetic import Device
from . import tensorflow_job

if TYPE_CHECKING:
    from ..numerics.convolution import Geometry


LACKING = ("not yet support", "Could not find device for node")
"""Phrases with which TensorFlow itself reports that a device lacks an operator."""


class TensorFlowOperators(Device):
    """TensorFlow's operators on one device."""

    optional = ("conv2d in groups", "conv2d of an expanded image")
    """On the CPU, their gradients are oneDNN's, which TensorFlow does not use on each processor."""

    def __init__(self, tensorflow: Any, place: str) -> None:
        self._tensorflow, self._place = tensorflow, place

    def differentiate(self, compute: Any, inputs: List[Any], dtype: str) -> Tuple[Any, List[Any]]:
        """Compute on inputs in ``dtype``; return the result and the gradients of the inputs."""
        tensorflow = self._tensorflow
        with tensorflow.device(self._place):
            tensors = [tensorflow.cast(tensorflow.constant(values), dtype) for values in inputs]
            with tensorflow.GradientTape() as tape:
                tape.watch(tensors)
                result = compute(self, *tensors)
            gradients = tape.gradient(result, tensors, tensorflow.stop_gradient(result))
        return self._numbers(result), [self._numbers(gradient) for gradient in gradients]

    def _numbers(self, tensor: Any) -> Any:
        return tensor.numpy().astype("float32")

    def lacks(self, error: BaseException) -> bool:
        """Return whether an error says that the device has no such operator for the dtype."""
        return says_lacking(error) or any(words in str(error) for words in LACKING)

    def transpose(self, array: Any, axes: Tuple[int, ...]) -> Any:
        """Return an array with its axes in another order."""
        return self._tensorflow.transpose(array, axes)

    def broadcast(self, array: Any, shape: Tuple[int, ...]) -> Any:
        """Return an array repeated along its axes of size 1."""
        return self._tensorflow.broadcast_to(array, shape)

    def tanh(self, array: Any) -> Any:
        """Return the hyperbolic tangent of each element."""
        return self._tensorflow.tanh(array)

    def sum(self, array: Any, axis: int) -> Any:
        """Return sums along an axis."""
        return self._tensorflow.reduce_sum(array, axis)

    def mean(self, array: Any) -> Any:
        """Return the mean of all elements."""
        return self._tensorflow.reduce_mean(array)

    def variance(self, array: Any, axis: int) -> Any:
        """Return variances along an axis, as means of squares."""
        return self._tensorflow.math.reduce_variance(array, axis)

    def norm(self, array: Any, axis: int) -> Any:
        """Return Euclidean norms along an axis."""
        return self._tensorflow.norm(array, axis=axis)

    def maximum(self, array: Any, axis: int) -> Any:
        """Return the largest elements along an axis."""
        return self._tensorflow.reduce_max(array, axis)

    def convolve(self, images: Any, weight: Any, geometry: Geometry) -> Any:
        """Return a convolution without a bias; TensorFlow sees the groups by the shapes."""
        border, stride = [geometry.padding] * 2, geometry.stride
        padding = [[0, 0], border, border, [0, 0]] if geometry.padding else "VALID"
        return self._tensorflow.nn.conv2d(
            images, weight, stride, padding, dilations=geometry.dilation
        )

    def pool(self, images: Any) -> Any:
        """Return the largest pixel of each window of 2 by 2."""
        return self._tensorflow.nn.max_pool2d(images, 2, 2, "VALID")

    def loss(self, scores: Any, labels: List[int]) -> Any:
        """Return the mean negative log-probability of the labels, as the training computes it."""
        return tensorflow_job.loss_of(self._tensorflow, scores, labels)
