from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

from envbuilder.payload.machine import hardware

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
    ],
)
def test_the_nvidia_driver_from_proc(tmp_path: Path, line: str) -> None:
    (tmp_path / "version").write_text(line + "GCC version:  gcc version 12.2.0\n")
    assert hardware.nvidia_driver(tmp_path / "version") == "580.65.06"


def test_amds_driver_has_a_version_of_its_own_or_the_kernels(tmp_path: Path) -> None:
    module = tmp_path / "amdgpu"
    assert hardware.amdgpu_driver(module) is None
    module.mkdir()
    assert hardware.amdgpu_driver(module) == f"of Linux {platform.release()}"
    (module / "version").write_text("6.16.6\n")
    assert hardware.amdgpu_driver(module) == "6.16.6"
