"""Correctness of the arithmetic of frameworks other than torch: each case against numpy's float64.

As in ``arithmetic``, both sides start from equal numbers, rounded to the dtype, and errors are
relative and norm-wise.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, List, Optional, Tuple

from ..evidence import Errors
from .arithmetic import HALVES, SCALE, SEED, TOLERANCE
from .plain_cases import CASES, Case, Compute, Operators, Reference
from .reference import relative_error


class Device(Operators):
    """The operators of a framework on its device."""

    optional: Tuple[str, ...] = ()
    """Cases that some devices of the framework lack even in float32, and say so."""

    @abstractmethod
    def differentiate(
        self, compute: Compute, inputs: List[Any], dtype: str
    ) -> Tuple[Any, List[Any]]:
        """Compute on inputs in ``dtype``; return the result and the gradients of the inputs.

        Inputs are numpy's, in float32; the rest is too, whatever ``dtype`` is. The result is its
        own cotangent.
        """

    @abstractmethod
    def lacks(self, error: BaseException) -> bool:
        """Return whether an error says that the device has no such operator for the dtype."""


def errors(numpy: Any, device: Device, dtype: str, stated: str) -> Errors:
    """Run every case in ``dtype``; the tolerance for float32 is that of the stated precision."""
    result = Errors(dtype, TOLERANCE[stated if dtype == "float32" else dtype])
    for name, case in CASES.items():
        optional = dtype in HALVES or name in device.optional
        error = _error(numpy, device, case, dtype, optional)
        if error is None:
            result.lacking.append(name)
        else:
            result.by_case[name] = error
    return result


def _error(numpy: Any, device: Device, case: Case, dtype: str, optional: bool) -> Optional[float]:
    generator = numpy.random.default_rng(SEED)
    inputs = [
        rounded(numpy, generator.standard_normal(shape, numpy.float32) * SCALE, dtype)
        for shape in case.shapes
    ]
    try:
        result, gradients = device.differentiate(case.compute, inputs, dtype)
    except Exception as error:
        if optional and device.lacks(error):
            return None
        raise
    exact = [values.astype(numpy.float64) for values in inputs]
    exact_result = case.compute(Reference(numpy), *exact)
    pairs = [(result, exact_result)]
    if case.formula is not None:
        formula = case.formula(numpy, exact_result, *exact)
        pairs += [(gradients[n], gradient) for n, gradient in enumerate(formula)]
    return max(relative_error(numpy, *pair) for pair in pairs)


def rounded(numpy: Any, values: Any, dtype: str) -> Any:
    """Round float32 numbers to a dtype's nearest, ties to even; they remain in float32."""
    if dtype == "float16":
        return values.astype(numpy.float16).astype(numpy.float32)
    if dtype == "bfloat16":
        bits = values.view(numpy.uint32)
        # numpy has no bfloat16; it is the upper half of float32.
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return bits.astype(numpy.uint32).view(numpy.float32)
    return values
