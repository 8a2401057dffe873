from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from envbuilder.core import resources
from envbuilder.payload import verify
from envbuilder.payload.events import Events
from envbuilder.payload.options import Options
from envbuilder.payload.report import FAILED, SKIPPED
from envbuilder.payload.run import Run
from envbuilder.payload.training import dataset

DATA = dataset.load(resources.mnist_subset_dir())

KEYS = {
    "origins",
    "schema", "device", "torch", "precision", "threads", "dataset", "quick", "checks", "training",
    "kernels", "compile", "determinism", "measurements", "baseline", "speedup", "status", "reasons",
    "warnings", "contention",
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
    def crash(run: Run, cache: str) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(verify, "_verify", crash)
    report = report_of(Options("cpu"))
    assert report["status"] == FAILED
    assert report["reasons"] == ["run: unexpected ZeroDivisionError: by zero"]
    assert "crash" in report["traceback"]


def test_a_library_that_exits_does_not_take_the_report_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(run: Run, cache: str) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(verify, "_verify", leave)
    assert report_of(Options("cpu"))["reasons"] == ["run: unexpected SystemExit: 0"]


def test_variables_that_would_hide_work_on_the_cpu_are_unset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import os

    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    monkeypatch.setitem(sys.modules, "torch", None)
    report_of(Options("mps"))
    assert "PYTORCH_ENABLE_MPS_FALLBACK" not in os.environ


def test_speedup_compares_first_epochs() -> None:
    run = Run(Options("cuda"), DATA, Events(io.StringIO()))
    assert run.report()["speedup"] is None
    run.baseline = {"device": "cpu", "seconds": 30.0}
    run.epochs = [{"seconds": 5.0}, {"seconds": 2.0}]
    assert run.report()["speedup"] == 6.0
