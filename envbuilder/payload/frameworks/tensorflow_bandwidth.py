"""Memory bandwidth by TensorFlow, on the device and between host and device.

On the device it is a step of gradient descent, a = a - s·b. As in a triad, two arrays are read and
one is written, without a new array. TensorFlow has no page-locked arrays for its users.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict

from ..machine import clock, memory
from ..speed.bandwidth import COPY, PATHS, Measurement, array_bytes
from . import tensorflow_device


def measurements(tensorflow: Any, accelerator: str, budget: float) -> Dict[str, Measurement]:
    """Return path → function that measures its bytes per second, in about ``budget`` seconds each.

    For a path that does not exist here, the function returns None.
    """
    functions: Dict[str, Measurement] = dict.fromkeys(PATHS, lambda: None)
    functions["device"] = partial(_descent, tensorflow, accelerator, budget)
    if accelerator != "cpu":
        host, device = (tensorflow_device.place(name) for name in ("cpu", accelerator))
        functions["host_to_device"] = partial(_copy, tensorflow, budget, host, device)
        functions["device_to_host"] = partial(_copy, tensorflow, budget, device, host)
    return functions


def _descent(tensorflow: Any, accelerator: str, budget: float) -> float:
    cpu = accelerator == "cpu"
    limits = (memory.available_bytes(), memory.cache_bytes()) if cpu else (None, None)
    size, place = array_bytes(accelerator, *limits), tensorflow_device.place(accelerator)
    with tensorflow.device(place):
        ones = tensorflow.ones([size // 4])
        array, rate = tensorflow.Variable(ones), tensorflow.constant(1e-9)

    def work() -> None:
        with tensorflow.device(place):
            tensorflow.raw_ops.ResourceApplyGradientDescent(
                var=array.handle, alpha=rate, delta=ones
            )

    return 3 * size / clock.median_seconds(tensorflow_device.waiter(tensorflow), work, budget)


def _copy(tensorflow: Any, budget: float, source: str, target: str) -> float:
    with tensorflow.device(source):
        array = tensorflow.ones([COPY // 4])

    def work() -> Any:
        with tensorflow.device(target):
            return tensorflow.identity(array)

    return COPY / clock.median_seconds(tensorflow_device.waiter(tensorflow), work, budget)
