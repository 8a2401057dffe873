"""Judge whether the device code in packages runs on a GPU.

Pure: what `packages.python.kernels` read in the wheels goes in, findings come out. The framework
and its libraries are judged by the tables of its releases.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envbuilder.core.text import first
from envbuilder.host import tables
from envbuilder.profiles.needs import Finding, Packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envbuilder.host.model import Gpu

VENDORS = frozenset({"nvidia", "amd"})
"""Whose device code is recognized in wheels."""
_LITTLE = 0.05
"""Share of a package's device code; less is taken for that of a library inside the package."""
_MOST_SHOWN = 12
_NVIDIA = re.compile(r"(sm|compute)_([0-9]+)([0-9])([af]?)")


def findings(gpus: Iterable[Gpu], packages: Packages) -> list[Finding]:
    """Return a warning for each package whose device code is for other GPUs than these.

    A GPU whose architecture is unknown is left to the judgement of the framework.
    """
    return [
        Finding("warning", _sentence(package, code, gpu), "package")
        for gpu in gpus
        if gpu.vendor in VENDORS and _architecture(gpu)
        for package, code in packages.items()
        if served(code, gpu) < _LITTLE
    ]


def served(code: Mapping[str, int], gpu: Gpu) -> float:
    """Return which part of the device code for its vendor's GPUs runs on a GPU.

    Its architecture must be known. It is 0 if there is code for another vendor's GPUs alone, 1 if
    there is none at all.
    """
    sizes = _of_vendor(code, gpu)
    runs = _runs_on_amd if gpu.vendor == "amd" else _runs_on_nvidia
    fitting = sum(s for names, s in sizes.items() if any(runs(n, gpu) for n in names.split()))
    return fitting / sum(sizes.values()) if sizes else float(not code)


def _architecture(gpu: Gpu) -> str | None:
    return gpu.family if gpu.vendor == "amd" else gpu.sm and f"SM {gpu.sm}"


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
    made_for, capability = (int(match[2]), int(match[3])), tuple(map(int, gpu.sm.split(".")))
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
    return f"{kinds[match[1]]} {match[2]}.{match[3]}{match[4]}" if match else target
