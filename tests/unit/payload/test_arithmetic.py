from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from envbuilder.payload.interface import Errors
from envbuilder.payload.numerics import arithmetic
from envbuilder.payload.numerics.arithmetic import CASES, PLAIN_CASES, TOLERANCE
from tests.support.recorded import replaced


def test_errors_outside_the_tolerance_are_named() -> None:
    errors = Errors("float32", 5e-5, {"matmul": 1e-7, "conv2d": 1.0, "sum": math.inf})
    assert errors.wrong() == [
        "float32 conv2d (relative error 1.0e+00)",
        "float32 sum (relative error inf)",
    ]


def test_what_a_device_lacks_is_named() -> None:
    errors = Errors("float16", 1e-2, {"matmul": 3e-4}, ["conv2d", "conv3d"])
    assert errors.phrase() == (
        "float16 1 cases, largest relative error 3.0e-04 (tolerance 1e-02), "
        "not offered: conv2d, conv3d"
    )
    assert Errors("bfloat16", 5e-2, {}, list(CASES)).phrase() == "no bfloat16 on this device"


def test_what_a_release_gets_wrong_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, arithmetic, "_case_error", 0.0)

    def judged(version: str, accelerator: str, dtype: str) -> Errors:
        torch = SimpleNamespace(__version__=version)
        return arithmetic.errors(torch, accelerator, dtype, "float32")

    old = judged("2.0.1+cu117", "cpu", "float16")
    assert set(CASES) - set(old.by_case) == {"mean of 100,003 numbers"}
    assert ", not judged: mean of 100,003 numbers (torch before 2.1 sums" in old.phrase()
    for other in (("2.1.2", "cpu", "float16"), ("2.0.1", "cuda", "float16")):
        assert (set(judged(*other).by_case), judged(*other).unjudged) == (set(CASES), {})
    assert judged("1.13.1", "cpu", "bfloat16").unjudged == {}


def run(dtype: str, error: Exception | None = None, *, plain: bool = False) -> Errors:
    """All cases on a device that computes in float64, or raises."""
    if not plain:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arithmetic, "_run", failing(error))
            return arithmetic.errors(None, "cuda", dtype, "float32")

    def compute(function: Any, inputs: list[Any], dtype: str) -> Any:
        failing(error)()
        exact = [values.astype(float) for values in inputs]
        return function(arithmetic.exact_operators(numpy), *exact)

    return arithmetic.plain_errors(numpy, compute, dtype, "float32")


def failing(error: Exception | None) -> Any:
    def work(*arguments: object) -> None:
        if error:
            raise error

    return work


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'"),
        TypeError("BFloat16 is not supported on MPS"),
        RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx"),
        ValueError("UNIMPLEMENTED: f16 convolution"),
        ValueError("Current CPU implementations do not yet support dilation rates above 1."),
        ValueError("Could not find device for node: {{node Conv2D}} = Conv2D[T=DT_BFLOAT16"),
    ],
)
def test_a_half_type_may_be_missing_but_float32_may_not(error: Exception, plain: bool) -> None:
    errors = run("bfloat16", error, plain=plain)
    assert (errors.by_case, errors.lacking) == ({}, list(PLAIN_CASES if plain else CASES))
    with pytest.raises(type(error)):
        run("float32", error, plain=plain)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "input and filter must have the same depth: 16 vs 4",
    ],
)
def test_any_other_error_in_a_half_type_is_a_fault(message: str, plain: bool) -> None:
    with pytest.raises(RuntimeError, match=message):
        run("float16", RuntimeError(message), plain=plain)


@pytest.mark.parametrize(
    ("dtype", "stated", "expected"),
    [
        ("float32", "float32", TOLERANCE["float32"]),
        ("float32", "tf32", TOLERANCE["tf32"]),
        ("float32", "bfloat16", TOLERANCE["bfloat16"]),
        ("float16", "bfloat16", TOLERANCE["float16"]),
    ],
)
def test_tolerances(
    monkeypatch: pytest.MonkeyPatch, dtype: str, stated: str, expected: float
) -> None:
    replaced(monkeypatch, arithmetic, "_case_error", 0.0)
    torch = SimpleNamespace(__version__="2.14.1")
    assert arithmetic.errors(torch, "cpu", dtype, stated).tolerance == expected


def test_the_faults_of_mps_have_cases_of_their_own() -> None:
    names = " ".join(CASES)
    for words in ("channel slice", "strided weight", "of a chunk", "groups", "conv3d", "channels"):
        assert words in names


# ---- frameworks whose arrays numpy reads


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_right_arithmetic_has_no_error(dtype: str) -> None:
    errors = run(dtype, plain=True)
    assert errors.by_case == dict.fromkeys(PLAIN_CASES, 0.0)
    assert errors.lacking == []


def test_wrong_results_are_named() -> None:
    def compute(function: Any, inputs: list[Any], dtype: str) -> Any:
        return 1.1 * function(arithmetic.exact_operators(numpy), *inputs)

    wrong = arithmetic.plain_errors(numpy, compute, "float32", "float32").wrong()
    assert wrong == [f"float32 {name} (relative error 1.0e-01)" for name in PLAIN_CASES]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_is_to_the_nearest(dtype: str) -> None:
    values = numpy.random.default_rng(5).standard_normal(1000).astype(numpy.float32)
    rounded = arithmetic.rounded(numpy, values, dtype)
    assert rounded.dtype == numpy.float32
    bits = {"bfloat16": 8, "float16": 11, "float32": 24}[dtype]
    subnormal = 2.0**-25 if dtype == "float16" else 0
    assert (abs(rounded - values) <= abs(values) * 2.0**-bits + subnormal).all()
    again = arithmetic.rounded(numpy, rounded, dtype)
    assert numpy.array_equal(again, rounded)


def test_a_tie_is_rounded_to_the_even_neighbour() -> None:
    below = numpy.float32(1 + 2**-8)
    above = numpy.float32(1 + 3 * 2**-8)
    rounded = arithmetic.rounded(numpy, numpy.array([below, above]), "bfloat16")
    assert rounded.tolist() == [1.0, 1 + 2**-6]
