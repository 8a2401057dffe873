"""Where a training ran, judged by tensors, kernels and memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload import checks
from envbuilder.payload.interface import Kernel, Observation
from envbuilder.payload.machine.accelerators import device_of
from envbuilder.payload.report import PASSED, WARNING
from envbuilder.payload.training.dataset import SIDE

ON_CPU = Observation(
    (Kernel("aten::mkldnn_convolution", 9.0, False), Kernel("aten::mm", 2.0, False))
)
ON_GPU = Observation((*ON_CPU.kernels, Kernel("sgemm_128x64", 5.0, True)))


NEEDED = 100


def judged(
    accelerator: str, devices: list[str], observation: Observation, growth: int | None
) -> tuple[list[str], str]:
    place = device_of(accelerator)
    return checks.device_problems(accelerator, place, tuple(devices), observation, growth, NEEDED)


NO_TIME = Observation((*ON_CPU.kernels, Kernel("sgemm_128x64", 0.0, True)))
NO_CONVOLUTION = Observation((Kernel("aten::mm", 2.0, False),))
UNSEEN = "neither a kernel nor memory of {} was used"
LIVED = "tensors of the training step lived on {}"
GREW = "the memory of cuda grew by {} bytes, less than the data's 100"


@pytest.mark.parametrize(
    ("accelerator", "devices", "observation", "growth", "problems"),
    [
        ("cpu", ["cpu"], ON_CPU, None, []),
        ("cpu", ["cpu"], NO_CONVOLUTION, None, ["the profiler saw no convolution on the CPU"]),
        ("cpu", ["cpu"], ON_GPU, None, ["the profiler saw work elsewhere: sgemm_128x64"]),
        ("cuda", ["cuda"], ON_GPU, NEEDED, []),
        ("cuda", ["cpu"], ON_GPU, NEEDED, [LIVED.format("cpu")]),
        ("cuda", ["cpu", "cuda"], ON_GPU, NEEDED, [LIVED.format("cpu, cuda")]),
        ("cuda", [], ON_GPU, NEEDED, [LIVED.format("nothing")]),
        *(
            ("cuda", ["cuda"], observation, growth, [GREW.format(growth)])
            for observation in (ON_CPU, ON_GPU)
            for growth in (NEEDED - 1, 0, -5)
        ),
        # AMD's GPUs are "cuda" to torch and "rocm" in the report.
        ("rocm", ["cuda"], ON_GPU, NEEDED, []),
        ("rocm", ["cpu"], ON_GPU, NEEDED, [LIVED.format("cpu")]),
        # A kernel that took no time did not run.
        ("rocm", ["cuda"], NO_TIME, None, [UNSEEN.format("rocm")]),
        ("xpu", ["xpu"], ON_CPU, None, [UNSEEN.format("xpu")]),
        ("xpu", ["xpu"], ON_GPU, None, []),
        # Memory stands in where the profiler is blind.
        ("mps", ["mps"], ON_CPU, 4096, []),
    ],
)
def test_where_the_work_was_done(
    accelerator: str,
    devices: list[str],
    observation: Observation,
    growth: int | None,
    problems: list[str],
) -> None:
    assert judged(accelerator, devices, observation, growth)[0] == problems


@pytest.mark.parametrize(
    ("accelerator", "observation", "growth", "evidence"),
    [
        ("cpu", ON_CPU, None, "2 operators on the CPU"),
        ("cuda", ON_GPU, 100, "1 different kernels on cuda; its memory grew by 100 bytes"),
        ("xpu", ON_GPU, None, "1 different kernels on xpu"),
        ("mps", ON_CPU, 4096, "no kernel on mps; its memory grew by 4096 bytes"),
    ],
)
def test_the_evidence_is_told(
    accelerator: str, observation: Observation, growth: int | None, evidence: str
) -> None:
    told = judged(accelerator, [device_of(accelerator)], observation, growth)[1]
    assert told == f"the profiler saw {evidence}"


def test_kernels_by_prefix_and_by_cost() -> None:
    assert ON_GPU.matching("aten::m") == ["aten::mkldnn_convolution", "aten::mm"]
    assert ON_GPU.matching("mkldnn") == []
    assert ON_GPU.top() == ["sgemm_128x64"]
    assert ON_CPU.top() == ["aten::mkldnn_convolution", "aten::mm"]


@pytest.mark.parametrize(("accelerator", "status"), [("cuda", WARNING), ("mps", PASSED)])
def test_memory_without_a_kernel_is_weaker_evidence_except_on_a_mac(
    accelerator: str, status: str
) -> None:
    """On an H200, a profiler that saw nothing passed."""
    data = (SimpleNamespace(labels=[0]),)
    run: Any = SimpleNamespace(accelerator=accelerator, observed=NO_TIME, tensors=data)
    ready: Any = SimpleNamespace(device_type=lambda: "gpu")
    assert checks.check_device_used(run, ready, ("gpu",), SIDE * SIDE)[0] == status
