"""The processor, its memory and the GPU drivers of this machine, without torch."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from pathlib import Path
from typing import Optional


def cpu_name() -> str:
    """Return the processor's marketing name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if match:
        return match.group(1).strip()
    try:
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return platform.processor() or platform.machine()


def physical_memory() -> Optional[int]:
    """Return the bytes of main memory; None if the system does not report them."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        return int(text.split("MemTotal:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None


def nvidia_driver(version: Path = Path("/proc/driver/nvidia/version")) -> Optional[str]:
    """Return the version of NVIDIA's kernel driver from /proc, else from NVML (WSL), else None."""
    try:
        text = version.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _nvml_driver()
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)", text)
    return match.group(1) if match else _nvml_driver()


def amdgpu_driver(module: Path = Path("/sys/module/amdgpu")) -> Optional[str]:
    """Return the version of AMD's kernel driver: its own, else the kernel's; None without it."""
    try:
        # Only AMD's packages of the driver have a version of their own.
        text = (module / "version").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return f"of Linux {platform.release()}" if module.is_dir() else None
    return text[:40] or None


def _nvml_driver() -> Optional[str]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        buffer = ctypes.create_string_buffer(80)
        if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(buffer, len(buffer)):
            return None
        return buffer.value.decode() or None
    except (OSError, AttributeError):
        return None
