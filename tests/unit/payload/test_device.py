from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy
import pytest

from envbuilder.payload.frameworks.torch_ import Torch
from envbuilder.payload.machine import device, hardware
from envbuilder.payload.machine.accelerators import ACCELERATORS
from envbuilder.payload.report import CheckError
from tests.support.hip import HipTorch
from tests.unit.payload.test_accelerators import torch_like


class Arrays(numpy.ndarray[Any, Any]):
    """An array with the method of a tensor."""

    def numpy(self) -> Any:
        return self


@pytest.mark.parametrize(
    ("accelerator", "right"),
    [
        ("cuda", "a CUDA build"),
        ("rocm", "a ROCm build"),
        ("xpu", "an XPU build"),
        ("mps", "a macOS arm64 build"),
    ],
)
def test_a_cpu_build_cannot_drive_an_accelerator(accelerator: str, right: str) -> None:
    with pytest.raises(CheckError) as failed:
        device.require_build(torch_like("2.13.0+cpu"), accelerator)
    message = str(failed.value)
    assert message.startswith(f"torch 2.13.0+cpu is a cpu build and cannot use {accelerator}; ")
    assert right in message


@pytest.mark.parametrize("version", ["2.14.0+rocm7.2", "2.14.0+rocm7.2.1", "2.14.0a0+git1234567"])
def test_a_rocm_build_drives_rocm(version: str) -> None:
    assert "can drive rocm" in device.require_build(HipTorch(version=version), "rocm")


def test_a_listed_gpu_computes_and_the_sentence_says_for_which_it_is_built() -> None:
    torch = HipTorch("gfx942:sramecc+:xnack-")
    assert device.require_usable(torch, "rocm").startswith(
        "Radeon RX 7900 XTX: allocated, computed and read back; this GPU is gfx942; this torch is"
        " built for gfx900 gfx90a gfx942 "
    )
    assert torch.done[0] == "arange cuda"


MISSING = (
    "HIP error: {}\nHIP kernel errors might be asynchronously reported at some other API call."
    "\nCompile with `TORCH_USE_HIP_DSA` to enable device-side assertions."
)


def test_a_missing_kernel_later_in_a_run_is_one_sentence() -> None:
    torch = Torch(HipTorch("gfx1103"), "rocm")
    assert torch.why_not(RuntimeError(MISSING.format("invalid device function"))).startswith(
        "a part of this build has no kernel for the GPU: HIP error: invalid device function (this"
        " GPU is gfx1103; this torch"
    )
    assert torch.why_not(ValueError("other")) == ""


@pytest.mark.parametrize(
    ("zeros", "reason"),
    [
        (RuntimeError("Found no NVIDIA driver on your system.\nmore"), "Found no NVIDIA driver"),
        (None, "without a reason"),
    ],
)
def test_an_unavailable_device_is_told_in_torchs_own_words(zeros: Any, reason: str) -> None:
    torch = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: False), zeros=Mock(side_effect=zeros)
    )
    with pytest.raises(CheckError, match=rf"no cuda device can be used: .*{reason}"):
        device.require_usable(torch, "cuda")


def test_a_gpu_too_old_for_this_torch_is_told_both_sides() -> None:
    torch = SimpleNamespace(
        float32="float32",
        arange=Mock(side_effect=RuntimeError("CUDA error: no kernel image is available")),
        cuda=SimpleNamespace(is_available=lambda: True, get_device_capability=lambda _: (6, 0)),
        _C=SimpleNamespace(_cuda_getArchFlags=lambda: "sm_75 sm_80"),
    )
    with pytest.raises(CheckError) as failed:
        device.require_usable(torch, "cuda")
    assert "this GPU is sm_60; this torch is built for sm_75 sm_80" in str(failed.value)


def test_only_accelerators_are_waited_for() -> None:
    waited = []
    torch = SimpleNamespace(mps=SimpleNamespace(synchronize=lambda: waited.append("mps")))
    device.synchronize(torch, "cpu")
    device.synchronize(torch, "mps")
    assert waited == ["mps"]
    hip = HipTorch()
    device.synchronize(hip, "rocm")
    assert hip.done == ["synchronize cuda"]


def test_memory_on_the_device_is_torchs_own_count() -> None:
    torch = SimpleNamespace(
        __version__="2",
        mps=SimpleNamespace(current_allocated_memory=lambda: 7),
        xpu=SimpleNamespace(memory_allocated=lambda: 8),
        cuda=SimpleNamespace(max_memory_allocated=lambda: 9),
    )
    counted = {
        name: (Torch(torch, name).allocated(), Torch(torch, name).peak())
        for name in ("mps", "xpu", "cuda")
    }
    assert counted == {"mps": (7, None), "xpu": (8, None), "cuda": (None, 9)}
    assert Torch(torch, "cpu").allocated() is None
    assert 0 < (Torch(torch, "cpu").peak() or 0) <= (hardware.process_peak() or 0)
    assert (Torch(HipTorch(), "rocm").allocated(), Torch(HipTorch(), "rocm").peak()) == (7, 8)


def test_a_torch_that_cannot_exchange_arrays_with_numpy_is_named() -> None:
    for from_numpy in (
        Mock(side_effect=RuntimeError("Numpy is not available")),
        lambda array: numpy.zeros(3).view(Arrays),
    ):
        torch = SimpleNamespace(__version__="2.1.2", from_numpy=from_numpy)
        with pytest.raises(CheckError, match=r"torch 2\.1\.2 does not work with numpy .*numpy<2"):
            device.require_arrays(torch)
    right = SimpleNamespace(from_numpy=lambda array: array.view(Arrays))
    device.require_arrays(right)


# ---- torch is not imported where that could hang, and no import lasts for ever


NULL = "/dev/null"
"""A device node that everybody may open."""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The device node that a build for AMD's GPUs needs."""
    path = str(request.param)
    monkeypatch.setitem(ACCELERATORS, "rocm", replace(ACCELERATORS["rocm"], nodes=(path,)))
    return path


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a module `torch` is found, which ends whoever imports it."""
    folder = tmp_path / "site/torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return folder


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("/dev/there-is-no-kfd", "/dev/there-is-no-kfd cannot be used (No such file or directory)"),
        (__file__, f"{__file__} is no device"),
        ("/dev", "/dev is no device"),
    ],
    indirect=["node"],
)
def test_without_its_device_node_torch_is_not_imported(
    node: str, problem: str, build: Path
) -> None:
    for _ in ("a build for it", "another build"):
        with pytest.raises(CheckError) as failed:
            device.torch_for("rocm")
        message = str(failed.value)
        assert message.startswith(f"{problem}; torch is not imported, since a build for rocm may")
        assert "amdgpu" in message
        (build / "lib/libtorch_hip.so").touch()


@pytest.mark.parametrize("node", [NULL], indirect=True)
def test_a_node_of_another_group_is_named(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(CheckError, match="may not be opened by this user; its group is 0"):
        device.require_nodes("rocm")


@pytest.mark.parametrize("node", ["/dev/there-is-no-kfd"], indirect=True)
def test_what_counts_is_the_build_and_not_what_was_asked_of_it(node: str, build: Path) -> None:
    with pytest.raises(SystemExit, match="imported"):
        device.torch_for("cpu")
    (build / "lib/libtorch_hip.so").touch()
    with pytest.raises(CheckError, match="torch is not imported"):
        device.torch_for("cpu")


def test_a_watchdog_guards_the_import_and_nothing_else(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    watchdog = SimpleNamespace(
        dump_traceback_later=lambda seconds, **named: calls.append((seconds, named["exit"])),
        cancel_dump_traceback_later=lambda: calls.append("cancelled"),
    )
    monkeypatch.setattr(device, "faulthandler", watchdog)
    with pytest.raises(SystemExit, match="imported"):
        device.torch_for("cpu")
    assert calls == [(device.SECONDS, True), "cancelled"]


def test_without_numpy_there_is_nothing_to_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    device.require_arrays(None)
