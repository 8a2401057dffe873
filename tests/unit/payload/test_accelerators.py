"""The table of accelerators, with stand-ins for torch: no GPU is needed to read a row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload.machine import accelerators, hardware
from envbuilder.payload.machine.accelerators import ACCELERATORS
from tests.support.host_trees import PROFILES


def torch_like(
    version: str,
    cuda: str | None = None,
    hip: str | None = None,
    xpu: str | None = None,
    mps: bool = False,
) -> Any:
    return SimpleNamespace(
        __version__=version,
        version=SimpleNamespace(cuda=cuda, hip=hip, xpu=xpu),
        backends=SimpleNamespace(mps=SimpleNamespace(is_built=lambda: mps)),
    )


@pytest.mark.parametrize(
    ("torch", "build", "runtime", "drives"),
    [
        (torch_like("2.13.0+cpu"), "cpu", None, {"cpu"}),
        (torch_like("2.13.0+cu130", cuda="13.0"), "cu130", "13.0", {"cpu", "cuda"}),
        # PyPI's wheels have no local part in some installers' eyes.
        (torch_like("2.15.0", cuda="13.2"), "cu132", "13.2", {"cpu", "cuda"}),
        (torch_like("2.12.1+xpu", xpu="20250302"), "xpu", "20250302", {"cpu", "xpu"}),
        (torch_like("2.13.0+rocm7.2", hip="7.2.1"), "rocm7.2", "7.2.1", {"cpu", "rocm"}),
        (torch_like("2.13.0", cuda="13.0", hip="7.2.1"), "rocm7.2", "13.0", {"cpu", "rocm"}),
        (torch_like("2.14.1", mps=True), "mps", None, {"cpu", "mps"}),
    ],
)
def test_the_build_and_what_it_drives(
    torch: Any, build: str, runtime: str | None, drives: set[str]
) -> None:
    assert accelerators.build_of(torch) == build
    assert accelerators.runtime_of(torch) == runtime
    assert {name for name, row in ACCELERATORS.items() if row.drives(torch)} == drives


def test_every_device_that_a_shipped_profile_expects_has_a_row() -> None:
    assert {profile.expects.device for profile in PROFILES} <= set(ACCELERATORS)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("  - CPU capability usage: AVX2\n  - Build", "AVX2"),
        ("  - CPU capability usage: NO AVX", "NO AVX"),
        ("", None),
    ],
)
def test_the_instruction_set_of_the_cpu(shown: str, expected: str | None) -> None:
    torch = SimpleNamespace(
        __config__=SimpleNamespace(show=lambda: f"PyTorch built with:\n{shown}")
    )
    assert ACCELERATORS["cpu"].describe(torch)["capability"] == expected


def gpu(**more: Any) -> Any:
    properties = SimpleNamespace(name="GPU", total_memory=16 << 30, **more)
    return SimpleNamespace(get_device_properties=lambda index: properties)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "nvidia_driver", lambda: "580.65")


@pytest.mark.usefixtures("driver")
def test_a_cuda_device() -> None:
    row = ACCELERATORS["cuda"]
    cudnn = SimpleNamespace(version=lambda: 91900)
    torch = SimpleNamespace(
        cuda=gpu(major=9, minor=0),
        backends=SimpleNamespace(cudnn=cudnn),
        version=SimpleNamespace(cuda="13.0", hip=None),
    )
    assert row.describe(torch) == {
        "name": "GPU",
        "memory_bytes": 16 << 30,
        "driver": "580.65",
        "capability": "sm_90",
    }
    assert row.runtime(torch) == "CUDA 13.0, cuDNN 91900, driver 580.65"


def test_rows_share_a_type_of_device_only_if_no_build_drives_both() -> None:
    """The name of a device in torch would else not say whose it is."""
    cuda = torch_like("2.13.0", cuda="13.0")
    hip = torch_like("2.13.0", hip="7.2.1")
    for torch in (cuda, hip):
        driven = [row.device for row in ACCELERATORS.values() if row.drives(torch)]
        assert sorted(driven) == ["cpu", "cuda"]


def test_an_xpu_device() -> None:
    row = ACCELERATORS["xpu"]
    torch = SimpleNamespace(
        xpu=gpu(driver_version="1.6.33578"), version=SimpleNamespace(cuda=None, xpu="20250302")
    )
    assert row.describe(torch)["driver"] == "1.6.33578"
    assert row.describe(torch)["capability"] is None
    assert row.runtime(torch) == "SYCL 20250302, Level Zero driver 1.6.33578"


def test_a_torch_that_does_not_know_the_device_has_none() -> None:
    row = ACCELERATORS["xpu"]
    assert not row.available(SimpleNamespace())
    assert row.count(SimpleNamespace()) == 0
    torch = SimpleNamespace(
        xpu=SimpleNamespace(is_available=lambda: True, device_count=lambda: 2),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)),
    )
    assert row.available(torch)
    assert row.count(torch) == 2
    assert ACCELERATORS["mps"].available(torch)
