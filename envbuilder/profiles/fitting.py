"""Findings for and against one profile on one host, as sentences that contain the facts.

Pure. Nothing unknown counts as working: a driver that could not be read, a GPU that no table lists
or a device node with unknown permissions is at best a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.core import types as words
from envbuilder.host import tables
from envbuilder.host.model import TRACKED_FLAGS, X86_FLAGS, Gpu
from envbuilder.host.text import version
from envbuilder.profiles.backends import makes_image
from envbuilder.profiles.needs import Needs, needs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envbuilder.host.model import Host
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile

    Judge = Callable[[Gpu], list["Finding"]]

Level = Literal["note", "warning", "no", "impossible"]
LEVELS: tuple[Level, ...] = ("note", "warning", "no", "impossible")


class Finding(Struct, frozen=True):
    """One sentence; `impossible` means that not even a build can succeed on this host."""

    level: Level
    text: str
    code: str = ""
    """Stable name of the subject: a GPU's obstacle, or one of the codes used below."""
    gpu: Gpu | None = None


def worst(found: Sequence[Finding]) -> Level:
    """Return the most severe level, which decides."""
    return max((f.level for f in found), key=LEVELS.index, default="note")


def findings(
    profile: Profile, host: Host, backend: str, lock: Lock | None = None
) -> tuple[Finding, ...]:
    """Return all findings about a profile on a host with one backend."""
    image = makes_image(backend)
    platform = docker_platform(host) if image else host.platform
    wanted = needs(profile, lock, platform or profile.platforms[0])
    return (
        *_platform(profile, host, backend),
        *(() if image else _system(wanted, host)),
        *_translation(host, backend),
        *_cpu_flags(profile, host),
        *_accelerator(profile, host, backend, wanted),
    )


def engine(host: Host) -> list[Finding]:
    """Return what keeps images from running on a host; empty if a container engine responds."""
    engines = host.containers.engines
    if any(engine.state == "usable" for engine in engines):
        return []
    text = "no container engine answers"
    if engines:
        text += f" ({engines[0].socket}: {engines[0].detail.rstrip('.')})"
    return [Finding("warning", text, "engine")]


def _platform(profile: Profile, host: Host, backend: str) -> list[Finding]:
    if backend not in profile.backends:
        return [Finding("impossible", f"it has no backend {backend}", "backend")]
    native = not makes_image(backend)
    wanted = [p for p in profile.platforms if native or p.startswith("linux/")]
    here = host.platform if native else docker_platform(host)
    named = f"{host.os} on {host.machine}"
    level: Level = "impossible" if native or not wanted else "no"
    possible = [p for p in wanted if not native or p.startswith(host.os)]
    if possible and host.os != "other" and host.machine == "unknown":
        return [Finding("warning", "this machine's architecture could not be read", "unread")]
    if here not in wanted:
        text = f"it is for {' and '.join(wanted)}; this host is {here or named}"
        return [Finding(level, text, "platform")]
    return []


def docker_platform(host: Host) -> words.Platform | None:
    """Return the platform of containers here: even on macOS, engines run Linux on the same CPU."""
    if host.os == "other":
        return None
    return words.container_platform(host.machine)


def _system(wanted: Needs, host: Host) -> list[Finding]:
    """Check what a native environment needs from the operating system."""
    if host.os == "macos":
        return _at_least("macOS", host.os_version, wanted.macos)
    if host.os != "linux" or not wanted.glibc:
        return []
    name, _, number = (host.libc or "glibc").partition(" ")
    if name != "glibc":
        text = f"the C library is {name}, and the wheels need glibc: use --backend docker"
        return [Finding("impossible", text, "libc-other")]
    number = number or tables.distribution_glibc(host.os_version) or ""
    return [f for f in _at_least("glibc", number, wanted.glibc) if f.level != "note"]


def _at_least(name: str, found: str | None, wanted: str) -> list[Finding]:
    needed, here = version(wanted), version(found)
    if needed is None:
        return []
    if here is None:
        return [Finding("warning", f"the version of {name} could not be read", "system-unread")]
    if here < needed:
        text = f"{name} {found} is older than {wanted}, which the wheels need"
        return [Finding("impossible", text, "system-old")]
    return [Finding("note", f"{name} {found}")]


def _translation(host: Host, backend: str) -> list[Finding]:
    if host.os == "linux" and host.rosetta:
        text = "this is x86_64 Linux translated by Rosetta, which is slow"
        return [Finding("warning", text, "rosetta-linux")]
    if host.os != "macos" or makes_image(backend):
        return []
    if host.rosetta:
        text = "Python is x86_64 under Rosetta; run envbuilder with an arm64 Python"
        return [Finding("no", text, "rosetta")]
    if host.rosetta is None:
        text = "whether Python runs under Rosetta could not be read"
        return [Finding("warning", text, "unread")]
    return []


def _cpu_flags(profile: Profile, host: Host) -> list[Finding]:
    requires = profile.requires
    found = _missing_flags(profile, host, requires.cpu_flags, "no")
    wanted = _missing_flags(profile, host, requires.cpu_flags_wanted, "warning")
    # A wanted flag that could not be read is no reason to doubt the rest.
    return found or [f for f in wanted if f.code == "cpu-flags"]


def _missing_flags(
    profile: Profile, host: Host, named: Sequence[str], level: Level
) -> list[Finding]:
    # x86 flags do not apply to other processors, which a profile may also support.
    needed = [flag for flag in named if flag not in X86_FLAGS or host.machine == "x86_64"]
    if not needed:
        return []
    if host.cpu.flags is None:
        return [Finding("warning", "the CPU's flags could not be read", "unread")]
    found = []
    has = tables.with_implied_flags(host.cpu.flags)
    # Every 64-bit x86 has SSE2: a host without it was recorded before such flags were tracked.
    kept = TRACKED_FLAGS if "sse2" in has else TRACKED_FLAGS - {"sse2", "sse4_1"}
    has &= TRACKED_FLAGS
    untold = [flag for flag in needed if flag not in kept and flag not in has]
    if untold:
        text = f"whether the CPU has {', '.join(untold)} is not recorded"
        found.append(Finding("warning", text, "unread"))
    missing = [flag for flag in needed if flag in kept and flag not in has]
    name = host.cpu.generation or host.cpu.model_name or "the CPU"
    if missing:
        first = missing[0].replace("sse4_", "SSE4.")
        lacks = "no AVX-512" if "avx512f" in missing else f"no {first}"
        then = profile.requires.without_cpu_flags
        text = f"{name} has {lacks} ({', '.join(missing)} missing){then and f': {then}'}"
        found.append(Finding(level, text, "cpu-flags"))
    elif not untold and profile.expects.extension:
        found.append(Finding("note", f"{name} has {needed[-1]}"))
    return found


def _accelerator(profile: Profile, host: Host, backend: str, wanted: Needs) -> list[Finding]:
    if profile.accelerator == "cuda" or wanted.nvidia_driver or wanted.sm:
        return _best(host, "nvidia", "NVIDIA", lambda gpu: _nvidia(wanted, gpu))
    if profile.accelerator == "xpu" or profile.requires.intel_gpu:
        found = _best(host, "intel", "Intel", lambda gpu: _intel(gpu, backend))
        return found + ([] if makes_image(backend) else _level_zero(host))
    if profile.accelerator == "mps":
        return _best(host, "apple", "Apple", _apple)
    return []


def _best(host: Host, vendor: str, name: str, judge: Judge) -> list[Finding]:
    """Return the findings about the GPUs of one vendor.

    The worst of the working GPUs decides, because torch sees them all. GPUs that do not work
    matter only if none does.
    """
    own = [gpu for gpu in host.gpus if gpu.vendor == vendor]
    if not own:
        untold = [gpu for gpu in host.gpus if gpu.vendor == "unknown"]
        if untold:
            text = f"whether there is an {name} GPU is unknown: {_end(untold)}"
            return [Finding("warning", text, "unread", untold[0])]
        return [Finding("no", f"no {name} GPU was found", "no-gpu")]
    for state in ("usable", "unknown", "present"):
        group = [gpu for gpu in own if gpu.state == state]
        if group:
            return [finding for gpu in group for finding in judge(gpu)]
    return []


def _end(gpus: Sequence[Gpu]) -> str:
    return gpus[0].detail.rstrip(".")


def _nvidia(wanted: Needs, gpu: Gpu) -> list[Finding]:
    if gpu.state == "present":
        # Worth knowing before the driver is installed: whether the wheels support the GPU at all.
        too_old = [f for f in _kernels(wanted, gpu) if f.level == "no"]
        return [*too_old, _blocked("no", f"{_named(gpu)}: {gpu.detail.rstrip('.')}", gpu)]
    found = [*_driver(wanted, gpu), *_kernels(wanted, gpu)]
    if gpu.state == "unknown":
        found.append(_blocked("warning", f"{_named(gpu)}: {gpu.detail.rstrip('.')}", gpu))
    return found


def _blocked(level: Level, text: str, gpu: Gpu) -> Finding:
    return Finding(level, text, gpu.obstacle or "gpu", gpu)


def _named(gpu: Gpu) -> str:
    return f"{gpu.name} at {gpu.bus}" if gpu.bus else gpu.name


def _driver(wanted: Needs, gpu: Gpu) -> list[Finding]:
    needed, here = version(wanted.nvidia_driver), version(gpu.driver_version)
    if here is None:
        text = "the version of NVIDIA's driver could not be read"
        return [Finding("warning", text, "driver-unread", gpu)]
    if needed is None:
        text = "which driver its CUDA runtime needs is not known"
        return [Finding("warning", text, "lock-unread", gpu)]
    if here < needed:
        text = (
            f"NVIDIA driver {gpu.driver_version} is older than {wanted.nvidia_driver}, "
            "which this profile's CUDA runtime needs"
        )
        return [Finding("no", text, "driver-old", gpu)]
    return [Finding("note", f"NVIDIA driver {gpu.driver_version}")]


def _kernels(wanted: Needs, gpu: Gpu) -> list[Finding]:
    """Check whether the wheels' kernels run on a GPU.

    Kernels run on their own SM and on higher minors of its major; PTX on anything newer.
    """
    carried = wanted.sm
    if not carried:
        text = "which GPUs its wheels carry kernels for is not known"
        return [Finding("warning", text, "lock-unread", gpu)]
    if gpu.sm is None:
        text = (
            f"the compute capability of {_named(gpu)} is not known "
            f"(the wheels carry kernels for {_list(carried)})"
        )
        return [Finding("warning", text, "sm-unread", gpu)]
    here = _sm(gpu.sm)
    kernels = [_sm(sm) for sm in carried]
    if any(major == here[0] and minor <= here[1] for major, minor in kernels):
        return [Finding("note", f"{gpu.name} is SM {gpu.sm}")]
    if wanted.sm_ptx and here > max(kernels):
        text = (
            f"{_named(gpu)} is SM {gpu.sm}, newer than the wheels' kernels for "
            f"{_list(carried)}: the driver would compile their PTX at first use, if it can"
        )
        return [Finding("warning", text, "kernels-ptx", gpu)]
    text = f"{_named(gpu)} is SM {gpu.sm}; the wheels carry kernels for {_list(carried)}"
    return [Finding("no", text, "kernels", gpu)]


def _list(numbers: Sequence[str]) -> str:
    return ", ".join(numbers)


def _sm(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _intel(gpu: Gpu, backend: str) -> list[Finding]:
    if gpu.support == "validated" and gpu.render_node_readable is False and makes_image(backend):
        # The engine opens the node as root, and the container joins the group that owns it.
        return [_blocked("warning", _sentence(gpu), gpu)]
    if gpu.support == "unsupported" or gpu.state == "present":
        return [_blocked("no", _sentence(gpu), gpu)]
    if gpu.state == "unknown":
        return [_blocked("warning", _sentence(gpu), gpu)]
    if gpu.support != "validated":
        text = f"{gpu.name} is not on PyTorch's list of validated Intel GPUs; it may work"
        return [Finding("warning", text, "unlisted", gpu)]
    return [Finding("note", f"{gpu.name} with the kernel driver {gpu.kernel_driver}")]


def _sentence(gpu: Gpu) -> str:
    detail = gpu.detail.rstrip(".")
    return detail if detail.startswith(gpu.name.partition(" (")[0]) else f"{gpu.name}: {detail}"


def _level_zero(host: Host) -> list[Finding]:
    """Check for the GPU runtime, which native environments use from the host; images contain it."""
    if host.level_zero:
        return []
    if host.level_zero is None:
        text = "whether Level Zero is installed could not be read"
        return [Finding("warning", text, "level-zero-unread")]
    text = (
        "Level Zero and Intel's GPU driver for it, which no wheel brings, are not installed "
        "(libze1, libze-intel-gpu1)"
    )
    return [Finding("no", text, "level-zero")]


def _apple(gpu: Gpu) -> list[Finding]:
    if gpu.state == "usable":
        return [Finding("note", gpu.name)]
    return [_blocked("warning" if gpu.state == "unknown" else "no", gpu.detail.rstrip("."), gpu)]
