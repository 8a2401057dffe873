from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload import checks
from envbuilder.payload.events import Events
from envbuilder.payload.interface import Kernel, Observation, Tensors
from envbuilder.payload.machine import clock
from envbuilder.payload.numerics.compilers import Outcome
from envbuilder.payload.options import Options
from envbuilder.payload.report import PASSED, SKIPPED, WARNING, CheckError
from envbuilder.payload.run import Run
from envbuilder.payload.training.dataset import SIDE, SUBSET_SHA256, Dataset, Split
from tests.support.recorded import replaced

FEW = Dataset("few", Split(b"aabbcc", b"abc", 2), Split(b"ddee", b"de", 2), dict(SUBSET_SHA256))


def a_run(device: str = "cpu", data: Dataset = FEW, **options: Any) -> Run:
    return Run(Options(device, **options), data, Events(io.StringIO()))


def framework(**parts: Any) -> Any:
    """As much of a framework as a check needs."""
    return SimpleNamespace(**parts)


def importing(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, installed: str = "2.13.0", **options: Any
) -> tuple[Run, list[int]]:
    """A run that imports a pretended PyTorch, and the thread counts that PyTorch is given."""
    counts: list[int] = []
    torch = SimpleNamespace(__version__=installed, set_num_threads=counts.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    run = a_run(**options)
    run.threads = {"OMP_NUM_THREADS": chosen, "decided": 3}
    return run, counts


@pytest.mark.parametrize(
    ("installed", "wanted", "fits"),
    [
        ("2.13.0+cpu", None, True),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0+cpu", "2.13.0+cu130", False),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13.1+cpu", "2.13.0", False),
        ("2.13.0a0+cpu", "2.13.0", False),
    ],
)
def test_the_version_of_torch(
    monkeypatch: pytest.MonkeyPatch, installed: str, wanted: str | None, fits: bool
) -> None:
    run, _ = importing(monkeypatch, None, installed, version=wanted)
    assert run.checks.run("import", checks.check_import, run) is fits
    if not fits:
        assert installed in run.checks.done[0].detail
        assert str(wanted) in run.checks.done[0].detail


@pytest.mark.parametrize(("chosen", "expected"), [(None, [3]), ("", [3]), ("many", [3]), ("2", [])])
def test_a_thread_count_of_the_user_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, expected: list[int]
) -> None:
    run, counts = importing(monkeypatch, chosen)
    checks.check_import(run)
    assert counts == expected


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite(loss: float) -> None:
    run = a_run()
    run.epochs = [{"loss": 0.5, "accuracy": 0.1}, {"loss": loss, "accuracy": 0.1}]
    assert not run.checks.run("step", checks.check_step, run)
    assert "not finite" in run.checks.done[0].detail


def kernels(*names: str) -> Observation:
    return Observation(tuple(Kernel(name, 1.0, False) for name in names))


def checked(outcomes: list[Outcome], **options: Any) -> tuple[str, str]:
    run = a_run(**options)
    run.observed = kernels("aten::conv2d", "torch_ipex::convolution_forward")
    run.outcomes = outcomes
    return checks.check_kernels(run)


ZENTORCH = ("zentorch::",)


def test_kernels_in_training() -> None:
    found = checked([], require_kernels=("torch_ipex::",))
    assert found == (PASSED, "torch_ipex:: in training: torch_ipex::convolution_forward")


def test_zentorch_must_be_seen_in_compiled_inference_and_in_compiled_training() -> None:
    seen = {"inference": kernels("zentorch::a"), "training": kernels("zentorch::b")}
    compiled = [Outcome("inductor"), Outcome("zentorch", observed=seen)]
    found = [f"zentorch:: in compiled {phase}" for phase in ("inference", "training")]
    text = f"{found[0]}: zentorch::a; {found[1]}: zentorch::b"
    assert checked(compiled, require_kernels=ZENTORCH) == (PASSED, text)


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
        checked(
            [Outcome("zentorch", error="install g++", observed=observed)], require_kernels=ZENTORCH
        )


def test_quick_skips_kernels_that_run_only_in_compiled_code() -> None:
    reason = "the required kernels run only in compiled code; a quick run compiles none"
    assert checked([], quick=True, require_kernels=ZENTORCH) == (SKIPPED, reason)


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


def measured(monkeypatch: pytest.MonkeyPatch, problems: list[str]) -> tuple[str, str]:
    def measure(bench: Any, epoch: Any, peak: Any, progress: Any) -> dict[str, Any]:
        assert bench.budget is checks.measure.FULL
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


def test_every_epoch_is_timed_by_all_clocks() -> None:
    run = a_run()
    run.epochs = [{"seconds": 0.05}]
    before = clock.Reading(10.0, 10.0, 0.0, None)
    run.intervals["epoch 1"] = before, clock.Reading(10.05, 11.5, 1.5, None)
    assert not run.checks.run("clock", checks.check_clock, run)
    assert run.checks.done[0].detail.startswith("epoch 1: the clock that times the work counted")


# ---- what a framework is asked


class Jaxlike(SimpleNamespace):
    """An imported framework."""

    version = "0.12.0.1"

    def extend(self, names: tuple[str, ...]) -> None:
        self.extended = names


def test_the_framework_is_imported_for_the_device_with_the_threads_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported = replaced(monkeypatch, checks.frameworks, "load", Jaxlike())
    run = a_run("cuda", framework="jax", version="0.12.0.1", extensions=("ipex",))
    run.threads = {"OMP_NUM_THREADS": None, "decided": 3}
    assert checks.check_import(run) == (PASSED, "jax 0.12.0.1")
    assert imported.calls == [("jax", "cuda", 3)]
    assert run.framework is imported.value
    assert imported.value.extended == ("ipex",)


def test_data_that_nobody_published_are_a_warning() -> None:
    counts = "2 training and 2 test images of few"
    assert checks.check_dataset(FEW) == (PASSED, counts)
    status, detail = checks.check_dataset(Dataset("few", FEW.train, FEW.test, {}))
    assert (status, detail.partition("; ")[0]) == (WARNING, counts)
    assert "neither MNIST nor the shipped subset" in detail


def test_the_device_must_have_grown_by_the_data() -> None:
    run = a_run("cuda")
    ready = framework(device_type=lambda: "gpu")
    run.observed = Observation((Kernel("sgemm", 1.0, True),))
    run.tensors = (Tensors([0], [0]), Tensors([0, 0], [0, 0]))
    needed = 3 * SIDE * SIDE
    how = f"the profiler saw 1 different kernels on cuda; its memory grew by {needed} bytes"
    text = f"parameters, gradients and activations were on cuda; {how}"
    assert checks.check_device_used(run, ready, ("gpu",), needed) == (PASSED, text)
    with pytest.raises(CheckError) as caught:
        checks.check_device_used(run, ready, ("cpu", "gpu"), needed - 1)
    assert str(caught.value) == (
        f"tensors of the training step lived on cpu, gpu; the memory of cuda grew by {needed - 1}"
        f" bytes, less than the data's {needed}; {how.replace(f'{needed} b', f'{needed - 1} b')}"
    )


def test_kernels_that_a_release_cannot_show_are_no_pass() -> None:
    run = a_run()
    ready = framework(device_type=lambda: "cpu")
    run.observed = Observation((), "jax 0.4.35 cannot read them")
    found = checks.check_device_used(run, ready, ("cpu",), None)
    where = "parameters, gradients and activations were on cpu"
    why = "what ran is not judged: jax 0.4.35 cannot read them"
    assert found == (WARNING, f"{where}; {why}")
    with pytest.raises(CheckError, match="lived on gpu"):
        checks.check_device_used(run, ready, ("gpu",), None)


def test_the_precision_is_held_against_what_was_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = replaced(monkeypatch, checks.precision, "problems", [])
    run = a_run(precision="bfloat16")
    run.precision = {"after": 1}
    expected = (PASSED, "bfloat16 throughout")
    assert checks.check_precision(run, {"before": 1}, ("bfloat16",)) == expected
    assert compared.calls == [("bfloat16", {"before": 1}, {"after": 1}, ("bfloat16",))]
    compared.value = ["one", "another"]
    with pytest.raises(CheckError, match=r"^one; another$"):
        checks.check_precision(run, {}, ())
