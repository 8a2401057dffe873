"""JAX's operators for the small computations of ``plain_cases``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, List, Tuple

from ..numerics.arithmetic import LACKING
from ..numerics.plain_arithmetic import Device

if TYPE_CHECKING:
    from ..numerics.convolution import Geometry
    from ..numerics.plain_cases import Compute
    from .jax_device import JaxDevice
    from .jax_programs import Programs


class JaxOperators(Device):
    """The operators on one device; each case is compiled as a whole."""

    def __init__(self, device: JaxDevice, programs: Programs) -> None:
        self._device, self._programs = device, programs
        self._jax, self._numpy = device.jax, device.jax.numpy

    def differentiate(
        self, compute: Compute, inputs: List[Any], dtype: str
    ) -> Tuple[Any, List[Any]]:
        """Compute on inputs in ``dtype``; return the result and the gradients of the inputs."""
        put, fetch = self._device.put, self._device.fetch
        # Converted by numpy: the device would compile that for every shape.
        typed = [put(values.astype(self._numpy.dtype(dtype))) for values in inputs]
        result, gradients = self._jax.jit(partial(self._differentiate, compute))(*typed)
        float32 = self._device.numpy.float32
        return fetch(result).astype(float32), [fetch(g).astype(float32) for g in gradients]

    def _differentiate(self, compute: Compute, *inputs: Any) -> Tuple[Any, Any]:
        result, pull = self._jax.vjp(partial(compute, self), *inputs)
        return result, pull(result)

    def lacks(self, error: BaseException) -> bool:
        """Return whether an error says that the device has no such operator for the dtype."""
        text = str(error).lower().replace("_", " ")
        return any(words in text for words in (*LACKING, "unimplemented"))

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

    def convolve(self, images: Any, weight: Any, geometry: Geometry) -> Any:
        """Return a convolution, as the network computes it."""
        return self._programs.convolve(images, weight, geometry)

    def pool(self, images: Any) -> Any:
        """Return the largest pixel of each window, as the network computes it."""
        return self._programs.pool(images)

    def loss(self, scores: Any, labels: List[int]) -> Any:
        """Return the mean negative log-probability of the labels, as the network computes it."""
        log_probabilities = self._jax.nn.log_softmax(scores)
        return self._programs.likelihood(log_probabilities, self._numpy.array(labels))
