"""Whether the GPUs of a vendor can do what a profile needs: one section for each vendor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from envbuilder.host import tables
from envbuilder.host.model import ASSUMED
from envbuilder.host.text import version
from envbuilder.profiles.needs import Finding, blocked, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.host.model import Gpu, Host
    from envbuilder.profiles.lock import Target
    from envbuilder.profiles.needs import Level, Needs

# NVIDIA: the driver that a CUDA runtime needs, and the kernels that a torch contains.

_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")
_ARCHITECTURES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


def locked_nvidia(target: Target, needs: Needs, *, wsl: bool) -> Needs:
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


def judge_nvidia(gpu: Gpu, needs: Needs) -> list[Finding]:
    """Check the driver, which images use, too, and the kernels."""
    if gpu.obstacle == "wsl":
        return [blocked("warning", f"{named(gpu)}: {gpu.detail.rstrip('.')}", gpu)]
    if gpu.state == "present":
        # Worth knowing before the driver is installed: whether the wheels support the GPU at all.
        too_old = [
            f
            for f in _nvidia_kernels(needs, gpu)
            if f.level == "no" and gpu.obstacle != "unsupported"
        ]
        return [*too_old, blocked("no", f"{named(gpu)}: {gpu.detail.rstrip('.')}", gpu)]
    findings = [*_driver(needs, gpu), *_nvidia_kernels(needs, gpu)]
    if gpu.state == "unknown":
        findings.append(blocked("warning", f"{named(gpu)}: {gpu.detail.rstrip('.')}", gpu))
    return findings


def nvidia_capability(gpu: Gpu) -> tuple[float, ...]:
    """Return how much a GPU can do: its compute capability, then its memory."""
    return (*(_sm(gpu.sm) if gpu.sm else (0, 0)), gpu.memory_bytes or 0)


def hide_nvidia(gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> dict[str, str] | None:
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


def _nvidia_kernels(needs: Needs, gpu: Gpu) -> list[Finding]:
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


# AMD: the GPUs that the libraries in a torch serve, and the driver's nodes. Kernels run on the
# target that they were compiled for and on no other. The override that makes ROCm take one GPU for
# another (HSA_OVERRIDE_GFX_VERSION) is a debugging aid, under which programs crash (ROCm/MIOpen
# issues 3540 and 3954): nothing here counts on it.


def locked_amd(target: Target, needs: Needs) -> Needs:
    """Add the GPUs that the wheels serve to `needs`, by torch's version, such as 2.14.0+rocm7.2."""
    torch = next((f.version for f in target.of_kind("wheel") if f.name == "torch"), "")
    targets = tables.torch_targets(torch.partition("+")[2], torch)
    if targets is None:
        return needs
    return msgspec.structs.replace(needs, gfx=targets.gfx, gfx_partly=targets.partly)


def judge_amd(gpu: Gpu, needs: Needs, *, native: bool) -> list[Finding]:
    """Check the kernels, and whether driver and nodes let this process use the GPU."""
    kernels = _amd_kernels(needs, gpu)
    if gpu.state == "usable":
        return [*kernels, Finding("note", f"kernel driver {gpu.kernel_driver}")]
    text = f"{named(gpu)}: {gpu.detail.rstrip('.')}"
    # The engine opens the nodes as root, and the container joins the groups that own them.
    reachable = gpu.obstacle == "node-closed" and not native
    level: Level = "warning" if gpu.state == "unknown" or reachable else "no"
    # Worth knowing before anything is repaired: whether the wheels serve the GPU at all.
    worse = [f for f in kernels if f.level == "no" or f.code == "kernels-partly"]
    return [*worse, blocked(level, text, gpu)]


def amd_capability(gpu: Gpu) -> tuple[float, ...]:
    """Return how much a GPU can do: a card before an APU, then by memory."""
    return gpu.state == "usable", gpu.memory_kind == "dedicated", gpu.memory_bytes or 0


def hide_amd(gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> dict[str, str] | None:
    """Return the variable that shows HIP only some GPUs; None if it is not certain what it sees.

    HIP numbers the GPUs that ROCm can open in the order of the compute driver, which is theirs.
    """
    # A container may see those that this user may not open.
    if any(gpu.state == "unknown" or gpu.obstacle == "node-closed" for gpu in gpus):
        return None
    seen = [gpu for gpu in gpus if gpu.state == "usable"]
    places = [str(place) for place, gpu in enumerate(seen) if gpu in selected]
    return {"HIP_VISIBLE_DEVICES": ",".join(places)}


def _amd_kernels(needs: Needs, gpu: Gpu) -> list[Finding]:
    """Check whether the wheels' libraries serve a GPU."""
    if not needs.gfx:
        text = "which GPUs its wheels carry kernels for is not known"
        return [Finding("warning", text, "lock-unread", gpu)]
    if gpu.family is None:
        text = f"which chip {named(gpu)} is could not be read"
        return [Finding("warning", text, "gfx-unread", gpu)]
    if gpu.family in needs.gfx:
        return [Finding("note", f"{gpu.name} is {gpu.family}")]
    if gpu.family in needs.gfx_partly:
        text = f"{named(gpu)} is {gpu.family}, which only some of the wheels' libraries serve"
        return [Finding("warning", text, "kernels-partly", gpu)]
    text = f"{named(gpu)} is {gpu.family}; the wheels serve {', '.join(needs.gfx)}"
    return [Finding("no", text, "kernels", gpu)]


# Intel: whether PyTorch supports a GPU, and the runtime that native environments need.


def judge_intel(gpu: Gpu, *, native: bool) -> list[Finding]:
    """Check whether PyTorch supports a GPU and its device node can be opened."""
    if gpu.support == "validated" and gpu.render_node_readable is False and not native:
        # The engine opens the node as root, and the container joins the group that owns it.
        return [blocked("warning", _intel_sentence(gpu), gpu)]
    if gpu.support == "unsupported" or gpu.state == "present":
        return [blocked("no", _intel_sentence(gpu), gpu)]
    if gpu.state == "unknown":
        return [blocked("warning", _intel_sentence(gpu), gpu)]
    if gpu.support != "validated":
        text = f"{gpu.name} is not on PyTorch's list of validated Intel GPUs; it may work"
        return [Finding("warning", text, "unlisted", gpu)]
    return [Finding("note", f"{gpu.name} with the kernel driver {gpu.kernel_driver}")]


def intel_capability(gpu: Gpu) -> tuple[float, ...]:
    """Return how much a GPU can do: supported before others, discrete before integrated."""
    support = ("unsupported", None, "unlisted", "validated").index(gpu.support)
    return support, gpu.memory_kind == "dedicated", gpu.memory_bytes or 0


def hide_intel(gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> dict[str, str] | None:
    """Return the variable that shows torch.xpu only some GPUs; empty if it sees no others.

    torch.xpu uses discrete GPUs alone if there is one (c10/xpu, note on device management). Level
    Zero numbers discrete GPUs first, by PCI address, then the integrated one.
    """
    discrete = [gpu for gpu in gpus if gpu.memory_kind == "dedicated" and _intel_sees(gpu)]
    if all(gpu in selected for gpu in discrete) and discrete:
        return {}
    if not all(gpu.bus for gpu in gpus):
        return None
    discrete.sort(key=lambda gpu: gpu.bus or "")
    integrated = [gpu for gpu in gpus if gpu not in discrete and _intel_sees(gpu)]
    order = [*discrete, *integrated]
    places = [str(place) for place, gpu in enumerate(order) if gpu in selected]
    return {"ZE_AFFINITY_MASK": ",".join(places)}


def _intel_sees(gpu: Gpu) -> bool:
    """Return whether Level Zero sees a GPU: a driver is bound to it, and its node can be opened."""
    driven = gpu.kernel_driver in ("i915", "xe")
    return gpu.state != "present" or (gpu.obstacle == "unsupported" and driven)


def _intel_sentence(gpu: Gpu) -> str:
    detail = gpu.detail.rstrip(".")
    return detail if detail.startswith(gpu.name.partition(" (")[0]) else f"{gpu.name}: {detail}"


def level_zero(host: Host) -> list[Finding]:
    """Check for the GPU runtime, which native environments use from the host; images contain it."""
    if host.level_zero:
        return []
    if host.level_zero is None:
        text = "whether Level Zero is installed could not be read"
        return [Finding("warning", text, "level-zero-unread")]
    text = (
        "Level Zero and Intel's GPU driver for it, which no wheel contains, are not installed "
        "(libze1, libze-intel-gpu1)"
    )
    return [Finding("no", text, "level-zero")]


# Apple: the GPU of an Apple silicon Mac.


def judge_apple(gpu: Gpu) -> list[Finding]:
    """Check that the GPU can be used."""
    if gpu.state == "usable":
        return [Finding("note", gpu.name)]
    return [blocked("warning" if gpu.state == "unknown" else "no", gpu.detail.rstrip("."), gpu)]
