from __future__ import annotations

import math

import pytest

from envbuilder.payload.numerics import arithmetic
from envbuilder.payload.numerics.arithmetic import TOLERANCE, Errors
from envbuilder.payload.numerics.cases import CASES


def test_errors_outside_the_tolerance_are_named() -> None:
    errors = Errors("float32", 5e-5, {"matmul": 1e-7, "conv2d": 1.0, "sum": math.inf})
    assert errors.wrong() == [
        "float32 conv2d (relative error 1.0e+00)",
        "float32 sum (relative error inf)",
    ]


def test_an_error_that_is_no_number_is_wrong() -> None:
    assert Errors("float32", 5e-5, {"matmul": math.nan}).wrong() != []


def test_what_a_device_lacks_is_named() -> None:
    errors = Errors("float16", 1e-2, {"matmul": 3e-4}, ["conv2d", "conv3d"])
    assert errors.phrase() == (
        "float16 1 cases, largest relative error 3.0e-04 (tolerance 1e-02), "
        "not offered: conv2d, conv3d"
    )
    assert Errors("bfloat16", 5e-2, {}, list(CASES)).phrase() == "no bfloat16 on this device"


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(arithmetic, "_run", run)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'"),
        TypeError("BFloat16 is not supported on MPS"),
        RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx"),
    ],
)
def test_a_half_type_may_be_missing_but_float32_may_not(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing(monkeypatch, error)
    errors = arithmetic.errors(None, "cuda", "bfloat16", "float32")
    assert (errors.by_case, errors.lacking) == ({}, list(CASES))
    with pytest.raises(type(error)):
        arithmetic.errors(None, "cuda", "float32", "float32")


def test_any_other_error_in_a_half_type_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError):
        arithmetic.errors(None, "cuda", "float16", "float32")


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
    monkeypatch.setattr(arithmetic, "_case_error", lambda *arguments: 0.0)
    assert arithmetic.errors(None, "cpu", dtype, stated).tolerance == expected


def test_the_faults_of_mps_have_cases_of_their_own() -> None:
    names = " ".join(CASES)
    for words in ("channel slice", "strided weight", "of a chunk", "groups", "conv3d", "channels"):
        assert words in names
