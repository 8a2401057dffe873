from __future__ import annotations

import types
from typing import Any

import pytest

from envbuilder.payload.numerics import precision

PLAIN: dict[str, Any] = {
    "dtype": "float32",
    "matmul": "highest",
    "autocast": False,
    "cuda_tf32": False,
    "environment": {},
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "float32"),
        ({"environment": {"ONEDNN_DEFAULT_FPMATH_MODE": "STRICT"}}, "float32"),
        ({"environment": {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}}, "bfloat16"),
        ({"environment": {"ONEDNN_DEFAULT_FPMATH_MODE": "bf16"}}, "bfloat16"),
        ({"environment": {"ONEDNN_DEFAULT_FPMATH_MODE": "ANY"}}, "any"),
        ({"environment": {"NVIDIA_TF32_OVERRIDE": "0"}}, "float32"),
        ({"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}, "tf32"),
        ({"environment": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}}, "tf32"),
        ({"environment": {"HIPBLASLT_ALLOW_TF32": "0"}}, "float32"),
        ({"environment": {"HIPBLASLT_ALLOW_TF32": "1"}}, "tf32"),
        ({"autocast": True}, "autocast"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"cuda_tf32": True}, "tf32"),
        ({"matmul": "high"}, "tf32"),
        ({"matmul": "medium"}, "bfloat16"),
    ],
)
def test_what_lowers_the_precision_is_recognised(changes: dict[str, Any], expected: str) -> None:
    assert precision.effective({**PLAIN, **changes}) == expected


def test_float32_throughout_has_no_problem() -> None:
    assert precision.problems("float32", PLAIN, PLAIN, ["float32"]) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_change_on_either_side_of_the_training_is_found(when: str) -> None:
    lowered = {**PLAIN, "matmul": "medium"}
    sides = (lowered, PLAIN) if when == "before" else (PLAIN, lowered)
    found = precision.problems("float32", *sides, ["float32"])
    assert found == [f"float32 is stated, but bfloat16 is in effect {when} training"]


def test_a_tensor_of_another_type_is_found() -> None:
    found = precision.problems("float32", PLAIN, PLAIN, ["bfloat16", "float32"])
    assert found == ["float32 is stated, but tensors of bfloat16 took part"]


def test_tf32_computes_on_float32_tensors() -> None:
    tf32 = {**PLAIN, "cuda_tf32": True}
    assert precision.problems("tf32", tf32, tf32, ["float32"]) == []
    assert precision.problems("tf32", PLAIN, PLAIN, ["float32"]) != []


class Mixed:
    """A torch whose settings were made by the newer names, of a single library."""

    def __init__(self, library: str, value: str) -> None:
        none = types.SimpleNamespace(matmul=types.SimpleNamespace(fp32_precision="none"))
        self.backends = types.SimpleNamespace(cuda=none, mkldnn=none)
        setting = types.SimpleNamespace(fp32_precision=value, allow_tf32=False)
        setattr(self.backends, library, types.SimpleNamespace(matmul=setting))

    def get_float32_matmul_precision(self) -> str:
        raise RuntimeError("PyTorch is checking the matmul precision without a specific backend")


@pytest.mark.parametrize(
    ("library", "accelerator", "value", "expected"),
    [
        ("mkldnn", "cpu", "bf16", "medium"),
        ("mkldnn", "cpu", "tf32", "high"),
        ("mkldnn", "cpu", "ieee", "highest"),
        ("cuda", "cuda", "tf32", "high"),
        ("cuda", "cpu", "tf32", "highest"),
    ],
)
def test_the_newer_setting_of_a_library_is_read(
    library: str, accelerator: str, value: str, expected: str
) -> None:
    assert precision._matmul(Mixed(library, value), accelerator) == expected


@pytest.mark.parametrize(("place", "expected"), [("cpu", True), ("cuda", False), ("mps", False)])
def test_autocast_before_torch_2_4(place: str, expected: bool) -> None:
    old = types.SimpleNamespace(
        is_autocast_enabled=lambda: False, is_autocast_cpu_enabled=lambda: True
    )
    assert precision._autocast(old, place) is expected
    new = types.SimpleNamespace(is_autocast_enabled=lambda device: device == "cpu")
    assert precision._autocast(new, place) is expected
