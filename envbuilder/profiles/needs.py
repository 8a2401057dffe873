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
    return {name: value for finding in findings for name, value in finding.variables.items()}


def named(gpu: Gpu) -> str:
    """Return a GPU's name, and where it is."""
    return f"{gpu.name} at {gpu.bus}" if gpu.bus else gpu.name


Packages = Mapping[str, Mapping[str, int]]
"""Package and version → bytes of its device code by targets, as far as its wheel was read."""


class Needs(Struct, frozen=True, kw_only=True):
    """Minimum versions, and the GPUs that there are kernels for; empty if unknown."""

    sm: tuple[str, ...] = ()
    sm_partly: tuple[str, ...] = ()
    sm_ptx: bool = False
    gfx: tuple[str, ...] = ()
    gfx_partly: tuple[str, ...] = ()
    xpu: tuple[str, ...] = ()
    nvidia_driver: str = ""
    macos: str = ""
    glibc: str = ""
    packages: Packages = {}


_GLIBC = re.compile(r"manylinux_([0-9]{1,3})_([0-9]{1,3})_", re.ASCII)
_MACOS = re.compile(r"macosx_([0-9]{1,3})_([0-9]{1,3})_", re.ASCII)
# PEP 600: the glibc versions of legacy manylinux tags.
_OLD_GLIBC = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}


@lru_cache(maxsize=64)  # asked for every backend of every profile, several times in one command
def of_wheels(wheels: tuple[str, ...]) -> Needs:
    """Return the versions of macOS and the C library that wheels of these file names need."""
    return Needs(
        macos=_newest(_oldest_macos(name) for name in wheels),
        glibc=_newest(_oldest_glibc(name) for name in wheels),
    )


def _tags(name: str) -> list[str]:
    """Return the platform tags of a wheel, any of which is sufficient."""
    return name.removesuffix(".whl").rpartition("-")[2].split(".")


def _oldest_glibc(name: str) -> tuple[int, int] | None:
    versions = []
    for tag in _tags(name):
        if match := _GLIBC.match(tag):
            versions.append((int(match[1]), int(match[2])))
        versions += [version for old, version in _OLD_GLIBC.items() if tag.startswith(old)]
    return min(versions, default=None)


def _oldest_macos(name: str) -> tuple[int, int] | None:
    matches = (_MACOS.match(tag) for tag in _tags(name))
    return min(((int(m[1]), int(m[2])) for m in matches if m), default=None)


def _newest(versions: Iterable[tuple[int, int] | None]) -> str:
    """Return the newest of the versions that the wheels need; empty if none is known."""
    newest = max((v for v in versions if v), default=None)
    return f"{newest[0]}.{newest[1]}" if newest else ""


_CpuFlag = Annotated[str, Meta(pattern=r"^[a-z0-9_]+\Z")]


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
    cpu_flags: tuple[_CpuFlag, ...] = ()
    """CPU flags without which nothing works; x86 flags are checked on x86 only."""
    cpu_flags_wanted: tuple[_CpuFlag, ...] = ()
    """CPU flags without which only some features work."""
    without_cpu_flags: types.Comment = ""
    """What happens on a CPU that lacks one of these flags."""
    macos: Annotated[str, Meta(pattern=r"^[0-9.]*\Z")] = ""
    """The oldest macOS, if the lock's files do not state it."""
    intel_gpu: bool = False
    """Whether an Intel GPU that PyTorch supports must be present."""


def sm_of(requires: Requires, platform: types.Platform) -> tuple[str, ...]:
    """Return the compute capabilities that a platform's wheels contain kernels for."""
    on_arm = platform == "linux/arm64" and requires.sm_arm64
    return requires.sm_arm64 if on_arm else requires.sm
