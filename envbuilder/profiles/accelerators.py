"""The accelerators that profiles are for, one row each, and whether a host's GPUs serve them.

All that differs between accelerators is in their rows, so another one is another row: its vendor's
GPUs and how they are judged, what the locked wheels state, and what to call it. Elsewhere only the
CPU is compared by name, which every host has. The payload has such a table, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.host import tables
from envbuilder.host.model import ASSUMED, Gpu, Host, Vendor
from envbuilder.host.snapshot import version
from envbuilder.profiles import lock as profile_lock, releases
from envbuilder.profiles.needs import (
    LEVELS,
    Finding,
    Level,
    Needs,
    Requires,
    blocked,
    code_findings,
    named,
    of_wheels,
    worst,
)

if TYPE_CHECKING:
    from envbuilder.core import types
    from envbuilder.profiles.profile import Profile


class Accelerator(Struct, frozen=True, kw_only=True):
    """One kind of device, by whose GPUs it works. The CPU has neither a vendor nor a judge."""

    vendor: Vendor | None = None
    brand: str = ""
    judge: Callable[[Gpu, Needs, bool], list[Finding]] = lambda gpu, needs, native: []
    """Judge one GPU; the last argument is whether for a native environment or for an image."""
    capability: Callable[[Gpu], tuple[float, ...]] = lambda gpu: ()
    """How much a GPU can do, as a sort key: of several that do not work, the best is reported."""
    order: Callable[[Sequence[Gpu], Sequence[Gpu]], Sequence[Gpu] | None] = lambda gpus, best: ()
    """Return its vendor's GPUs as the framework numbers them, to show it only the best; empty if
    it sees no others, None if their order is unknown."""
    mask: str = ""
    """The variable that states the numbers of the GPUs to use."""
    numbering: dict[str, str] = {}
    """Variables that make the framework number them in this order."""
    native: Callable[[Host], list[Finding]] = lambda host: []
    """Check what native environments need from the host in addition."""
    required: Callable[[Requires], object] = lambda requires: False
    """Whether a profile for another device needs such a GPU all the same."""
    variants: tuple[str, ...] = ()
    """The shipped profiles for it in addition to the one of its name, in order of preference."""


def cuda_runtime(target: profile_lock.Target) -> tuple[str, str]:
    """Return major and minor of the CUDA runtime among a target's wheels; empty without one."""
    for file in target.of_kind("wheel"):
        if file.name.startswith("nvidia-cuda-runtime"):
            major, _, rest = file.version.partition(".")
            return major, rest.partition(".")[0]
    return "", ""


def build_of(framework: types.Framework, target: profile_lock.Target) -> releases.Build | None:
    """Return the build of a framework in a lock's target; None if there is none that is known.

    Of CUDA's builds, the version of CUDA's runtime beside it decides. Without that, JAX and
    TensorFlow use no GPU, or the libraries of the system, of which nothing is known.
    """
    versions = {file.name: file.version for file in target.of_kind("wheel")}
    major, minor = cuda_runtime(target)
    distributions: dict[types.Framework, dict[str, str]] = {
        "torch": {"torch": ""},
        "jax": {"jaxlib": "cpu"},
        "tensorflow": {"tensorflow": "cpu", "tensorflow-cpu": "cpu"},
    }
    if major:
        distributions["torch"] = {"torch": f"cu{major}{minor}"}
        distributions["jax"] = {f"jax-cuda{major}-plugin": f"cuda{major}"}
        distributions["tensorflow"]["tensorflow"] = ""
    for name, build in distributions[framework].items():
        if name in versions:
            return releases.of_version(framework, versions[name], target.platform, build)
    return None


def _locked(framework: types.Framework, target: profile_lock.Target, wsl: bool) -> Needs:
    """Return the kernels and the driver of the framework's locked build.

    Of an unknown one, only the driver is known: the one that its CUDA runtime needs. The locked
    cuDNN decides which GPUs are served in part.
    """
    build = build_of(framework, target)
    if build is None:
        major, _ = cuda_runtime(target)
        driver = tables.cuda_driver(int(major), wsl=wsl) if major.isdecimal() else None
        return Needs(nvidia_driver=driver or "")
    needs = build.needs(wsl=wsl)
    for file in target.files:
        if file.name.startswith("nvidia-cudnn"):
            every = (*needs.partly, *needs.kernels)
            oldest = _sm(tables.cudnn_sm(file.version))
            partly = tuple(sm for sm in every if _sm(sm) < oldest)
            needs = replace(needs, kernels=every[len(partly) :], partly=partly)
    return needs


# NVIDIA: the driver that a CUDA runtime needs, and the kernels that a build contains.


def _judge_nvidia(gpu: Gpu, needs: Needs, _native: bool) -> list[Finding]:
    """Check the driver, which images use, too, and the kernels."""
    if gpu.obstacle == "wsl":
        return [blocked("warning", f"{named(gpu)}: {gpu.detail.rstrip('.')}", gpu)]
    if gpu.state == "present":
        # Worth knowing before the driver is installed: whether the wheels support the GPU at all.
        kernels = _nvidia_kernels(needs, gpu)
        too_old = [f for f in kernels if f.level == "no" and gpu.obstacle != "unsupported"]
        return [*too_old, blocked("no", f"{named(gpu)}: {gpu.detail.rstrip('.')}", gpu)]
    findings = [*_driver(needs, gpu), *_nvidia_kernels(needs, gpu)]
    if gpu.state == "unknown":
        findings.append(blocked("warning", f"{named(gpu)}: {gpu.detail.rstrip('.')}", gpu))
    return findings


def _nvidia_capability(gpu: Gpu) -> tuple[float, ...]:
    """Return how much a GPU can do: its compute capability, then its memory."""
    return (*_sm(gpu.sm or "0.0"), gpu.memory_bytes or 0)


def _order_nvidia(gpus: Sequence[Gpu], _selected: Sequence[Gpu]) -> Sequence[Gpu] | None:
    """Return the GPUs that CUDA sees, by their order on the PCI bus; None if one is unknown.

    CUDA's own order is by speed, which is not known here.
    """
    seen = [gpu for gpu in gpus if gpu.state != "present" or gpu.obstacle == "no-instances"]
    if all(gpu.bus for gpu in seen):
        return sorted(seen, key=_bus)
    return None


def _bus(gpu: Gpu) -> str:
    return gpu.bus or ""


def _driver(needs: Needs, gpu: Gpu) -> list[Finding]:
    minimum = version(needs.nvidia_driver)
    installed = version(gpu.driver_version)
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
    if not needs.kernels:
        text = "which GPUs its wheels carry kernels for is not known"
        return [Finding("warning", text, "lock-unread", gpu)]
    carried = f"the wheels carry kernels for {', '.join(needs.kernels)}"
    if gpu.sm is None:
        text = f"the compute capability of {named(gpu)} is not known ({carried})"
        return [Finding("warning", text, "sm-unread", gpu)]
    is_sm = f"{named(gpu)} is SM {gpu.sm}"
    text = f"{is_sm}; {carried}"
    if gpu.sm not in needs.kernels and tables.tegra_of_sm(gpu.sm):
        text = f"{is_sm} and runs only kernels for exactly that; {carried}: {tables.JETSON_TORCH}"
    elif _runs(needs.kernels, gpu.sm):
        return [Finding("note", f"{gpu.name} is SM {gpu.sm}")]
    elif _runs(needs.partly, gpu.sm):
        text = f"{is_sm}, which only some of the wheels' libraries serve"
        return [Finding("warning", text, "kernels-partly", gpu)]
    elif needs.ptx and _sm(gpu.sm) > max(map(_sm, needs.kernels)):
        text = (
            f"{is_sm}, newer than the wheels' kernels for {', '.join(needs.kernels)}: the driver"
            " would compile their PTX at first use, if it can"
        )
        return [Finding("warning", text, "kernels-ptx", gpu)]
    return [Finding("no", text, "kernels", gpu)]


def _runs(kernels: Iterable[str], capability: str) -> bool:
    major, minor = _sm(capability)
    return any(each[0] == major and each[1] <= minor for each in map(_sm, kernels))


def _sm(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


# AMD: the GPUs that the libraries in a torch serve, and the driver's nodes. Kernels run on the
# target that they were compiled for and on no other. The override that makes ROCm take one GPU for
# another (HSA_OVERRIDE_GFX_VERSION) is a debugging aid, under which programs crash (ROCm/MIOpen
# issues 3540 and 3954): nothing here counts on it.


def _judge_amd(gpu: Gpu, needs: Needs, native: bool) -> list[Finding]:
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


def _amd_capability(gpu: Gpu) -> tuple[float, ...]:
    """Return how much a GPU can do: a card before an APU, then by memory."""
    return gpu.state == "usable", gpu.memory_kind == "dedicated", gpu.memory_bytes or 0


def _order_amd(gpus: Sequence[Gpu], _selected: Sequence[Gpu]) -> Sequence[Gpu] | None:
    """Return the GPUs that HIP sees, in the order of the compute driver, which is theirs.

    None if it is not certain: a container may see those that this user may not open.
    """
    if any(gpu.state == "unknown" or gpu.obstacle == "node-closed" for gpu in gpus):
        return None
    return [gpu for gpu in gpus if gpu.state == "usable"]


def _amd_kernels(needs: Needs, gpu: Gpu) -> list[Finding]:
    """Check whether the wheels' libraries serve a GPU."""
    if not needs.kernels:
        text = "which GPUs its wheels carry kernels for is not known"
        return [Finding("warning", text, "lock-unread", gpu)]
    if gpu.family is None:
        text = f"which chip {named(gpu)} is could not be read"
        return [Finding("warning", text, "gfx-unread", gpu)]
    if gpu.family in needs.kernels:
        return [Finding("note", f"{gpu.name} is {gpu.family}")]
    if gpu.family in needs.partly:
        text = f"{named(gpu)} is {gpu.family}, which only some of the wheels' libraries serve"
        return [Finding("warning", text, "kernels-partly", gpu)]
    text = f"{named(gpu)} is {gpu.family}; the wheels serve {', '.join(needs.kernels)}"
    return [Finding("no", text, "kernels", gpu)]


# Intel: whether PyTorch supports a GPU, and the runtime that native environments need.


def _judge_intel(gpu: Gpu, needs: Needs, native: bool) -> list[Finding]:
    """Check whether PyTorch supports a GPU, with which kernels, and its node can be opened."""
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
    kernels = set(needs.kernels)
    if kernels and not tables.intel_targets(gpu.family or "") & kernels:
        text = (
            f"the wheels carry kernels for {', '.join(needs.kernels)}: for {named(gpu)} the driver"
            " would compile them at first use, if it can"
        )
        return [Finding("warning", text, "kernels-ptx", gpu)]
    return [Finding("note", f"{gpu.name} with the kernel driver {gpu.kernel_driver}")]


def _intel_capability(gpu: Gpu) -> tuple[float, ...]:
    """Return how much a GPU can do: supported before others, discrete before integrated."""
    support = ("unsupported", None, "unlisted", "validated").index(gpu.support)
    return support, gpu.memory_kind == "dedicated", gpu.memory_bytes or 0


def _order_intel(gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> Sequence[Gpu] | None:
    """Return the GPUs that Level Zero sees; empty if torch.xpu uses the selected ones anyway.

    torch.xpu uses discrete GPUs alone if there is one (c10/xpu, note on device management). Level
    Zero numbers discrete GPUs first, by PCI address, then the integrated one.
    """
    seen = [gpu for gpu in gpus if _intel_sees(gpu)]
    discrete = [gpu for gpu in seen if gpu.memory_kind == "dedicated"]
    if discrete and all(gpu in selected for gpu in discrete):
        return ()
    if not all(gpu.bus for gpu in gpus):
        return None
    return [*sorted(discrete, key=_bus), *(gpu for gpu in seen if gpu not in discrete)]


def _intel_sees(gpu: Gpu) -> bool:
    """Return whether Level Zero sees a GPU: a driver is bound to it, and its node can be opened."""
    driven = gpu.kernel_driver in ("i915", "xe")
    return gpu.state != "present" or (gpu.obstacle == "unsupported" and driven)


def _intel_sentence(gpu: Gpu) -> str:
    detail = gpu.detail.rstrip(".")
    if detail.startswith(gpu.name.partition(" (")[0]):
        return detail
    return f"{gpu.name}: {detail}"


def _level_zero(host: Host) -> list[Finding]:
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


def _judge_apple(gpu: Gpu, _needs: Needs, _native: bool) -> list[Finding]:
    """Check that the GPU can be used."""
    if gpu.state == "usable":
        return [Finding("note", gpu.name)]
    return [blocked("warning" if gpu.state == "unknown" else "no", gpu.detail.rstrip("."), gpu)]


# The table

ACCELERATORS: dict[types.Accelerator, Accelerator] = {
    "cuda": Accelerator(
        vendor="nvidia",
        brand="NVIDIA",
        judge=_judge_nvidia,
        capability=_nvidia_capability,
        order=_order_nvidia,
        mask="CUDA_VISIBLE_DEVICES",
        numbering={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        required=lambda requires: requires.nvidia_driver or requires.sm or requires.sm_arm64,
        variants=("cuda-legacy",),
    ),
    "rocm": Accelerator(
        vendor="amd",
        brand="AMD",
        judge=_judge_amd,
        capability=_amd_capability,
        order=_order_amd,
        mask="HIP_VISIBLE_DEVICES",
        required=lambda requires: requires.gfx,
    ),
    "xpu": Accelerator(
        vendor="intel",
        brand="Intel",
        judge=_judge_intel,
        capability=_intel_capability,
        order=_order_intel,
        mask="ZE_AFFINITY_MASK",
        native=_level_zero,
        required=lambda requires: requires.intel_gpu,
    ),
    "mps": Accelerator(
        vendor="apple",
        brand="Apple",
        judge=_judge_apple,
    ),
    "cpu": Accelerator(variants=("zendnn", "cpu-debian", "zendnn-debian", "cpu-ipex")),
}


_WORKS: tuple[Level, ...] = ("note", "warning")
_SEEN = ("unsupported", "unlisted", "no-instances")
"""Obstacles of GPUs that a framework sees all the same."""


def of_vendor(vendor: Vendor) -> types.Accelerator | None:
    """Return the accelerator that a vendor's GPUs are; None if no profile can be for them."""
    for name, row in ACCELERATORS.items():
        if row.vendor == vendor:
            return name
    return None


def needed(profile: Profile) -> Accelerator:
    """Return the accelerator that a profile needs: its own, or the GPU that it requires."""
    for name, row in ACCELERATORS.items():
        if profile.accelerator == name or row.required(profile.requires):
            return row
    return ACCELERATORS[profile.accelerator]


def needs(
    profile: Profile, lock: profile_lock.Lock | None, platform: types.Platform, *, wsl: bool = False
) -> Needs:
    """Return what a profile's wheels for one platform need, by those for its first Python.

    Without files in the lock it will be the build of the profile's release; without a lock, its
    wheels do not matter. `wsl`: under WSL, where the driver is that of Windows.
    """
    requires = profile.requires
    target = profile_lock.first(lock, platform)
    locked = Needs()
    if target is not None:
        wheels = of_wheels(tuple(f.basename for f in target.of_kind("wheel")))
        if ACCELERATORS[profile.accelerator].vendor:
            locked = _locked(profile.framework, target, wsl)
        locked = replace(locked, macos=wheels.macos, glibc=wheels.glibc)
    elif lock and (build := profile.build_on(platform)):
        locked = build.needs(wsl=wsl)
    if kernels := requires.kernels(platform):
        locked = replace(locked, kernels=kernels, partly=requires.gfx_partly, ptx=requires.sm_ptx)
    return replace(
        locked,
        nvidia_driver=requires.nvidia_driver or locked.nvidia_driver,
        macos=requires.macos or locked.macos,
    )


def findings(profile: Profile, host: Host, needs: Needs, *, native: bool) -> list[Finding]:
    """Return the findings about the GPUs that a profile needs.

    Those that work best decide; the others are hidden from the framework, by variables if it would
    use them. If none works, the most capable one is reported.
    """
    row = needed(profile)
    if row.vendor is None:
        return []
    result = of_gpus(row, host, needs, native=native)
    if native:
        result += row.native(host)
    return result


def of_gpus(row: Accelerator, host: Host, needs: Needs, *, native: bool) -> list[Finding]:
    """Return the findings about the GPUs that wheels with these needs would run on."""
    gpus = [gpu for gpu in host.gpus if gpu.vendor == row.vendor]
    if not gpus:
        unknown = [gpu for gpu in host.gpus if gpu.vendor == "unknown"]
        if unknown:
            # Worded alike for all vendors, so that one cause is one sentence.
            text = f"whether there is a GPU is unknown: {unknown[0].detail.rstrip('.')}"
            return [Finding("warning", text, "unread", unknown[0])]
        return [Finding("no", f"no {row.brand} GPU was found", "no-gpu")]
    judged = [(gpu, row.judge(gpu, needs, native)) for gpu in gpus]
    judged.sort(key=lambda pair: row.capability(pair[0]), reverse=True)
    best = min((worst(findings) for _, findings in judged), key=LEVELS.index)
    used = []
    listed = []
    for gpu, findings in judged:
        if worst(findings) == best:
            if best not in _WORKS:
                return findings
            used.append(gpu)
            listed += findings
    return [*listed, *code_findings(used, needs.packages), *_left_out(row, gpus, used)]


def _left_out(row: Accelerator, gpus: Sequence[Gpu], selected: Sequence[Gpu]) -> list[Finding]:
    """Return a note on GPUs that the framework would use although others work better."""
    # Those that it does not see need not be hidden: no driver, no node, another container's.
    seen = (g for g in gpus if g.state != "present" or g.obstacle in _SEEN)
    others = [gpu for gpu in seen if gpu not in selected]
    if not others:
        return []
    order = row.order(gpus, selected)
    names = " and ".join(named(gpu) for gpu in others)
    if order is None:
        text = f"{names} must be hidden from it, and no variable can: their order is unknown"
        return [Finding("warning", text, "left-out", others[0])]
    if not order:
        return []
    numbers = ",".join(str(number) for number, gpu in enumerate(order) if gpu in selected)
    variables = row.numbering | {row.mask: numbers}
    setting = " ".join(f"{name}={value}" for name, value in variables.items())
    text = f"{names} left out: envbuilder sets {setting}"
    return [Finding("note", text, "left-out", others[0], variables)]
