"""Memory bandwidth measured with JAX: STREAM's triad on the device, and copies to and from it.

JAX has no page-locked memory of the user's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Dict

from ..machine import clock, memory
from ..speed.bandwidth import COPY, PATHS, array_bytes

if TYPE_CHECKING:
    from ..interface import Measurement
    from .jax_device import JaxDevice


def measurements(device: JaxDevice, budget: float) -> Dict[str, Measurement]:
    """Return path → function that measures its bytes a second; None for a path without one."""
    functions: Dict[str, Measurement] = dict.fromkeys(PATHS, lambda: None)
    functions["device"] = partial(_triad, device, budget)
    if device.accelerator != "cpu":
        functions["host_to_device"] = partial(_to_device, device, budget)
        functions["device_to_host"] = partial(_to_host, device, budget)
    return functions


def _ones(device: JaxDevice, size: int) -> Any:
    return device.numpy.ones(size // 4, device.numpy.float32)


def _triad(device: JaxDevice, budget: float) -> float:
    cache = memory.cache_bytes() if device.accelerator == "cpu" else None
    size = array_bytes(device.accelerator, device.free(), cache)
    first, second = device.put((_ones(device, size), _ones(device, size)))
    work = partial(device.jax.jit(lambda left, right: left + 3 * right), first, second)
    return 3 * size / clock.median_seconds(device.wait, work, budget)


def _to_device(device: JaxDevice, budget: float) -> float:
    work = partial(device.put, _ones(device, COPY))
    return COPY / clock.median_seconds(device.wait, work, budget)


def _to_host(device: JaxDevice, budget: float) -> float:
    jax = device.jax
    remote = device.put(_ones(device, COPY))
    # To an array of JAX on the CPU: numpy's copy of an array is kept after the first time.
    work = partial(jax.device_put, remote, jax.devices("cpu")[0])
    return COPY / clock.median_seconds(device.wait, work, budget)
