from __future__ import annotations

import dataclasses
import io
import sys
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.core import resources
from envbuilder.payload import verify
from envbuilder.payload.events import Events
from envbuilder.payload.machine.accelerators import ACCELERATORS, architectures
from envbuilder.payload.options import Options
from envbuilder.payload.report import FAILED, SKIPPED
from envbuilder.payload.run import Run
from envbuilder.payload.training import dataset
from tests.support.hip import HipTorch

DATA = dataset.load(resources.mnist_subset_dir())

KEYS = {
    "origins",
    "schema", "device", "framework", "precision", "threads", "dataset", "quick", "checks",
    "training", "kernels", "compile", "measurements", "baseline", "speedup",
    "status", "reasons", "warnings", "contention",
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
    assert statuses(report)["clock"] == SKIPPED
    assert report["device"]["requested"] == "cpu"
    assert report["device"]["used"] is None
    assert report["training"] is None


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit(0)])
def test_what_ends_a_run_still_gives_a_report_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(verify, "_verify", Mock(side_effect=error))
    report = report_of(Options("cpu"))
    assert report["status"] == FAILED
    assert report["reasons"] == [f"run: unexpected {type(error).__name__}: {error}"]
    assert type(error).__name__ in report["traceback"]


def test_variables_that_would_hide_work_on_the_cpu_are_unset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import os

    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    monkeypatch.setitem(sys.modules, "torch", None)
    report_of(Options("mps"))
    assert "PYTORCH_ENABLE_MPS_FALLBACK" not in os.environ


DISGUISE = "HSA_OVERRIDE_GFX_VERSION"

ON_ROCM = {
    "no kfd": (HipTorch(), "/dev/there-is-no-kfd", "", "device", "torch is not imported"),
    "CPU build": (
        HipTorch(version="2.14.0+cpu", hip=None),
        "/dev/null",
        "",
        "build",
        "is a cpu build and cannot use rocm",
    ),
    "CPU build that states a HIP": (
        HipTorch(version="2.14.0+cpu"),
        "/dev/null",
        "",
        "build",
        "states a cpu build, but it was compiled as rocm7.2",
    ),
    "older HIP": (
        HipTorch(hip="6.4.43484"),
        "/dev/null",
        "",
        "build",
        "it was compiled as rocm6.4",
    ),
    "kfd without a GPU": (
        HipTorch(available=False),
        "/dev/null",
        "",
        "device",
        "no rocm device can be used: No HIP GPUs are available",
    ),
    "GPU in disguise": (HipTorch(), "/dev/null", "11.0.0", "device", f"{DISGUISE}=11.0.0 makes"),
    "GPU not listed": (HipTorch("gfx1036"), "/dev/null", "", "device", "this GPU is gfx1036;"),
    "nothing listed": (HipTorch(listed=""), "/dev/null", "", "device", "no kernels for the GPU"),
    "listed without code": (
        HipTorch("gfx1151", fails="HIP error: invalid device function\nmore"),
        "/dev/null",
        "",
        "device",
        "cannot compute: HIP error: invalid device function (this",
    ),
    "wrong numbers": (
        HipTorch(right=False),
        "/dev/null",
        "",
        "device",
        "rocm returned wrong numbers",
    ),
}
"""Sabotage → a torch, its device node, a disguise, and the check and the words that name it."""


@pytest.mark.parametrize("name", ON_ROCM)
def test_nothing_in_place_of_an_amd_gpu_is_verified(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, node, disguise, check, words = ON_ROCM[name]
    row = dataclasses.replace(ACCELERATORS["rocm"], nodes=(node,))
    monkeypatch.setitem(ACCELERATORS, "rocm", row)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv(DISGUISE, disguise)
    report = report_of(Options("rocm"))
    assert (report["status"], statuses(report)[check]) == (FAILED, FAILED)
    assert (report["device"]["requested"], report["device"]["used"]) == ("rocm", None)
    assert words in report["reasons"][0]
    assert "\n" not in report["reasons"][0]
    assert "traceback" not in report


def test_a_kernel_that_is_missing_in_the_training_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = dataclasses.replace(ACCELERATORS["rocm"], nodes=("/dev/null",))
    monkeypatch.setitem(ACCELERATORS, "rocm", row)
    monkeypatch.setitem(sys.modules, "torch", HipTorch("gfx1103"))
    monkeypatch.setattr(
        verify,
        "_train",
        Mock(
            side_effect=RuntimeError(
                "HIP error: invalid device function\nCompile with TORCH_USE_HIP_DSA"
            )
        ),
    )
    report = report_of(Options("rocm"))
    (reason,) = report["reasons"]
    assert reason == (
        "run: a part of this build has no kernel for the GPU: HIP error: invalid device function"
        f" (this GPU is gfx1103; this torch is built for {' '.join(architectures(HipTorch()))})"
    )
    assert "traceback" not in report
    assert report["device"]["capability"] == "gfx1103"


def test_speedup_compares_first_epochs() -> None:
    run = Run(Options("cuda"), DATA, Events(io.StringIO()))
    assert run.report()["speedup"] is None
    run.baseline = {"device": "cpu", "seconds": 30.0}
    run.epochs = [{"seconds": 5.0}, {"seconds": 2.0}]
    assert run.report()["speedup"] == 6.0
