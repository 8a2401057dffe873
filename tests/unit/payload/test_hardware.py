from __future__ import annotations

import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from envbuilder.payload.machine import hardware
from envbuilder.payload.report import PASSED, WARNING
from tests.support.repositories import lay


def test_the_peak_of_a_process(tmp_path: Path) -> None:
    root = lay(tmp_path, {"status": "Name:\tx\nVmHWM:\t  412 kB\nVmRSS:\t 400 kB\n"})
    assert hardware.process_peak(root / "status") == 412 * 1024


MEMINFO = "MemTotal:  100 kB\nMemAvailable:  50 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 50 * 1024),
        (
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": "1000\n",
                "sys/fs/cgroup/memory.current": "400\n",
            },
            600,
        ),
        (
            {
                "proc/self/cgroup": "0::/user/job\n",
                "sys/fs/cgroup/user/job/memory.max": "500\n",
                "sys/fs/cgroup/user/job/memory.current": "200\n",
                "sys/fs/cgroup/user/memory.max": "max\n",
                "sys/fs/cgroup/user/memory.current": "900\n",
                "sys/fs/cgroup/memory.max": "1000\n",
                "sys/fs/cgroup/memory.current": "950\n",
            },
            50,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "700\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "100\n",
            },
            600,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1200\n",
            },
            0,
        ),
    ],
)
def test_free_memory(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert hardware.available_bytes(lay(tmp_path, files)) == expected


@pytest.fixture
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "allowed_cpus", lambda: frozenset({0, 1}))


def cache(cpu: int, index: int, level: str, size: str, shared: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # One that both share counts once; others of lower levels do not.
        (
            {
                **cache(0, 3, "3", "32768K", "0-1"),
                **cache(1, 3, "3", "32768K", "0-1"),
                **cache(0, 2, "2", "1024K", "0"),
            },
            32 << 20,
        ),
        # Those of their own add up.
        ({**cache(0, 2, "2", "1024K", "0"), **cache(1, 2, "2", "1024K", "1")}, 2 << 20),
        *((cache(0, 3, "3", size, "0-1"), None) for size in ("", "lots", "-1K")),
    ],
)
def test_the_last_caches(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert hardware.cache_bytes(lay(tmp_path, files)) == expected


@given(st.text(), st.text())
def test_no_text_breaks_the_parsing(
    tmp_path_factory: pytest.TempPathFactory, first: str, second: str
) -> None:
    root = tmp_path_factory.mktemp("x")
    for name in ("proc/meminfo", "sys/fs/cgroup/memory.max", "status"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(first.encode("utf-8", "surrogatepass"))
    (root / "sys/fs/cgroup/memory.current").write_bytes(second.encode("utf-8", "surrogatepass"))
    hardware.available_bytes(root)
    hardware.process_peak(root / "status")


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /dev/shm")


@linux
def test_no_shared_memory_is_told_with_what_to_do(tmp_path: Path) -> None:
    status, text = hardware.check_shared_memory(tmp_path / "shm")
    assert status == WARNING
    assert "there is no" in text
    assert "--shm-size" in text


@linux
@pytest.mark.parametrize(("free", "advised"), [(64 << 20, True), (2 << 30, False)])
def test_little_shared_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, advised: bool
) -> None:
    monkeypatch.setattr(hardware.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    status, text = hardware.check_shared_memory(tmp_path)
    assert status == PASSED
    assert f"{free >> 20} MiB free" in text
    assert ("--shm-size" in text) is advised


# ---- drivers


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


def test_other_systems_need_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hardware.sys, "platform", "darwin")
    assert hardware.check_shared_memory(tmp_path / "shm")[0] == PASSED
