"""The accelerators that the payload can verify, and which of them a build of torch drives.

Each accelerator is one row, which contains everything that differs between accelerators, so
supporting another accelerator takes only another row. The CPU has a row like the others. Elsewhere,
the CPU is the only accelerator that is compared by name, where it has no device to choose or wait
for.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import hardware

_BUILD = re.compile(r"cpu|cu\d+|xpu|rocm[\d.]+")


def build_of(torch: Any) -> str:
    """Return what this torch was built for: "cpu", "cu130", "rocm7.1", "xpu", or "mps" on a Mac.

    Most wheels specify the build in the local part of their version. PyPI's wheels have no local
    part; for those, the build is derived from the runtime versions that were compiled in.
    """
    return stated_build(torch) or compiled_build(torch)


def stated_build(torch: Any) -> str:
    """Return the build from the local part of torch's version, or "" if that part has none."""
    local: str = str(torch.__version__).partition("+")[2]
    return local if _BUILD.fullmatch(local) else ""


def compiled_build(torch: Any) -> str:
    """Return the build, derived from the version of the runtime that torch was compiled with."""
    hip = getattr(torch.version, "hip", None)
    cuda = torch.version.cuda
    if hip:
        return "rocm" + ".".join(str(hip).split(".")[:2])
    if cuda:
        return "cu" + str(cuda).replace(".", "")
    if getattr(torch.version, "xpu", None):
        return "xpu"
    return "mps" if torch.backends.mps.is_built() else "cpu"


def runtime_of(torch: Any) -> Optional[str]:
    """Return the CUDA, HIP or SYCL version that torch was built with; None for a CPU build."""
    versions = (getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu"))
    return next((str(version) for version in versions if version), None)


def architectures(torch: Any) -> List[str]:
    """Return the architectures of this torch's GPU kernels, such as "sm_90" or "gfx1100".

    The list is empty if there are none.
    """
    # torch.cuda.get_arch_list() is empty if no GPU is usable, the case in which this matters.
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return [*map(target_of, str(flags() or "").split())] if flags else []


def target_of(name: Any) -> str:
    """Return an architecture without its features: "gfx90a" for "gfx90a:sramecc+:xnack-"."""
    return str(name).partition(":")[0]


@dataclass(frozen=True)
class Accelerator:
    """What the payload must know about one accelerator; ``name`` is its id in profiles."""

    name: str
    device: str
    """Its type of device in torch, where AMD's GPUs are "cuda", too."""
    drives: Callable[[Any], bool]
    """Whether a build of torch can drive it at all, on any hardware."""
    runtime: Callable[[Any], str]
    """The runtime and libraries with which torch drives it, with versions."""
    describe: Callable[[Any], Dict[str, Any]]
    """Its name, memory in bytes, driver, and instruction set or architecture."""
    build: str = ""
    """The build of torch to install for it, in words."""
    state: str = ""
    """Path of the torch module whose ``is_available`` says whether it can be used."""
    kernels: Callable[[Any], str] = lambda torch: ""
    """Which architecture it has and for which ones this torch is built, if that may differ."""
    exact: bool = False
    """Whether kernels run on their own architecture only, so that one not listed is refused."""
    nodes: Tuple[str, ...] = ()
    """Device nodes without which nothing works, and importing a build for it may never end."""
    remedy: str = ""
    """What to do if they are missing."""
    part: str = ""
    """File below torch's folder that only builds for it have."""
    drivers: str = ""
    """Its driver's libraries, which belong to the machine, as an expression that follows "lib"."""
    runtimes: str = ""
    """Libraries of its runtime, which a framework ships, likewise."""
    disguises: str = ""
    """Beginning of the variables that make its driver take it for another architecture."""
    allocated: str = ""
    """Function of its torch module that returns the bytes held by tensors."""
    peak: str = ""
    """Function that returns their maximum."""
    free: str = ""
    """Function that returns free and total bytes; empty for memory that is the system's own."""
    profiler: str = ""
    """Its activity in torch's profiler."""
    collective: str = ""
    """Backend that transfers gradients between ranks; empty if there is one device only."""
    library: str = ""
    """What does so if torch calls it by another's name."""
    visible: str = ""
    """Variable that hides all devices except those it lists."""
    also_visible: Tuple[str, ...] = ()
    """Others that do so if that one is not set."""
    fallback: str = ""
    """Variable with which operators that the device lacks silently run on the CPU."""
    pinned: bool = False
    """Whether copies from page-locked memory are faster; on MPS, host and device share memory."""
    tf32: bool = False
    """Whether float32 arithmetic may be lowered to TF32."""
    channels_last: bool = True
    """Whether operators are right in this memory layout."""

    def available(self, torch: Any) -> bool:
        """Return whether torch says that the device can be used."""
        try:
            return bool(attrgetter(self.state)(torch).is_available())
        except AttributeError:  # a torch that is older than its support for the device
            return False

    def count(self, torch: Any) -> int:
        """Return how many devices torch sees."""
        module = getattr(torch, self.device, None)
        return int(module.device_count()) if module else 0

    def module(self, torch: Any) -> Any:
        """Return torch's module for this type of device. Only the CPU has none."""
        return getattr(torch, self.device)

    def counted(self, torch: Any, counter: str) -> Optional[int]:
        """Return the device's memory counter of this name in bytes, or None if torch lacks it."""
        function = getattr(self.module(torch), counter, None) if counter else None
        return int(function()) if function else None


def _cpu_libraries(torch: Any) -> str:
    libraries = [name for name in ("mkl", "mkldnn") if getattr(torch.backends, name).is_available()]
    return f"libraries: {', '.join(libraries) or 'none'}"


def _capability(torch: Any) -> Optional[str]:
    """Return the instruction set that torch's CPU kernels use, or None if it is not reported.

    It is parsed from torch's configuration text, since no function returns it before torch 2.1.
    """
    found = re.search(r"CPU capability usage: (.+)", torch.__config__.show())
    return found.group(1) if found else None


def _described(
    device: str,
    driver: Callable[[Any], Optional[str]],
    capability: Callable[[Any], Optional[str]] = lambda properties: None,
) -> Callable[[Any], Dict[str, Any]]:
    """Return a function that describes a GPU by the properties that torch reports.

    ``device`` is the name of torch's module. ``driver`` and ``capability`` derive these two entries
    from the properties.
    """

    def describe(torch: Any) -> Dict[str, Any]:
        properties = getattr(torch, device).get_device_properties(0)
        return {
            "name": str(properties.name),
            "memory_bytes": int(properties.total_memory),
            "driver": driver(properties),
            "capability": capability(properties),
        }

    return describe


def _runtime(torch: Any, name: str, library: str, driver: Optional[str]) -> str:
    # This call loads the library and compares its version with the one torch was built with; torch
    # calls MIOpen by cuDNN's name.
    version = torch.backends.cudnn.version() or "missing"
    return f"{name} {runtime_of(torch)}, {library} {version}, driver {driver or 'unknown'}"


def _kernels(torch: Any, target: str) -> str:
    return f"this GPU is {target}; this torch is built for {' '.join(architectures(torch))}"


def _xpu_runtime(torch: Any) -> str:
    driver = getattr(torch.xpu.get_device_properties(0), "driver_version", None)
    return f"SYCL {runtime_of(torch)}, Level Zero driver {driver or 'unknown'}"


_CPU = Accelerator(
    name="cpu",
    device="cpu",
    drives=lambda torch: True,
    runtime=_cpu_libraries,
    describe=lambda torch: hardware.describe_cpu(_capability(torch)),
    collective="gloo",
)
_CUDA = Accelerator(
    name="cuda",
    device="cuda",
    drives=lambda torch: bool(torch.version.cuda and not getattr(torch.version, "hip", None)),
    runtime=lambda torch: _runtime(torch, "CUDA", "cuDNN", hardware.nvidia_driver()),
    describe=_described(
        "cuda", lambda _: hardware.nvidia_driver(), lambda gpu: f"sm_{gpu.major}{gpu.minor}"
    ),
    build="a CUDA build (local version like +cu130 or +cu126)",
    drivers=r"cuda(debugger)?\.so|nvidia-|nvcuvid|nvoptix",
    runtimes="cudnn|cublas|cudart|cufft|cufile|cupti|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink"
    "|nvshmem|nvToolsExt",
    state="cuda",
    kernels=lambda torch: _kernels(torch, "sm_{}{}".format(*torch.cuda.get_device_capability(0))),
    allocated="memory_allocated",
    peak="max_memory_allocated",
    free="mem_get_info",
    profiler="CUDA",
    collective="nccl",
    visible="CUDA_VISIBLE_DEVICES",
    pinned=True,
    tf32=True,
)
_ROCM = replace(
    # HIP builds of torch have CUDA's interface: module, counters, profiler and collective.
    _CUDA,
    name="rocm",
    drives=lambda torch: bool(getattr(torch.version, "hip", None)),
    runtime=lambda torch: _runtime(torch, "HIP", "MIOpen", hardware.amdgpu_driver()),
    describe=_described(
        "cuda", lambda _: hardware.amdgpu_driver(), lambda gpu: target_of(gpu.gcnArchName)
    ),
    build="a ROCm build (local version like +rocm7.2)",
    drivers="hsakmt",
    runtimes="amdhip|hsa-runtime|hip[a-z]|roc[a-z]|MIOpen|rccl|amd_comgr|aotriton|hsa-amd",
    kernels=lambda torch: _kernels(
        torch, target_of(torch.cuda.get_device_properties(0).gcnArchName)
    ),
    exact=True,
    nodes=("/dev/kfd",),
    remedy="Load the kernel driver amdgpu, give a container its device nodes, or join that group",
    part="lib/libtorch_hip.so",
    disguises="HSA_OVERRIDE_GFX_VERSION",
    library="rccl",
    visible="HIP_VISIBLE_DEVICES",
    also_visible=("CUDA_VISIBLE_DEVICES",),
    # Only the MI300 series has it, and only with a variable (``precision``); the switches are read
    # all the same.
    tf32=True,
)
_XPU = Accelerator(
    name="xpu",
    device="xpu",
    drives=lambda torch: bool(getattr(torch.version, "xpu", None) or build_of(torch) == "xpu"),
    runtime=_xpu_runtime,
    describe=_described("xpu", lambda gpu: getattr(gpu, "driver_version", None)),
    build="an XPU build (local version +xpu, from PyTorch's xpu index)",
    drivers="ze_|igc|igdgmm|igdfcl|igdrcl|opencl-clang|iga64",
    runtimes="sycl|ccl|ur_|umf|pti_view",
    state="xpu",
    allocated="memory_allocated",
    peak="max_memory_allocated",
    profiler="XPU",
    collective="xccl",
    visible="ZE_AFFINITY_MASK",
    fallback="PYTORCH_ENABLE_XPU_FALLBACK",
    pinned=True,
)
_MPS = Accelerator(
    name="mps",
    device="mps",
    drives=lambda torch: bool(torch.backends.mps.is_built()),
    runtime=lambda torch: f"Metal of macOS {platform.mac_ver()[0]}",
    describe=lambda torch: {
        "name": hardware.cpu_name(),
        "memory_bytes": int(torch.mps.recommended_max_memory()),
        "driver": f"macOS {platform.mac_ver()[0]}",
        "capability": None,
    },
    build="a macOS arm64 build",
    state="backends.mps",
    allocated="current_allocated_memory",
    fallback="PYTORCH_ENABLE_MPS_FALLBACK",
    channels_last=False,  # pytorch#180984: operators have returned wrong numbers
)

ACCELERATORS = {row.name: row for row in (_CPU, _CUDA, _ROCM, _XPU, _MPS)}


def device_of(accelerator: str) -> str:
    """Return torch's device type for an accelerator."""
    return ACCELERATORS[accelerator].device


FALLBACK_VARIABLES = tuple(row.fallback for row in ACCELERATORS.values() if row.fallback)
"""The payload unsets them, so that an operator that the device lacks is an error."""
