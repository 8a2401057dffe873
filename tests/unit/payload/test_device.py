from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload.machine import device
from envbuilder.payload.report import CheckError


def cpu_build() -> Any:
    return SimpleNamespace(
        __version__="2.13.0+cpu",
        version=SimpleNamespace(cuda=None, hip=None, xpu=None),
        backends=SimpleNamespace(
            mps=SimpleNamespace(is_built=lambda: False, is_available=lambda: False)
        ),
    )


@pytest.mark.parametrize(
    ("accelerator", "right"),
    [("cuda", "a CUDA build"), ("xpu", "an XPU build"), ("mps", "a macOS arm64 build")],
)
def test_a_cpu_build_cannot_drive_an_accelerator(accelerator: str, right: str) -> None:
    with pytest.raises(CheckError) as failed:
        device.require_build(cpu_build(), accelerator)
    message = str(failed.value)
    assert message.startswith(f"torch 2.13.0+cpu is a cpu build and cannot use {accelerator}; ")
    assert right in message


def test_the_advice_is_the_device_that_the_build_drives() -> None:
    torch = cpu_build()
    torch.version.cuda = "13.0"
    with pytest.raises(CheckError, match="or verify with --device cuda"):
        device.require_build(torch, "xpu")


def test_a_cpu_build_drives_the_cpu() -> None:
    assert "can drive cpu" in device.require_build(cpu_build(), "cpu")


def test_an_unavailable_device_is_told_in_torchs_own_words() -> None:
    def zeros(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\nmore")

    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False), zeros=zeros)
    with pytest.raises(CheckError, match=r"no cuda device can be used: Found no NVIDIA driver"):
        device.require_usable(torch, "cuda")


def test_a_device_that_torch_hides_without_a_reason() -> None:
    torch = SimpleNamespace(
        xpu=SimpleNamespace(is_available=lambda: False), zeros=lambda *_, **__: 0
    )
    with pytest.raises(CheckError, match="without a reason"):
        device.require_usable(torch, "xpu")


class Values:
    """A tensor's worth of the one computation that the check does."""

    def __init__(self, sound: bool) -> None:
        self.sound = sound

    def __mul__(self, other: int) -> Values:
        return self

    def __add__(self, other: int) -> Values:
        return self

    def to(self, place: str) -> Values:
        return self


def usable(sound: bool) -> Any:
    return SimpleNamespace(
        float32="float32",
        arange=lambda size, dtype, device=None: Values(sound if device else True),
        equal=lambda ours, expected: ours.sound and expected.sound,
        backends=SimpleNamespace(cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2")),
    )


def test_a_device_that_computes_rightly_is_usable() -> None:
    assert "allocated, computed and read back" in device.require_usable(usable(True), "cpu")


def test_a_device_that_returns_other_numbers_is_not_usable() -> None:
    with pytest.raises(CheckError, match="wrong numbers"):
        device.require_usable(usable(False), "cpu")


def test_a_gpu_too_old_for_this_torch_is_told_both_sides() -> None:
    def arange(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("CUDA error: no kernel image is available")

    torch = SimpleNamespace(
        float32="float32",
        arange=arange,
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


def test_memory_on_the_device_is_torchs_own_count() -> None:
    torch = SimpleNamespace(
        mps=SimpleNamespace(current_allocated_memory=lambda: 7),
        xpu=SimpleNamespace(memory_allocated=lambda: 8),
    )
    assert device.allocated(torch, "cpu") is None
    assert device.allocated(torch, "mps") == 7
    assert device.allocated(torch, "xpu") == 8
