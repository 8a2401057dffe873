from __future__ import annotations

from typing import Any

import numpy
import pytest

from envbuilder.payload.numerics import plain_arithmetic, plain_cases
from envbuilder.payload.numerics.plain_cases import CASES, Reference

OPERATORS = Reference(numpy)
WITH_FORMULA = [name for name, case in CASES.items() if case.formula]


@pytest.mark.parametrize("name", WITH_FORMULA)
def test_a_formula_is_the_gradient_of_half_the_results_square(name: str) -> None:
    """Its gradient is the one whose cotangent is the result."""
    case, generator = CASES[name], numpy.random.default_rng(4)
    inputs = [generator.standard_normal(shape) / 4 for shape in case.shapes]
    directions = [generator.standard_normal(shape) for shape in case.shapes]
    assert case.formula is not None
    formula = case.formula(numpy, case.compute(OPERATORS, *inputs), *inputs)
    near = 1e-6
    for number, direction in enumerate(directions):

        def half_square(distance: float, number: int = number) -> Any:
            moved = list(inputs)
            moved[number] = inputs[number] + distance * directions[number]
            return (case.compute(OPERATORS, *moved) ** 2).sum() / 2

        slope = (half_square(near) - half_square(-near)) / (2 * near)
        assert slope == pytest.approx((formula[number] * direction).sum(), rel=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_is_to_the_nearest(dtype: str) -> None:
    values = numpy.random.default_rng(5).standard_normal(1000).astype(numpy.float32)
    rounded = plain_arithmetic.rounded(numpy, values, dtype)
    assert rounded.dtype == numpy.float32
    bits = {"bfloat16": 8, "float16": 11, "float32": 24}[dtype]
    subnormal = 2.0**-25 if dtype == "float16" else 0
    assert (abs(rounded - values) <= abs(values) * 2.0**-bits + subnormal).all()
    again = plain_arithmetic.rounded(numpy, rounded, dtype)
    assert numpy.array_equal(again, rounded)


def test_a_tie_is_rounded_to_the_even_neighbour() -> None:
    below, above = numpy.float32(1 + 2**-8), numpy.float32(1 + 3 * 2**-8)
    rounded = plain_arithmetic.rounded(numpy, numpy.array([below, above]), "bfloat16")
    assert rounded.tolist() == [1.0, 1 + 2**-6]


class Double(plain_arithmetic.Device, Reference):
    """A device that computes in float64 and has the gradients from the formulas."""

    error: Exception | None = None
    spoiled = False

    def differentiate(
        self, compute: plain_cases.Compute, inputs: list[Any], dtype: str
    ) -> tuple[Any, list[Any]]:
        if self.error:
            raise self.error
        case = next(case for case in CASES.values() if case.compute is compute)
        exact = [values.astype(float) for values in inputs]
        result = compute(self, *exact)
        gradients = list(case.formula(numpy, result, *exact)) if case.formula else []
        if self.spoiled:
            gradients[-1:] = [gradient * 1.1 for gradient in gradients[-1:]]
        return result, gradients

    def lacks(self, error: BaseException) -> bool:
        return "not implemented" in str(error)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_right_arithmetic_has_no_error(dtype: str) -> None:
    errors = plain_arithmetic.errors(numpy, Double(numpy), dtype, "float32")
    assert set(errors.by_case.values()) == {0.0}
    assert (list(errors.by_case), errors.lacking) == (list(CASES), [])


def test_wrong_gradients_are_named() -> None:
    device = Double(numpy)
    device.spoiled = True
    wrong = plain_arithmetic.errors(numpy, device, "float32", "float32").wrong()
    assert wrong == [f"float32 {name} (relative error 1.0e-01)" for name in WITH_FORMULA]


def test_a_half_type_may_be_missing_but_float32_may_not() -> None:
    device = Double(numpy)
    device.error = RuntimeError("not implemented on this device")
    errors = plain_arithmetic.errors(numpy, device, "float16", "float32")
    assert (errors.by_case, errors.lacking) == ({}, list(CASES))
    with pytest.raises(RuntimeError):
        plain_arithmetic.errors(numpy, device, "float32", "float32")


def test_a_case_that_is_optional_may_be_missing_in_float32_but_not_wrong() -> None:
    device = Double(numpy)
    device.optional = tuple(CASES)
    device.error = RuntimeError("not implemented on this device")
    errors = plain_arithmetic.errors(numpy, device, "float32", "float32")
    assert (errors.by_case, errors.lacking) == ({}, list(CASES))
    device.error, device.spoiled = None, True
    assert plain_arithmetic.errors(numpy, device, "float32", "float32").wrong()
    device.error = RuntimeError("an illegal memory access")
    with pytest.raises(RuntimeError, match="illegal"):
        plain_arithmetic.errors(numpy, device, "float32", "float32")


def test_any_other_error_in_a_half_type_is_a_fault() -> None:
    device = Double(numpy)
    device.error = RuntimeError("an illegal memory access")
    with pytest.raises(RuntimeError, match="illegal"):
        plain_arithmetic.errors(numpy, device, "float16", "float32")
