"""One accelerator as torch sees it: whether it is usable, what it is, and waiting for it."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from pathlib import Path
from typing import Any, Dict, Optional

from ..report import CheckError
from . import facts

ACCELERATORS = ("cpu", "cuda", "xpu", "mps")

FALLBACK_VARIABLES = ("PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_ENABLE_XPU_FALLBACK")
"""If these are set, operators that the device lacks silently run on the CPU; the payload unsets
them, so that a missing operator is an error."""


def synchronize(torch: Any, accelerator: str) -> None:
    """Wait until the device has finished; without this, timings measure only the queueing."""
    if accelerator != "cpu":
        getattr(torch, accelerator).synchronize()


def allocated(torch: Any, accelerator: str) -> Optional[int]:
    """Return the bytes that torch now holds on the device; None if torch does not count them."""
    if accelerator == "cpu":
        return None
    if accelerator == "mps":
        return int(torch.mps.current_allocated_memory())
    count = getattr(getattr(torch, accelerator), "memory_allocated", None)
    return int(count()) if count else None


def require_build(torch: Any, accelerator: str) -> str:
    """Return a sentence on the build; raise CheckError if it can never drive the accelerator."""
    version, build = str(torch.__version__), facts.build_of(torch)
    if facts.supports(torch, accelerator):
        return f"torch {version} is a {build} build, which can drive {accelerator}"
    right = {
        "cuda": "a CUDA build (local version like +cu130 or +cu126)",
        "xpu": "an XPU build (local version +xpu, from PyTorch's xpu index)",
        "mps": "a macOS arm64 build",
    }[accelerator]
    raise CheckError(
        f"torch {version} is a {build} build and cannot use {accelerator}; "
        f"install {right}, or verify with --device {'mps' if build == 'mps' else 'cpu'}"
    )


def require_usable(torch: Any, accelerator: str) -> str:
    """Allocate, compute, read back and compare; raise CheckError with the reason if this fails."""
    if accelerator != "cpu" and not _available(torch, accelerator):
        raise CheckError(f"no {accelerator} device can be used: {_why_not(torch, accelerator)}")
    size = 1 << 20
    try:
        values = torch.arange(size, dtype=torch.float32, device=accelerator)
        # float32 is exact for integers below 2**24, so the result must be equal, not close.
        returned = (values * 2 + 1).to("cpu")
    except RuntimeError as error:
        raise CheckError(
            f"{accelerator} cannot compute: {error}{_architecture_hint(torch, accelerator)}"
        ) from error
    if not torch.equal(returned, torch.arange(size, dtype=torch.float32) * 2 + 1):
        raise CheckError(f"{accelerator} returned wrong numbers for x * 2 + 1 of whole numbers")
    return f"{describe(torch, accelerator)['name']}: allocated, computed and read back"


def runtime(torch: Any, accelerator: str) -> str:
    """Return the runtime and libraries with which torch drives the accelerator, with versions."""
    if accelerator == "cpu":
        found = [name for name in ("mkl", "mkldnn") if getattr(torch.backends, name).is_available()]
        return f"libraries: {', '.join(found) or 'none'}"
    if accelerator == "mps":
        return f"Metal of macOS {platform.mac_ver()[0]}"
    version = facts.runtime_of(torch)
    if accelerator == "xpu":
        driver = getattr(torch.xpu.get_device_properties(0), "driver_version", None)
        return f"SYCL {version}, Level Zero driver {driver or 'unknown'}"
    name = "HIP" if getattr(torch.version, "hip", None) else "CUDA"
    # This call loads the library and compares its version with the one torch was built with.
    library = torch.backends.cudnn.version()
    return f"{name} {version}, cuDNN {library or 'missing'}, driver {nvidia_driver() or 'unknown'}"


def describe(torch: Any, accelerator: str) -> Dict[str, Any]:
    """Return the device's name, memory in bytes, driver, and instruction set or architecture."""
    if accelerator == "cpu":
        return {
            "name": cpu_name(),
            "memory_bytes": _physical_memory(),
            "driver": None,
            "capability": torch.backends.cpu.get_cpu_capability(),
        }
    if accelerator == "mps":
        return {
            "name": cpu_name(),
            "memory_bytes": int(torch.mps.recommended_max_memory()),
            "driver": f"macOS {platform.mac_ver()[0]}",
            "capability": None,
        }
    properties = getattr(torch, accelerator).get_device_properties(0)
    is_cuda = accelerator == "cuda"
    return {
        "name": str(properties.name),
        "memory_bytes": int(properties.total_memory),
        "driver": nvidia_driver() if is_cuda else getattr(properties, "driver_version", None),
        "capability": f"sm_{properties.major}{properties.minor}" if is_cuda else None,
    }


def cpu_name() -> str:
    """Return the processor's marketing name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if found:
        return found.group(1).strip()
    try:
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return platform.processor() or platform.machine()


def nvidia_driver(version: Path = Path("/proc/driver/nvidia/version")) -> Optional[str]:
    """Return the version of NVIDIA's kernel driver from /proc, else from NVML (WSL), else None."""
    try:
        text = version.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _nvml_driver()
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)", text)
    return found.group(1) if found else _nvml_driver()


def _nvml_driver() -> Optional[str]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        buffer = ctypes.create_string_buffer(80)
        if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(buffer, len(buffer)):
            return None
        return buffer.value.decode() or None
    except (OSError, AttributeError):
        return None


def _available(torch: Any, accelerator: str) -> bool:
    module = torch.backends.mps if accelerator == "mps" else getattr(torch, accelerator)
    return bool(module.is_available())


def _why_not(torch: Any, accelerator: str) -> str:
    # is_available() swallows the reason; using the device raises it.
    try:
        torch.zeros(1, device=accelerator)
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "torch says that it is not available, without a reason"


def _architecture_hint(torch: Any, accelerator: str) -> str:
    if accelerator != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability(0)
    built = facts.architectures(torch)
    return f" (this GPU is sm_{major}{minor}; this torch is built for {' '.join(built)})"


def _physical_memory() -> Optional[int]:
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        return int(text.split("MemTotal:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None
