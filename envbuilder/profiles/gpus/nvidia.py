"""NVIDIA: the driver that a CUDA runtime needs, and the kernels that a torch contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from envbuilder.host import tables
from envbuilder.host.model import ASSUMED
from envbuilder.host.text import version
from envbuilder.profiles.finding import Finding, blocked, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.host.model import Gpu
    from envbuilder.profiles.finding import Needs
    from envbuilder.profiles.lock import Target

_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")
_ARCHITECTURES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


def locked(target: Target, needs: Needs, *, wsl: bool) -> Needs:
    """Add kernels and driver to `needs`, from the versions of torch and of the CUDA runtime."""
    versions = {f.name: f.version for f in target.of_kind("wheel")}
    runtime = next((versions[name] for name in _RUNTIMES if name in versions), "")
    major, _, rest = runtime.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        return needs
    variant, architecture = f"cu{major}{minor}", _ARCHITECTURES[target.platform]
    kernels = tables.torch_kernels(variant, versions.get("torch", ""), architecture)
    return msgspec.structs.replace(
        needs,
        sm=kernels.sm if kernels else (),
        sm_ptx=kernels.ptx if kernels else False,
        nvidia_driver=tables.cuda_driver(int(major), wsl=wsl) or "",
    )


def judge(gpu: Gpu, needs: Needs) -> list[Finding]:
    """Check the driver, which images use, too, and the kernels."""
    if gpu.obstacle == "wsl":
        return [blocked("warning", f"{named(gpu)}: {gpu.detail.rstrip('.')}", gpu)]
    if gpu.state == "present":
        # Worth knowing before the driver is installed: whether the wheels support the GPU at all.
        too_old = [
            f for f in _kernels(needs, gpu) if f.level == "no" and gpu.obstacle != "unsupported"
        ]
        return [*too_old, blocked("no", f"{named(gpu)}: {gpu.detail.rstrip('.')}", gpu)]
    findings = [*_driver(needs, gpu), *_kernels(needs, gpu)]
    if gpu.state == "unknown":
        findings.append(blocked("warning", f"{named(gpu)}: {gpu.detail.rstrip('.')}", gpu))
    return findings


def capability(gpu: Gpu) -> tuple[float, ...]:
    """Return how much a GPU can do: its compute capability, then its memory."""
    return (*(_sm(gpu.sm) if gpu.sm else (0, 0)), gpu.memory_bytes or 0)


def hide(gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> dict[str, str] | None:
    """Return the variables that show CUDA only some GPUs, by their order on the PCI bus.

    CUDA's own order is by speed, which is not known here. None if an address is unknown.
    """
    seen = [gpu for gpu in gpus if gpu.state != "present" or gpu.obstacle == "no-instances"]
    if not all(gpu.bus for gpu in seen):
        return None
    seen.sort(key=lambda gpu: gpu.bus or "")
    places = [str(place) for place, gpu in enumerate(seen) if gpu in selected]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(places)}


def _driver(needs: Needs, gpu: Gpu) -> list[Finding]:
    minimum, installed = version(needs.nvidia_driver), version(gpu.driver_version)
    if installed is None:
        text = "the version of NVIDIA's driver could not be read"
        return [Finding("warning", text, "driver-unread", gpu)]
    if minimum is None:
        text = "which driver its CUDA runtime needs is not known"
        return [Finding("warning", text, "lock-unread", gpu)]
    if gpu.detail == ASSUMED:
        minimum = minimum[: len(installed)]
    elif tables.tegra_of_sm(gpu.sm or ""):
        # JetPack numbers its drivers in another way: 580.00, of JetPack 7.0 and 7.1, has CUDA 13.0.
        minimum = minimum[:1]
    if installed < minimum:
        text = (
            f"NVIDIA driver {gpu.driver_version} is older than {needs.nvidia_driver}, "
            "which this profile's CUDA runtime needs"
        )
        return [Finding("no", text, "driver-old", gpu)]
    return [Finding("note", f"NVIDIA driver {gpu.driver_version}")]


def _kernels(needs: Needs, gpu: Gpu) -> list[Finding]:
    """Check whether the wheels' kernels run on a GPU.

    Kernels run on their own SM and on higher minors of its major; PTX on anything newer. Tegra's
    GPUs are an exception: they run kernels that were made for exactly them (CUDA C++ Programming
    Guide, "Binary Compatibility").
    """
    carried = needs.sm
    if not carried:
        text = "which GPUs its wheels carry kernels for is not known"
        return [Finding("warning", text, "lock-unread", gpu)]
    if gpu.sm is None:
        text = (
            f"the compute capability of {named(gpu)} is not known "
            f"(the wheels carry kernels for {_list(carried)})"
        )
        return [Finding("warning", text, "sm-unread", gpu)]
    capability = _sm(gpu.sm)
    kernels = [_sm(sm) for sm in carried]
    if gpu.sm not in carried and tables.tegra_of_sm(gpu.sm):
        text = (
            f"{named(gpu)} is SM {gpu.sm} and runs only kernels for exactly that; the wheels carry"
            f" kernels for {_list(carried)}: {tables.JETSON_TORCH}"
        )
        return [Finding("no", text, "kernels", gpu)]
    if any(major == capability[0] and minor <= capability[1] for major, minor in kernels):
        return [Finding("note", f"{gpu.name} is SM {gpu.sm}")]
    if needs.sm_ptx and capability > max(kernels):
        text = (
            f"{named(gpu)} is SM {gpu.sm}, newer than the wheels' kernels for "
            f"{_list(carried)}: the driver would compile their PTX at first use, if it can"
        )
        return [Finding("warning", text, "kernels-ptx", gpu)]
    text = f"{named(gpu)} is SM {gpu.sm}; the wheels carry kernels for {_list(carried)}"
    return [Finding("no", text, "kernels", gpu)]


def _list(numbers: Sequence[str]) -> str:
    return ", ".join(numbers)


def _sm(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
