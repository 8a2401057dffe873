"""What speaks for and against one profile on one host, as sentences with the facts in them.

Pure. Nothing here promises what is not known: a driver that could not be read, a GPU that no table
lists, a device node whose permissions are unknown are at best a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.detection.text import version
from envbuilder.host import TRACKED_FLAGS
from envbuilder.profiles import sm_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envbuilder.host import Gpu, Host
    from envbuilder.profiles import Profile, Requires

    Judge = Callable[[Gpu], list["Finding"]]

Level = Literal["note", "warning", "no", "impossible"]
LEVELS: tuple[Level, ...] = ("note", "warning", "no", "impossible")


class Finding(Struct, frozen=True):
    """One sentence; `impossible` means that not even a build can give a result on this host."""

    level: Level
    text: str


def findings(profile: Profile, host: Host, backend: str) -> tuple[Finding, ...]:
    """Everything to say about a profile on a host with one backend."""
    return (
        *_platform(profile, host, backend),
        *_translation(host, backend),
        *_cpu_flags(profile, host),
        *_accelerator(profile, host, backend),
    )


def _platform(profile: Profile, host: Host, backend: str) -> list[Finding]:
    if backend not in profile.backends:
        return [Finding("impossible", f"it has no backend {backend}")]
    native = backend != "docker"
    wanted = [p for p in profile.platforms if native or p.startswith("linux/")]
    here = host.platform if native else _docker_platform(host)
    named = f"{host.os} on {host.machine}"
    level: Level = "impossible" if native or not wanted else "no"
    possible = [p for p in wanted if not native or p.startswith(host.os)]
    if possible and host.os != "other" and host.machine == "unknown":
        return [Finding("warning", "this machine's architecture could not be read")]
    if here not in wanted:
        return [Finding(level, f"it is for {' and '.join(wanted)}; this host is {here or named}")]
    return _macos(profile.requires, host) if native else []


def _docker_platform(host: Host) -> str | None:
    """The platform of containers here: on macOS too, an engine runs Linux on the same CPU."""
    if host.os == "other":
        return None
    return {"x86_64": "linux/amd64", "aarch64": "linux/arm64", "arm64": "linux/arm64"}.get(
        host.machine
    )


def _macos(requires: Requires, host: Host) -> list[Finding]:
    needed, here = version(requires.macos), version(host.os_version)
    if host.os != "macos" or needed is None:
        return []
    if here is None:
        return [Finding("warning", "the version of macOS could not be read")]
    if here < needed:
        text = f"macOS {host.os_version} is older than {requires.macos}, which the wheels need"
        return [Finding("impossible", text)]
    return [Finding("note", f"macOS {host.os_version}")]


def _translation(host: Host, backend: str) -> list[Finding]:
    if host.os == "linux" and host.rosetta:
        return [Finding("warning", "this is x86_64 Linux translated by Rosetta, which is slow")]
    if host.os != "macos" or backend == "docker":
        return []
    if host.rosetta:
        text = "Python is x86_64 under Rosetta; run envbuilder with an arm64 Python"
        return [Finding("no", text)]
    if host.rosetta is None:
        return [Finding("warning", "whether Python runs under Rosetta could not be read")]
    return []


def _cpu_flags(profile: Profile, host: Host) -> list[Finding]:
    needed = profile.requires.cpu_flags
    if not needed:
        return []
    if host.cpu.flags is None:
        return [Finding("warning", "the CPU's flags could not be read")]
    found = []
    untold = [flag for flag in needed if flag not in TRACKED_FLAGS]
    if untold:
        found.append(Finding("warning", f"whether the CPU has {', '.join(untold)} is not recorded"))
    missing = [flag for flag in needed if flag in TRACKED_FLAGS and flag not in host.cpu.flags]
    if missing:
        name = host.cpu.generation or host.cpu.model_name or "the CPU"
        lacks = "no AVX-512" if "avx512f" in missing else f"no {missing[0]}"
        then = {"zentorch": ": zentorch would return the graph unchanged"}.get(
            profile.expects.extension, ""
        )
        found.append(Finding("no", f"{name} has {lacks} ({', '.join(missing)} missing){then}"))
    elif not untold:
        found.append(Finding("note", f"{host.cpu.generation or 'the CPU'} has {needed[-1]}"))
    return found


def _accelerator(profile: Profile, host: Host, backend: str) -> list[Finding]:
    requires = profile.requires
    if profile.accelerator == "cuda" or requires.nvidia_driver or requires.sm:
        arm = host.machine in {"aarch64", "arm64"}
        carried = sm_of(requires, "linux/arm64" if arm else "linux/amd64")
        return _best(host, "nvidia", "NVIDIA", lambda gpu: _nvidia(requires, carried, gpu))
    if profile.accelerator == "xpu" or requires.intel_gpu:
        found = _best(host, "intel", "Intel", lambda gpu: _intel(gpu, backend))
        return found + (_level_zero(host) if backend != "docker" else [])
    if profile.accelerator == "mps":
        return _best(host, "apple", "Apple", _apple)
    return []


def _best(host: Host, vendor: str, name: str, judge: Judge) -> list[Finding]:
    """The findings of the GPUs of one vendor.

    Those that work decide, and the worst of them: torch sees them all. GPUs that do not work
    matter only where none does.
    """
    own = [gpu for gpu in host.gpus if gpu.vendor == vendor]
    if not own:
        untold = [gpu for gpu in host.gpus if gpu.vendor == "unknown"]
        if untold:
            return [
                Finding("warning", f"whether there is an {name} GPU is unknown: {_end(untold)}")
            ]
        return [Finding("no", f"no {name} GPU was found")]
    for state in ("usable", "unknown", "present"):
        group = [gpu for gpu in own if gpu.state == state]
        if group:
            return [finding for gpu in group for finding in judge(gpu)]
    return []


def _end(gpus: Sequence[Gpu]) -> str:
    return gpus[0].detail.rstrip(".")


def _nvidia(requires: Requires, carried: Sequence[str], gpu: Gpu) -> list[Finding]:
    if gpu.state == "present":
        return [Finding("no", f"{_named(gpu)}: {gpu.detail.rstrip('.')}")]
    found = [*_driver(requires, gpu), *_kernels(requires, carried, gpu)]
    if gpu.state == "unknown":
        found.append(Finding("warning", f"{_named(gpu)}: {gpu.detail.rstrip('.')}"))
    return found


def _named(gpu: Gpu) -> str:
    return f"{gpu.name} at {gpu.bus}" if gpu.bus else gpu.name


def _driver(requires: Requires, gpu: Gpu) -> list[Finding]:
    needed, here = version(requires.nvidia_driver), version(gpu.driver_version)
    if here is None:
        return [Finding("warning", "the version of NVIDIA's driver could not be read")]
    if needed is not None and here < needed:
        text = (
            f"NVIDIA driver {gpu.driver_version} is older than {requires.nvidia_driver}, "
            "which this profile's CUDA runtime needs"
        )
        return [Finding("no", text)]
    return [Finding("note", f"NVIDIA driver {gpu.driver_version}")]


def _kernels(requires: Requires, carried: Sequence[str], gpu: Gpu) -> list[Finding]:
    """Kernels run on their own SM and on higher minors of its major; PTX on anything newer."""
    if not carried:
        return []
    if gpu.sm is None:
        text = (
            f"the compute capability of {_named(gpu)} is not known "
            f"(the wheels carry kernels for {_list(carried)}); install nvidia-ml-py to ask"
        )
        return [Finding("warning", text)]
    here = _sm(gpu.sm)
    kernels = [_sm(sm) for sm in carried]
    if any(major == here[0] and minor <= here[1] for major, minor in kernels):
        return [Finding("note", f"{gpu.name} is SM {gpu.sm}")]
    if requires.sm_ptx and here > max(kernels):
        text = (
            f"{_named(gpu)} is SM {gpu.sm}, newer than the wheels' kernels for "
            f"{_list(carried)}: the driver would compile their PTX at first use, if it can"
        )
        return [Finding("warning", text)]
    text = f"{_named(gpu)} is SM {gpu.sm}; the wheels carry kernels for {_list(carried)}"
    return [Finding("no", text)]


def _list(numbers: Sequence[str]) -> str:
    return ", ".join(numbers)


def _sm(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _intel(gpu: Gpu, backend: str) -> list[Finding]:
    if gpu.support == "validated" and gpu.render_node_readable is False and backend == "docker":
        # The engine opens the node as root, and the container joins the group that owns it.
        return [Finding("warning", _sentence(gpu))]
    if gpu.support == "unsupported" or gpu.state == "present":
        return [Finding("no", _sentence(gpu))]
    if gpu.state == "unknown":
        return [Finding("warning", _sentence(gpu))]
    if gpu.support != "validated":
        text = f"{gpu.name} is not on PyTorch's list of validated Intel GPUs; it may work"
        return [Finding("warning", text)]
    return [Finding("note", f"{gpu.name} with the kernel driver {gpu.kernel_driver}")]


def _sentence(gpu: Gpu) -> str:
    detail = gpu.detail.rstrip(".")
    return detail if detail.startswith(gpu.name.partition(" (")[0]) else f"{gpu.name}: {detail}"


def _level_zero(host: Host) -> list[Finding]:
    """Native environments use the host's own GPU runtime; an image brings it."""
    if host.level_zero:
        return []
    if host.level_zero is None:
        return [Finding("warning", "whether Level Zero is installed could not be read")]
    text = (
        "Level Zero and Intel's GPU driver for it, which no wheel brings, are not installed: "
        "libze1 and libze-intel-gpu1 on Debian and Ubuntu"
    )
    return [Finding("no", text)]


def _apple(gpu: Gpu) -> list[Finding]:
    if gpu.state == "usable":
        return [Finding("note", gpu.name)]
    return [Finding("warning" if gpu.state == "unknown" else "no", gpu.detail.rstrip("."))]
