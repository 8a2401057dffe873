"""What wheels need from a host, and findings about whether the host has it.

The lock states the versions of the framework, CUDA and ROCm, and in its wheels' file names those of
the C library and macOS. Tables state which kernels that build contains and which driver that CUDA
needs. What a profile states itself (`requires`) takes precedence: its build may be a custom one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal

from msgspec import Meta, Struct

from envbuilder.core import types
from envbuilder.core.errors import first
from envbuilder.host.model import Gpu

Level = Literal["note", "warning", "no", "impossible"]
LEVELS: tuple[Level, ...] = ("note", "warning", "no", "impossible")


class Finding(Struct, frozen=True):
    """One sentence; `impossible` means that not even a build can succeed on this host."""

    level: Level
    text: str
    code: str = ""
    """Stable name of the subject: a GPU's obstacle, or a code that the check gives."""
    gpu: Gpu | None = None
    variables: dict[str, str] = {}
    """Variables that hide GPUs which do not work from the framework."""


def worst(findings: Sequence[Finding]) -> Level:
    """Return the most severe level, which decides."""
    return max((f.level for f in findings), key=LEVELS.index, default="note")


def blocked(level: Level, text: str, gpu: Gpu) -> Finding:
    """Return a finding about what keeps a GPU from working."""
    return Finding(level, text, gpu.obstacle or "gpu", gpu)


def hidden_gpus(findings: Sequence[Finding]) -> dict[str, str]:
    """Return the variables that hide the GPUs that the findings leave out."""
    variables: dict[str, str] = {}
    for finding in findings:
        variables |= finding.variables
    return variables


def named(gpu: Gpu) -> str:
    """Return a GPU's name, and where it is."""
    if gpu.bus:
        return f"{gpu.name} at {gpu.bus}"
    return gpu.name


Packages = Mapping[str, Mapping[str, int]]
"""Package and version → bytes of its device code by targets, as far as its wheel was read."""


class Needs(Struct, frozen=True, kw_only=True):
    """Minimum versions, and the GPUs that there are kernels for; empty if unknown."""

    kernels: tuple[str, ...] = ()
    """SM, gfx targets or Intel's names of targets, as the accelerator has it."""
    partly: tuple[str, ...] = ()
    """Those that only some of the libraries serve."""
    ptx: bool = False
    """Whether GPUs newer than the newest kernels can compile some for themselves."""
    nvidia_driver: str = ""
    macos: str = ""
    glibc: str = ""
    packages: Packages = {}


_GLIBC = re.compile(r"\bmanylinux_([0-9]{1,3})_([0-9]{1,3})_", re.ASCII)
_MACOS = re.compile(r"\bmacosx_([0-9]{1,3})_([0-9]{1,3})_", re.ASCII)
# PEP 600: the glibc versions of legacy manylinux tags.
_OLD_GLIBC = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}


@lru_cache(maxsize=64)  # asked for every backend of every profile, several times in one command
def of_wheels(wheels: tuple[str, ...]) -> Needs:
    """Return the versions of macOS and the C library that wheels of these file names need."""
    return Needs(
        macos=_newest(min(_tagged(_MACOS, name), default=None) for name in wheels),
        glibc=_newest(_oldest_glibc(name) for name in wheels),
    )


def _tagged(pattern: re.Pattern[str], name: str) -> list[tuple[int, int]]:
    """Return the versions in a wheel's platform tags, any of which is sufficient."""
    tags = name.rpartition("-")[2]
    return [(int(major), int(minor)) for major, minor in pattern.findall(tags)]


def _oldest_glibc(name: str) -> tuple[int, int] | None:
    versions = [version for old, version in _OLD_GLIBC.items() if old in name]
    return min([*_tagged(_GLIBC, name), *versions], default=None)


def _newest(versions: Iterable[tuple[int, int] | None]) -> str:
    """Return the newest of the versions that the wheels need; empty if none is known."""
    newest = max((v for v in versions if v), default=None)
    if newest:
        return f"{newest[0]}.{newest[1]}"
    return ""


class Requires(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a profile says that the host must have; checked before anything is downloaded."""

    nvidia_driver: Annotated[str, Meta(pattern=r"^[0-9.]*\Z")] = ""
    """The oldest NVIDIA driver, if the lock's files do not state it."""
    sm: tuple[Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]\Z")], ...] = ()
    """CUDA compute capabilities that the wheels contain kernels for."""
    sm_arm64: tuple[Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]\Z")], ...] = ()
    """The same on linux/arm64, if its wheels differ."""
    sm_ptx: bool = False
    """Whether the newest entry of `sm` is also included as PTX, which newer GPUs can run."""
    gfx: tuple[types.GfxTarget, ...] = ()
    """AMD GPUs that all libraries in the wheels serve, if no table states them: `gfx1100`."""
    gfx_partly: tuple[types.GfxTarget, ...] = ()
    """AMD GPUs that only some of the libraries serve: they may work."""
    cpu_flags: tuple[types.CpuFlag, ...] = ()
    """CPU flags without which nothing works; x86 flags are checked on x86 only."""
    cpu_flags_wanted: tuple[types.CpuFlag, ...] = ()
    """CPU flags without which only some features work."""
    without_cpu_flags: types.Comment = ""
    """What happens on a CPU that lacks one of these flags."""
    macos: Annotated[str, Meta(pattern=r"^[0-9.]*\Z")] = ""
    """The oldest macOS, if the lock's files do not state it."""
    intel_gpu: bool = False
    """Whether an Intel GPU that PyTorch supports must be present."""

    def kernels(self, platform: types.Platform) -> tuple[str, ...]:
        """Return the GPUs that it states kernels for in a platform's wheels; empty if none."""
        if platform == "linux/arm64" and self.sm_arm64:
            return self.sm_arm64
        return self.sm or self.gfx


# Whether the device code in packages runs on a GPU


VENDORS = frozenset({"nvidia", "amd"})
"""Whose device code is recognized in wheels."""
_LITTLE = 0.05
"""Share of a package's device code; less is taken for that of a library inside the package."""
_MOST_SHOWN = 12
_NVIDIA = re.compile(r"(sm|compute)_([0-9]+)([0-9])([af]?)")


def code_findings(gpus: Iterable[Gpu], packages: Packages) -> list[Finding]:
    """Return a warning for each package whose device code is for other GPUs than these.

    A GPU whose architecture is unknown is left to the judgement of the framework.
    """
    findings = []
    for gpu in gpus:
        if gpu.vendor in VENDORS and _architecture(gpu):
            findings += [
                Finding("warning", _sentence(package, code, gpu), "package")
                for package, code in packages.items()
                if served(code, gpu) < _LITTLE
            ]
    return findings


def served(code: Mapping[str, int], gpu: Gpu) -> float:
    """Return which part of the device code for its vendor's GPUs runs on a GPU.

    Its architecture must be known. It is 0 if there is code for another vendor's GPUs alone, 1 if
    there is none at all.
    """
    sizes = _of_vendor(code, gpu)
    if not sizes:
        return float(not code)
    runs = _runs_on_amd if gpu.vendor == "amd" else _runs_on_nvidia
    fitting = 0
    for names, size in sizes.items():
        if any(runs(name, gpu) for name in names.split()):
            fitting += size
    return fitting / sum(sizes.values())


def _architecture(gpu: Gpu) -> str | None:
    if gpu.vendor == "amd":
        return gpu.family
    return gpu.sm and f"SM {gpu.sm}"


def _of_vendor(code: Mapping[str, int], gpu: Gpu) -> dict[str, int]:
    amd = gpu.vendor == "amd"
    return {names: size for names, size in code.items() if names.startswith("gfx") == amd}


def _runs_on_amd(target: str, gpu: Gpu) -> bool:
    """Return whether code for a target, or for a family of them, runs on a GPU.

    `gfx` alone is code in a form that is not read: it is given the benefit of the doubt.
    """
    if target.endswith("-generic"):
        return str(gpu.family).startswith(target.removesuffix("-generic").replace("-", ""))
    return target in {"gfx", gpu.family}


def _runs_on_nvidia(target: str, gpu: Gpu) -> bool:
    """Return whether code for a target runs on a GPU: on its own SM, as PTX on newer ones, too.

    `a` is for exactly that SM, `f` for its family. Tegra's GPUs run machine code for exactly them.
    """
    match = _NVIDIA.fullmatch(target)
    if match is None or gpu.sm is None:
        return False
    from envbuilder.host import tables

    made_for = (int(match[2]), int(match[3]))
    capability = tuple(map(int, gpu.sm.split(".")))
    if match[4] == "a" or (match[1] == "sm" and tables.tegra_of_sm(gpu.sm)):
        return made_for == capability
    is_ptx = match[1] == "compute" and not match[4]
    return made_for <= capability and (is_ptx or made_for[0] == capability[0])


def _sentence(package: str, code: Mapping[str, int], gpu: Gpu) -> str:
    others = "NVIDIA's GPUs" if gpu.vendor == "amd" else "AMD's GPUs"
    names = " ".join(_of_vendor(code, gpu)).split()
    shown = first(list(dict.fromkeys(map(_named, sorted(names, key=_order)))), _MOST_SHOWN)
    return (
        f"{package} has no kernels for {gpu.name} ({_architecture(gpu)}), only for"
        f" {shown or others}: lock another version of it, or leave it out"
    )


def _order(target: str) -> tuple[bool, int, str]:
    """Return a sort key: machine code before PTX, then by number."""
    match = _NVIDIA.fullmatch(target)
    return target.startswith("compute"), int(match[2] + match[3]) if match else 0, target


def _named(target: str) -> str:
    match = _NVIDIA.fullmatch(target)
    kinds = {"sm": "SM", "compute": "PTX"}
    if match:
        return f"{kinds[match[1]]} {match[2]}.{match[3]}{match[4]}"
    return target
