from __future__ import annotations

import pytest

from envbuilder.payload.interface import TOP, Kernel, Observation
from envbuilder.payload.machine.accelerators import device_of
from envbuilder.payload.numerics.profiling import Evidence, problems

ON_CPU = Observation(
    (Kernel("aten::mkldnn_convolution", 9.0, False), Kernel("aten::mm", 2.0, False))
)
ON_GPU = Observation((*ON_CPU.kernels, Kernel("sgemm_128x64", 5.0, True)))


NEEDED = 100


def judged(
    accelerator: str, devices: list[str], observation: Observation, growth: int | None
) -> tuple[list[str], str]:
    evidence = Evidence(tuple(devices), observation, growth, NEEDED)
    return problems(accelerator, device_of(accelerator), evidence)


def test_work_on_the_cpu() -> None:
    found, how = judged("cpu", ["cpu"], ON_CPU, None)
    assert found == []
    assert how == "the profiler saw 2 operators on the CPU"


def test_work_on_a_gpu() -> None:
    found, how = judged("cuda", ["cuda"], ON_GPU, 100)
    assert found == []
    assert how == "the profiler saw 1 different kernels on cuda; its memory grew by 100 bytes"


def test_amds_gpus_are_cuda_to_torch_and_rocm_in_the_report() -> None:
    problems_, how = judged("rocm", ["cuda"], ON_GPU, 100)
    assert problems_ == []
    assert how == "the profiler saw 1 different kernels on rocm; its memory grew by 100 bytes"
    assert judged("rocm", ["cpu"], ON_GPU, 100)[0] == ["tensors of the training step lived on cpu"]


def test_a_kernel_that_took_no_time_did_not_run() -> None:
    named = Observation((*ON_CPU.kernels, Kernel("sgemm_128x64", 0.0, True)))
    assert judged("rocm", ["cuda"], named, None)[0] == [
        "neither a kernel nor memory of rocm was used"
    ]


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cuda"], []])
def test_tensors_elsewhere(devices: list[str]) -> None:
    found, _ = judged("cuda", devices, ON_GPU, 100)
    assert len(found) == 1
    assert "lived on" in found[0]


@pytest.mark.parametrize("observation", [ON_CPU, ON_GPU])
@pytest.mark.parametrize("growth", [NEEDED - 1, 0, -5])
def test_memory_that_did_not_grow_by_the_data_means_not_used(
    observation: Observation, growth: int
) -> None:
    found, _ = judged("cuda", ["cuda"], observation, growth)
    assert found == [f"the memory of cuda grew by {growth} bytes, less than the data's 100"]


def test_no_kernel_and_no_count_of_memory_means_not_used() -> None:
    found, _ = judged("xpu", ["xpu"], ON_CPU, None)
    assert found == ["neither a kernel nor memory of xpu was used"]
    assert judged("xpu", ["xpu"], ON_GPU, None) == (
        [],
        "the profiler saw 1 different kernels on xpu",
    )


def test_memory_stands_in_where_the_profiler_is_blind_and_the_report_says_so() -> None:
    found, how = judged("mps", ["mps"], ON_CPU, 4096)
    assert found == []
    assert how == "the profiler saw no kernel on mps; its memory grew by 4096 bytes"


def test_a_cpu_run_without_convolutions_did_something_else() -> None:
    found, _ = judged("cpu", ["cpu"], Observation((Kernel("aten::mm", 2.0, False),)), None)
    assert found == ["the profiler saw no convolution on the CPU"]


def test_a_cpu_run_with_kernels_elsewhere() -> None:
    found, _ = judged("cpu", ["cpu"], ON_GPU, None)
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
