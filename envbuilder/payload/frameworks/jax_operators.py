"""JAX's operators for the small computations of ``plain_cases``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, List, Tuple

from ..numerics.arithmetic import says_lacking
from ..numerics.plain_arithmetic import Device
from ..numerics.plain_cases import LikeNumpy

if TYPE_CHECKING:
    from ..numerics.convolution import Geometry
    from ..numerics.plain_cases import Compute
    from .jax_device import JaxDevice
    from .jax_programs import Programs


class JaxOperators(LikeNumpy, Device):
    """The operators on one device; each case is compiled as a whole."""

    def __init__(self, device: JaxDevice, programs: Programs) -> None:
        super().__init__(device.jax.numpy)
        self._device, self._programs, self._jax = device, programs, device.jax

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
        return says_lacking(error) or "unimplemented" in str(error).lower()

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
