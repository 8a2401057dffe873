from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.core import resources
from envbuilder.payload import checks
from envbuilder.payload.events import Events
from envbuilder.payload.interface import TOP, Kernel, Observation, Tensors
from envbuilder.payload.machine import clock
from envbuilder.payload.machine.accelerators import device_of
from envbuilder.payload.numerics.compilers import Outcome
from envbuilder.payload.options import Options
from envbuilder.payload.report import PASSED, SKIPPED, WARNING, CheckError
from envbuilder.payload.run import Run
from envbuilder.payload.training import dataset

DATA = dataset.load(resources.mnist_subset_dir())


def a_run(options: Options | None = None) -> Run:
    return Run(options or Options("cpu"), DATA, Events(io.StringIO()))


@pytest.mark.parametrize(
    ("installed", "wanted", "fits"),
    [
        ("2.13.0+cpu", None, True),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13.0+cu130", False),
        ("2.13.0", "2.13.0", True),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13.1+cpu", "2.13.0", False),
        ("2.13.0a0+cpu", "2.13.0", False),
    ],
)
def test_the_version_of_torch(
    monkeypatch: pytest.MonkeyPatch, installed: str, wanted: str | None, fits: bool
) -> None:
    torch = SimpleNamespace(__version__=installed, set_num_threads=lambda _: None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    run = Run(Options("cpu", version=wanted), DATA, Events(io.StringIO()))
    run.threads = {"OMP_NUM_THREADS": None, "decided": 1}
    assert run.checks.run("import", checks.check_import, run) is fits
    if not fits:
        assert installed in run.checks.done[0].detail
        assert str(wanted) in run.checks.done[0].detail


@pytest.mark.parametrize(("chosen", "expected"), [(None, [3]), ("", [3]), ("many", [3]), ("2", [])])
def test_a_thread_count_of_the_user_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, expected: list[int]
) -> None:
    counts: list[int] = []
    torch = SimpleNamespace(__version__="2.13.0", set_num_threads=counts.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    run = Run(Options("cpu"), DATA, Events(io.StringIO()))
    run.threads = {"OMP_NUM_THREADS": chosen, "decided": 3}
    checks.check_import(run)
    assert counts == expected


def accuracy(loss: float, reached: float) -> tuple[str, str]:
    run = Run(Options("cpu", min_accuracy=0.975), DATA, Events(io.StringIO()))
    run.epochs = [{"loss": 0.5, "accuracy": 0.1}, {"loss": loss, "accuracy": reached}]
    return checks.check_accuracy(run)


def test_accuracy_at_the_gate_passes() -> None:
    assert accuracy(0.1, 0.975)[0] == PASSED


@pytest.mark.parametrize(
    ("loss", "reached", "words"),
    [
        (0.1, 0.9749, "97.49%"),
        (float("nan"), 0.99, "not finite"),
        (float("inf"), 0.99, "not finite"),
    ],
)
def test_accuracy_below_the_gate_or_without_a_loss_fails(
    loss: float, reached: float, words: str
) -> None:
    with pytest.raises(CheckError, match=words):
        accuracy(loss, reached)


def kernels(*names: str) -> Observation:
    return Observation(tuple(Kernel(name, 1.0, False) for name in names))


def checked(options: Options, outcomes: list[Outcome]) -> tuple[str, str]:
    run = Run(options, DATA, Events(io.StringIO()))
    run.observed = kernels("aten::conv2d", "torch_ipex::convolution_forward")
    run.outcomes = outcomes
    return checks.check_kernels(run)


ZENTORCH = Options("cpu", require_kernels=("zentorch::",))


def test_kernels_in_training() -> None:
    found = checked(Options("cpu", require_kernels=("torch_ipex::",)), [])
    assert found == (PASSED, "torch_ipex:: in training: torch_ipex::convolution_forward")


def test_zentorch_must_be_seen_in_compiled_inference_and_in_compiled_training() -> None:
    seen = {"inference": kernels("zentorch::a"), "training": kernels("zentorch::b")}
    compiled = [Outcome("inductor"), Outcome("zentorch", observed=seen)]
    found = [f"zentorch:: in compiled {phase}" for phase in ("inference", "training")]
    text = f"{found[0]}: zentorch::a; {found[1]}: zentorch::b"
    assert checked(ZENTORCH, compiled) == (PASSED, text)


@pytest.mark.parametrize(
    "observed",
    [
        {},
        {"inference": kernels("zentorch::a")},
        {"inference": kernels("zentorch::a"), "training": kernels("aten::mm")},
    ],
)
def test_zentorch_kernels_that_are_missing_in_one_of_the_two(
    observed: dict[str, Observation],
) -> None:
    with pytest.raises(CheckError, match="compiled training: none; zentorch: install g"):
        checked(ZENTORCH, [Outcome("zentorch", error="install g++", observed=observed)])


def test_kernels_of_stock_inductor_are_not_zentorchs() -> None:
    seen = {"inference": kernels("zentorch::a"), "training": kernels("zentorch::b")}
    with pytest.raises(CheckError):
        checked(ZENTORCH, [Outcome("inductor", observed=seen)])


def test_quick_skips_kernels_that_run_only_in_compiled_code() -> None:
    options = Options("cpu", quick=True, require_kernels=("zentorch::",))
    reason = "the required kernels run only in compiled code; a quick run compiles none"
    assert checked(options, []) == (SKIPPED, reason)


def test_an_epoch_that_took_no_time_fails_the_clock() -> None:
    run = a_run()
    run.started = clock.Reading(*(now - 10 for now in vars(clock.read()).values() if now))
    run.epochs = [{"seconds": 5.0}, {"seconds": -0.5}]
    with pytest.raises(CheckError, match=r"an epoch took -0.500 s"):
        checks.check_clock(run)


def test_a_clock_that_ran_backwards_fails() -> None:
    run = a_run()
    now = clock.read()
    run.started = clock.Reading(now.counter + 60, now.monotonic - 60, now.wall, None)
    with pytest.raises(CheckError, match="moved by -"):
        checks.check_clock(run)
    # Nor is it forgotten for what follows, an epoch without any time among it.
    run.intervals["epoch 1"] = clock.Reading(0.0, 0.0, 0.0, None), clock.Reading(2, 1, 1, None)
    run.epochs = [{"seconds": 0.0}]
    with pytest.raises(CheckError, match=r"moved by -.*; epoch 1: .*; an epoch took 0\.000 s$"):
        checks.check_clock(run)


def test_a_short_epoch_is_still_one() -> None:
    run = a_run()
    run.epochs = [{"seconds": 0.01}]
    assert checks.check_clock(run)[0] == PASSED


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ({"steps": 5, "equal": True, "largest_difference": 0.0}, PASSED),
        ({"steps": 5, "equal": False, "largest_difference": 1e-4}, WARNING),
    ],
)
def test_a_difference_of_two_seeded_runs_is_told_and_not_judged(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], status: str
) -> None:
    monkeypatch.setattr(checks, "compare_seeded", lambda framework, seed, batches: found)
    run = a_run(Options("cpu", quick=True))
    run.tensors = (Tensors([], []),)
    ready: Any = SimpleNamespace(batches=lambda data, count: [], deterministic="a switch")
    outcome, detail = checks.check_determinism(run, ready)
    assert outcome == status
    assert ("1.0e-04" in detail) is (status == WARNING)
    assert run.report()["determinism"] == found


def test_missing_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.hardware, "shared_problem", lambda: ("there is no /dev/shm", ""))
    assert checks.check_shared_memory() == (WARNING, "there is no /dev/shm")


def measured(monkeypatch: pytest.MonkeyPatch, problems: list[str]) -> tuple[str, str]:
    def measure(bench: Any, epoch: Any, peak: Any, progress: Any) -> dict[str, Any]:
        if problems == ["crash"]:
            raise MemoryError("no room")
        bench.problems.extend(problems)
        return {"matmul": None if problems else [{"dtype": "float32", "flops_per_second": 2e11}]}

    monkeypatch.setattr(checks.measure, "measure", measure)
    run = a_run()
    run.job = SimpleNamespace()  # type: ignore[assignment]
    run.tensors = (Tensors([], []), Tensors([], []))
    ready: Any = SimpleNamespace(accelerator="cuda", threads=dict)
    return checks.check_measurements(run, ready)


def test_a_failing_measurement_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, []) == (PASSED, "matmul in operations a second: float32 2.00e+11")
    several = measured(monkeypatch, ["matmul: no memory", "launch: none"])
    assert several == (WARNING, "matmul: no memory; launch: none")
    crashed = measured(monkeypatch, ["crash"])
    assert crashed == (WARNING, "nothing could be measured: MemoryError: no room")


@pytest.mark.parametrize(
    ("loss", "moved", "words"),
    [
        (0.2, {"conv1.weight": 0.1}, None),
        (2.3129, {"conv1.weight": 0.1}, "training loss of the last epoch is 2.313; at most 0."),
        (float("nan"), {"conv1.weight": 0.1}, "is nan"),
        (0.2, {"conv1.weight": 0.0, "fc1.bias": 0.1}, "did not change conv1.weight"),
        (0.2, {"conv1.weight": float("nan")}, "did not change conv1.weight"),
    ],
)
def test_learning(loss: float, moved: dict[str, float], words: str | None) -> None:
    run = a_run()
    run.epochs, run.moved = [{"loss": 0.9}, {"loss": loss}], moved
    assert run.checks.run("learning", checks.check_learning, run) is (words is None)
    if words:
        assert words in run.checks.done[0].detail


def test_every_epoch_is_timed_by_all_clocks() -> None:
    run = a_run()
    run.epochs = [{"seconds": 0.05}]
    before = clock.Reading(10.0, 10.0, 0.0, None)
    run.intervals["epoch 1"] = before, clock.Reading(10.05, 11.5, 1.5, None)
    assert not run.checks.run("clock", checks.check_clock, run)
    assert run.checks.done[0].detail.startswith("epoch 1: the clock that times the work counted")


# ---- where the training ran

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
