"""Findings about a profile on a host, and what its wheels need: the input and output of judges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.host.model import Gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def left_out(findings: Sequence[Finding]) -> dict[str, str]:
    """Return the variables that hide the GPUs that the findings leave out."""
    return {name: value for finding in findings for name, value in finding.variables.items()}


def named(gpu: Gpu) -> str:
    """Return a GPU's name, and where it is."""
    return f"{gpu.name} at {gpu.bus}" if gpu.bus else gpu.name


class Needs(Struct, frozen=True, kw_only=True):
    """Minimum versions, and the GPUs that there are kernels for; empty if unknown."""

    sm: tuple[str, ...] = ()
    sm_ptx: bool = False
    gfx: tuple[str, ...] = ()
    gfx_partly: tuple[str, ...] = ()
    nvidia_driver: str = ""
    macos: str = ""
    glibc: str = ""
