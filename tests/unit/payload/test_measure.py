"""Arithmetic and faults of measuring; real measurements are in the integration tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.payload import measure
from envbuilder.payload.frameworks.torch_ import Torch
from envbuilder.payload.interface import Tensors

MIB = 1 << 20


@pytest.mark.parametrize(
    ("accelerator", "free", "cache", "expected"),
    [
        ("cpu", None, None, 64 * MIB),
        ("cpu", 32 << 30, 32 * MIB, 64 * MIB),
        ("cpu", 32 << 30, 96 * MIB, 128 * MIB),
        ("cpu", 1 << 40, 1152 * MIB, 512 * MIB),
        ("cpu", 512 * MIB, 96 * MIB, 32 * MIB),
        ("cpu", 0, None, MIB),
        ("cuda", 80 << 30, None, 512 * MIB),
        ("cuda", 4 << 30, None, 256 * MIB),
    ],
)
def test_arrays_outgrow_the_cache_but_not_the_memory(
    accelerator: str, free: int | None, cache: int | None, expected: int
) -> None:
    assert measure.array_bytes(accelerator, free, cache) == expected


def paths(accelerator: str, devices: int = 1) -> set[str]:
    module = SimpleNamespace(device_count=lambda: devices)
    array = SimpleNamespace(copy_=print)
    torch = SimpleNamespace(
        cuda=module, xpu=module, ones=lambda size, **options: array, add=print, __version__="2"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Torch, "_room", lambda self: (None, None))
        framework = Torch(torch, accelerator)
        return {path for path in measure.PATHS if framework.traffic(path)}


def test_paths_that_exist() -> None:
    assert paths("cpu") == {"device"}
    assert paths("mps") == {"device", "host_to_device", "device_to_host"}
    assert paths("cuda") == set(measure.PATHS) - {"device_to_device"}
    assert paths("xpu", devices=2) == set(measure.PATHS)


def bench() -> measure.Bench:
    nothing: Any = None
    data = Tensors([0] * 64, [0] * 64)
    return measure.Bench(nothing, measure.QUICK, nothing, data, data)


def test_a_measurement_that_fails_is_null_with_a_problem() -> None:
    subject = bench()

    assert (
        subject.attempt(
            "bandwidth device", Mock(side_effect=RuntimeError("out of memory\nat some place"))
        )
        is None
    )
    assert subject.problems == [
        "bandwidth device could not be measured: RuntimeError: out of memory"
    ]


def test_where_everything_fails_the_rest_of_the_report_is_whole() -> None:
    subject = bench()
    steps = []
    found = measure.measure(subject, None, 7, lambda done, total: steps.append((done, total)))
    assert set(found) == {
        "matmul", "bandwidth", "launch_seconds", "inference", "epoch_flops",
        "peak_memory_bytes", "matmul_share",
    }  # fmt: skip
    assert found["peak_memory_bytes"] == 7
    assert found["matmul"] == []
    assert found["launch_seconds"] is found["inference"] is found["matmul_share"] is None
    assert found["bandwidth"] == dict.fromkeys(measure.PATHS)
    assert len(subject.problems) == 4 + len(measure.PATHS)
    assert steps[-1] == (5, 5)


def test_a_device_that_was_not_used_has_no_peak() -> None:
    """Zero would make the report malformed, and hide what its check says."""
    assert measure.measure(bench(), None, 0, lambda *_: None)["peak_memory_bytes"] is None


RATES = [
    {"dtype": "bfloat16", "size": 2048, "flops_per_second": 9e11},
    {"dtype": "float32", "size": 2048, "flops_per_second": 2e11},
]


@pytest.mark.parametrize(
    ("operations", "epoch", "rates", "expected"),
    [
        (10**12, {"compute_seconds": 10.0}, RATES, 0.5),
        (10**12, {"compute_seconds": 10.0}, RATES[:1], None),
        (10**12, None, RATES, None),
        (10**12, {"compute_seconds": 0.0}, RATES, None),
    ],
)
def test_the_share_of_the_matmul_rate(
    operations: int | None,
    epoch: dict[str, float] | None,
    rates: list[dict[str, Any]],
    expected: float | None,
) -> None:
    assert measure._share(operations, epoch, rates) == expected
