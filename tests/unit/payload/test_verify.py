from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload import dataset, verify
from envbuilder.payload.compilers import Outcome
from envbuilder.payload.events import Events
from envbuilder.payload.options import Options
from envbuilder.payload.profiling import Kernel, Observation
from envbuilder.payload.report import FAILED, PASSED, SKIPPED, CheckError
from envbuilder.payload.run import Run

DATA = dataset.load(Path(dataset.__file__).parents[1] / "data" / "mnist-subset")

KEYS = {
    "schema", "device", "torch", "precision", "threads", "dataset", "quick", "checks", "training",
    "kernels", "compile", "baseline", "speedup", "status", "reasons", "warnings",
}  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")


def report_of(options: Options) -> dict[str, Any]:
    return verify.verify(options, DATA, Events(io.StringIO()))


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in report["checks"]}


def test_without_torch_the_import_fails_and_the_report_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = report_of(Options("cpu"))
    assert set(report) == KEYS
    assert report["status"] == FAILED
    assert report["reasons"][0].startswith("import: ModuleNotFoundError")
    assert statuses(report)["accuracy"] == SKIPPED
    assert report["device"]["requested"] == "cpu"
    assert report["device"]["used"] is None
    assert report["training"] is None


def test_an_unexpected_exception_still_gives_a_report_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(run: Run) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(verify, "_verify", crash)
    report = report_of(Options("cpu"))
    assert report["status"] == FAILED
    assert report["reasons"] == ["run: unexpected ZeroDivisionError: by zero"]
    assert "crash" in report["traceback"]


def test_a_library_that_exits_does_not_take_the_report_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(run: Run) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(verify, "_verify", leave)
    assert report_of(Options("cpu"))["reasons"] == ["run: unexpected SystemExit: 0"]


@pytest.mark.parametrize(
    ("installed", "wanted", "fits"),
    [
        ("2.13.0+cpu", None, True),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13.0+cu130", False),
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
    run = Run(Options("cpu", torch_version=wanted), DATA, Events(io.StringIO()))
    run.threads = {"OMP_NUM_THREADS": None, "decided": 1}
    assert run.checks.run("import", verify._import, run) is fits
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
    verify._import(run)
    assert counts == expected


def accuracy(loss: float, reached: float) -> tuple[str, str]:
    run = Run(Options("cpu", min_accuracy=0.975), DATA, Events(io.StringIO()))
    run.epochs = [{"loss": 0.5, "accuracy": 0.1}, {"loss": loss, "accuracy": reached}]
    return verify._accuracy(run)


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


def test_variables_that_would_hide_work_on_the_cpu_are_unset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import os

    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    monkeypatch.setitem(sys.modules, "torch", None)
    report_of(Options("mps"))
    assert "PYTORCH_ENABLE_MPS_FALLBACK" not in os.environ


def kernels(*names: str) -> Observation:
    return Observation(tuple(Kernel(name, 1.0, False) for name in names))


def checked(options: Options, outcomes: list[Outcome]) -> tuple[str, str]:
    run = Run(options, DATA, Events(io.StringIO()))
    run.observed = kernels("aten::conv2d", "torch_ipex::convolution_forward")
    run.outcomes = outcomes
    return verify._kernels(run)


ZENTORCH = Options("cpu", require_kernels=("zentorch::",))


def test_kernels_in_training() -> None:
    found = checked(Options("cpu", require_kernels=("torch_ipex::",)), [])
    assert found == (PASSED, "torch_ipex:: in training: torch_ipex::convolution_forward")


def test_zentorch_must_be_seen_in_compiled_inference_and_in_compiled_training() -> None:
    seen = {"inference": kernels("zentorch::a"), "training": kernels("zentorch::b")}
    assert checked(ZENTORCH, [Outcome("inductor"), Outcome("zentorch", observed=seen)])[0] == PASSED


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
    assert checked(options, [])[0] == SKIPPED


def test_speedup_compares_first_epochs() -> None:
    run = Run(Options("cuda"), DATA, Events(io.StringIO()))
    assert run.report()["speedup"] is None
    run.baseline = {"device": "cpu", "seconds": 30.0}
    run.epochs = [{"seconds": 5.0}, {"seconds": 2.0}]
    assert run.report()["speedup"] == 6.0
