from __future__ import annotations

import pytest

from envbuilder.payload.profiling import TOP, Kernel, Observation, problems

ON_CPU = Observation(
    (Kernel("aten::mkldnn_convolution", 9.0, False), Kernel("aten::mm", 2.0, False))
)
ON_GPU = Observation((*ON_CPU.kernels, Kernel("sgemm_128x64", 5.0, True)))


def test_work_on_the_cpu() -> None:
    found, how = problems("cpu", ["cpu"], ON_CPU, None)
    assert found == []
    assert how == "the profiler saw 2 operators on the CPU"


def test_work_on_a_gpu() -> None:
    found, how = problems("cuda", ["cuda"], ON_GPU, 100)
    assert found == []
    assert how == "the profiler saw 1 different kernels on cuda"


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cuda"], []])
def test_tensors_elsewhere(devices: list[str]) -> None:
    found, _ = problems("cuda", devices, ON_GPU, 100)
    assert len(found) == 1
    assert "lived on" in found[0]


@pytest.mark.parametrize("growth", [None, 0, -5])
def test_no_kernel_and_no_memory_means_not_used(growth: int | None) -> None:
    found, _ = problems("cuda", ["cuda"], ON_CPU, growth)
    assert found == ["neither a kernel nor memory of cuda was used"]


def test_memory_stands_in_where_the_profiler_is_blind_and_the_report_says_so() -> None:
    found, how = problems("mps", ["mps"], ON_CPU, 4096)
    assert found == []
    assert how == "the profiler saw no kernel on mps; its memory grew by 4096 bytes during training"


def test_a_cpu_run_without_convolutions_did_something_else() -> None:
    found, _ = problems("cpu", ["cpu"], Observation((Kernel("aten::mm", 2.0, False),)), None)
    assert found == ["the profiler saw no convolution on the CPU"]


def test_a_cpu_run_with_kernels_elsewhere() -> None:
    found, _ = problems("cpu", ["cpu"], ON_GPU, None)
    assert found == ["the profiler saw work elsewhere: sgemm_128x64"]


def test_kernels_by_prefix_and_by_cost() -> None:
    assert ON_GPU.matching("aten::m") == ["aten::mkldnn_convolution", "aten::mm"]
    assert ON_GPU.matching("mkldnn") == []
    assert ON_GPU.top() == ["sgemm_128x64"]
    assert ON_CPU.top() == ["aten::mkldnn_convolution", "aten::mm"]


def test_the_report_names_no_more_than_the_top() -> None:
    many = Observation(tuple(Kernel(f"k{n}", float(n), False) for n in range(100)))
    assert many.top()[0] == "k99"
    assert len(many.top()) == TOP
