from __future__ import annotations

import math
from unittest.mock import Mock

import pytest

from envbuilder.payload.numerics import arithmetic
from envbuilder.payload.numerics.arithmetic import CASES, TOLERANCE, Errors
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


def run(dtype: str, error: Exception) -> Errors:
    """All cases on a device that raises."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arithmetic, "_run", Mock(side_effect=error))
        return arithmetic.errors(None, "cuda", dtype, "float32")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'"),
        TypeError("BFloat16 is not supported on MPS"),
        RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx"),
    ],
)
def test_a_half_type_may_be_missing_but_float32_may_not(error: Exception) -> None:
    errors = run("bfloat16", error)
    assert (errors.by_case, errors.lacking) == ({}, list(CASES))
    with pytest.raises(type(error)):
        run("float32", error)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "input and filter must have the same depth: 16 vs 4",
    ],
)
def test_any_other_error_in_a_half_type_is_a_fault(message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        run("float16", RuntimeError(message))


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
    assert arithmetic.errors(None, "cpu", dtype, stated).tolerance == expected


def test_the_faults_of_mps_have_cases_of_their_own() -> None:
    names = " ".join(CASES)
    for words in ("channel slice", "strided weight", "of a chunk", "groups", "conv3d", "channels"):
        assert words in names


def test_what_is_not_finite_is_infinitely_wrong() -> None:
    assert [arithmetic.or_infinite(error) for error in (0.5, math.nan)] == [0.5, math.inf]
