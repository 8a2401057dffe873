"""One accelerator as TensorFlow sees it: which build drives it, and whether it can be used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional

from ..machine import hardware, importing
from ..machine.accelerators import ACCELERATORS
from ..machine.device import NO_KERNEL, first_line, require_undisguised
from ..report import CheckError

SIZE = 1 << 20


@dataclass(frozen=True)
class Row:
    """What TensorFlow calls an accelerator, and what drives it."""

    device: str
    """Its type of device."""
    flag: str = ""
    """Entry of the build's description that says that the build drives it; the CPU needs none."""
    install: str = ""
    """The build to install for it, in words."""
    driver: Callable[[], Optional[str]] = lambda: None
    """The version of the kernel driver; None if none is loaded."""


ROWS = {
    "cpu": Row("CPU"),
    "cuda": Row("GPU", "is_cuda_build", "tensorflow[and-cuda]", hardware.nvidia_driver),
    "rocm": Row("GPU", "is_rocm_build", "a ROCm build from AMD", hardware.amdgpu_driver),
}
"""No version of TensorFlow that is still maintained drives the others (tensorflow#84167, #91)."""


def description(tensorflow: Any) -> Mapping[str, Any]:
    """Return how TensorFlow was built; libraries and versions stand there for GPU builds only."""
    built: Mapping[str, Any] = tensorflow.sysconfig.get_build_info()
    return built


def facts(tensorflow: Any) -> Dict[str, Optional[str]]:
    """Return version, build ("cpu", "cu125", "rocm6.2") and the version of the build's runtime."""
    built = description(tensorflow)
    runtime = built.get("cuda_version") or built.get("rocm_version")
    build, parts = "cpu", str(runtime or "").split(".")
    if built.get("is_rocm_build"):
        build = "rocm" + ".".join(parts[:2])
    elif built.get("is_cuda_build"):
        build = "cu" + "".join(parts[:2])
    return {
        "version": str(tensorflow.__version__),
        "build": build,
        "runtime": str(runtime) if runtime else None,
    }


def device_type(accelerator: str) -> str:
    """Return what TensorFlow calls a device of this accelerator; the id itself if it has none."""
    row = ROWS.get(accelerator)
    return row.device if row else accelerator


def require_build(tensorflow: Any, accelerator: str) -> str:
    """Return a sentence on the build; raise CheckError if it can never drive the accelerator."""
    found = facts(tensorflow)
    name = f"tensorflow {found['version']} is a {found['build']} build"
    row = ROWS.get(accelerator)
    if row is None:
        raise CheckError(
            f"{name}; no maintained build of TensorFlow drives {accelerator}: use another framework"
        )
    built = description(tensorflow)
    if not row.flag or built.get(row.flag):
        return f"{name}, which can drive {accelerator}"
    driven = [each for each, other in ROWS.items() if not other.flag or built.get(other.flag)]
    raise CheckError(
        f"{name} and cannot use {accelerator}; "
        f"install {row.install}, or verify with --device {driven[-1]}"
    )


def require_usable(tensorflow: Any, accelerator: str) -> str:
    """Allocate, compute, read back and compare; raise CheckError with the reason if this fails."""
    numpy = importing.limited("numpy")

    kind = device_type(accelerator)
    require_undisguised(accelerator, os.environ)
    if not tensorflow.config.list_physical_devices(kind):
        raise CheckError(
            f"no {accelerator} device can be used: {_why_none(tensorflow, accelerator)}"
        )
    numbers = numpy.arange(SIZE, dtype=numpy.float32)
    try:
        with tensorflow.device(place(accelerator)):
            # float32 is exact for integers below 2**24, so the result must be equal, not close.
            result = tensorflow.constant(numbers) * 2 + 1
            returned = result.numpy()
    except (RuntimeError, ValueError, tensorflow.errors.OpError) as error:
        raise CheckError(f"{accelerator} cannot compute: {first_line(error)}") from error
    if not numpy.array_equal(returned, numbers * 2 + 1):
        raise CheckError(f"{accelerator} returned wrong numbers for x * 2 + 1 of whole numbers")
    runtime = _runtime(tensorflow, accelerator)
    text = f"{describe(tensorflow, accelerator)['name']}: allocated, computed and read back"
    return f"{text}; {runtime}" if runtime else text


def place(accelerator: str) -> str:
    """Return TensorFlow's name of the first device of an accelerator."""
    return f"/device:{device_type(accelerator)}:0"


def waiter(tensorflow: Any) -> Callable[..., None]:
    """Return a function that waits for all devices, whatever it is given."""
    return lambda *_: tensorflow.test.experimental.sync_devices()


def describe(tensorflow: Any, accelerator: str) -> Dict[str, Any]:
    """Return the device's name, memory, driver and architecture; None where it is unknown."""
    if accelerator == "cpu":
        return {
            "name": hardware.cpu_name(),
            "memory_bytes": hardware.physical_memory(),
            "driver": None,
            "capability": None,
        }
    device = tensorflow.config.list_physical_devices(device_type(accelerator))[0]
    details = tensorflow.config.experimental.get_device_details(device)
    capability = details.get("compute_capability")
    return {
        "name": details.get("device_name"),
        "memory_bytes": None,
        "driver": ROWS[accelerator].driver(),
        "capability": "sm_" + "".join(map(str, capability)) if capability else None,
    }


def lacks_kernel(error: BaseException) -> str:
    """Return a sentence on an error that says that the build lacks a GPU's kernel; else empty."""
    text = str(error).lower().replace("_", " ")
    if not any(phrase in text for phrase in NO_KERNEL):
        return ""
    return f"a part of this build has no kernel for the GPU: {first_line(error)}"


def counted(tensorflow: Any, accelerator: str, name: str) -> Optional[int]:
    """Return the bytes of one of the device's counters; on the CPU TensorFlow counts none."""
    if accelerator == "cpu":
        return None
    counters = tensorflow.config.experimental.get_memory_info(f"{device_type(accelerator)}:0")
    return int(counters[name])


def _runtime(tensorflow: Any, accelerator: str) -> str:
    built = description(tensorflow)
    if accelerator == "cuda":
        libraries = f"CUDA {built.get('cuda_version')}, cuDNN {built.get('cudnn_version')}"
        kernels = " ".join(built.get("cuda_compute_capabilities", ())) or "unknown GPUs"
        driver = ROWS[accelerator].driver() or "unknown"
        return f"built with {libraries} for {kernels}, driver {driver}"
    if accelerator == "rocm":
        return f"driver {ROWS[accelerator].driver() or 'unknown'}"
    return ""


def _why_none(tensorflow: Any, accelerator: str) -> str:
    """Return what is known: TensorFlow itself logs the reason, and raises nothing."""
    driver = ROWS[accelerator].driver()
    if driver is None:
        return "no kernel driver is loaded"
    hidden = [ACCELERATORS[accelerator].visible, *ACCELERATORS[accelerator].also_visible]
    for name in hidden:
        if name in os.environ:
            return f"driver {driver} is loaded, and {name}={os.environ[name]} chooses the devices"
    libraries = Path(tensorflow.__file__).parent.parent / "nvidia" / "cudnn"
    if accelerator == "cuda" and not libraries.is_dir():
        return (
            f"driver {driver} is loaded, but the environment has no cuDNN (package nvidia-cudnn);"
            f" install {ROWS[accelerator].install}"
        )
    return f"driver {driver} is loaded, and TensorFlow lists no GPU; its log says why"
