"""Facts about this interpreter, its torch and this process, read without any training."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

IMPORTED = time.monotonic()

EXTENSIONS = {
    "zentorch": "zentorch",
    "ipex": "intel_extension_for_pytorch",
}
"""Name on the command line → module and distribution name."""


def python_facts() -> Dict[str, str]:
    """Return version, implementation and path of this interpreter."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
    }


def torch_facts(torch: Optional[Any]) -> Dict[str, Optional[str]]:
    """Return the report's ``torch``; versions are None if torch could not be imported."""
    return {
        "version": str(torch.__version__) if torch else None,
        "build": build_of(torch) if torch else None,
        "runtime": runtime_of(torch) if torch else None,
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}/{platform.machine().lower()}",
    }


def build_of(torch: Any) -> str:
    """Return what this torch was built for: "cpu", "cu130", "rocm7.1", "xpu", or "mps" on a Mac.

    Most wheels state it in the version's local part; PyPI's have none, so the compiled-in runtime
    versions decide there.
    """
    local: str = str(torch.__version__).partition("+")[2]
    if re.fullmatch(r"cpu|cu\d+|xpu|rocm[\d.]+", local):
        return local
    hip, cuda = getattr(torch.version, "hip", None), torch.version.cuda
    if hip:
        return "rocm" + ".".join(str(hip).split(".")[:2])
    if cuda:
        return "cu" + str(cuda).replace(".", "")
    if getattr(torch.version, "xpu", None):
        return "xpu"
    return "mps" if torch.backends.mps.is_built() else "cpu"


def runtime_of(torch: Any) -> Optional[str]:
    """Return the CUDA, HIP or SYCL version that torch was built with; None for a CPU build."""
    for name in ("cuda", "hip", "xpu"):
        version = getattr(torch.version, name, None)
        if version:
            return str(version)
    return None


def supports(torch: Any, accelerator: str) -> bool:
    """Return whether this build of torch can drive the accelerator at all, on any hardware."""
    if accelerator == "cuda":
        return bool(torch.version.cuda or getattr(torch.version, "hip", None))
    if accelerator == "xpu":
        return bool(getattr(torch.version, "xpu", None) or build_of(torch) == "xpu")
    if accelerator == "mps":
        return bool(torch.backends.mps.is_built())
    return True


def architectures(torch: Any) -> List[str]:
    """Return the GPU architectures ("sm_90") compiled into this torch; empty without CUDA."""
    # torch.cuda.get_arch_list() is empty if no GPU is usable, the case in which this matters.
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return str(flags() or "").split() if flags else []


def extension_versions() -> Dict[str, Optional[str]]:
    """Return the installed version of each known extension, or None. Nothing is imported."""
    found: Dict[str, Optional[str]] = {}
    for name, distribution in EXTENSIONS.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def allocator(maps: Path = Path("/proc/self/maps")) -> str:
    """Return the path of the allocator library preloaded in this process, or "libc"."""
    found = re.search(
        r"(\S*lib(?:tcmalloc|jemalloc|mimalloc)[^\s/]*\.so\S*)$", _read(maps), re.MULTILINE
    )
    return found.group(1) if found else "libc"


def seconds_since_start() -> float:
    """Return the seconds since this process was created; if unknown, since this import."""
    created = parse_age(_read(Path("/proc/self/stat")))
    return time.monotonic() - IMPORTED if created is None else created


def parse_age(stat: str) -> Optional[float]:
    """Return the age of a process in seconds, to 10 ms, from its ``/proc/PID/stat``; else None."""
    try:
        # The second field, the command's name, may have spaces and parentheses; starttime is the
        # 22nd field, so the 20th after the name. It counts clock ticks since boot. (proc(5))
        started = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError, IndexError, ValueError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def probe() -> Dict[str, Any]:
    """Return the output of ``probe``: Python, torch, its devices and extensions; trains nothing."""
    result: Dict[str, Any] = {
        "python": python_facts(),
        "extensions": extension_versions(),
        "allocator": allocator(),
        "torch": None,
        "error": None,
    }
    try:
        import torch
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
        return result
    result["torch"] = {
        **torch_facts(torch),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "xpu": getattr(torch.version, "xpu", None),
        "mps": bool(torch.backends.mps.is_built()),
        "architectures": architectures(torch),
    }
    result["available"] = {
        "cuda": bool(torch.cuda.is_available()),
        "xpu": bool(hasattr(torch, "xpu") and torch.xpu.is_available()),
        "mps": bool(torch.backends.mps.is_available()),
    }
    result["count"] = {
        "cuda": int(torch.cuda.device_count()),
        "xpu": int(torch.xpu.device_count()) if hasattr(torch, "xpu") else 0,
    }
    return result
