"""NVIDIA's compiler for CUDA, from wheels: for which targets, and what a build sees of it.

The compiler is of the same CUDA as the target's PyTorch, and compiles for the same GPUs, so that
neither a GPU nor an installed toolkit is needed. NVIDIA publishes nvcc as a wheel from CUDA 13 on:
those for CUDA 12 have only its assembler.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from envbuilder.core.errors import BuildError
from envbuilder.host import probe
from envbuilder.profiles import releases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.profiles.lock import Target

_OF_A_JOB = 4 << 30
"""Bytes of memory for each compilation at once."""
_PLENTY = 1 << 50
_RUNTIME = "nvidia-cuda-runtime"
_COMPILER = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")


class Toolkit(NamedTuple):
    """What compiles CUDA for a target."""

    requires: tuple[str, ...]
    """The compiler's wheels as requirements; none where only the system can have it."""
    architectures: str
    """As PyTorch's TORCH_CUDA_ARCH_LIST has them."""


def of_target(target: Target, wished: Sequence[str]) -> Toolkit | None:
    """Return what compiles CUDA for a target; None if its PyTorch is not built for CUDA.

    `wished`: the architectures, if not those of its PyTorch. Raises `BuildError` if no table has
    these.
    """
    wheels = {file.name: file for file in target.of_kind("wheel")}
    torch, runtime = wheels.get("torch"), wheels.get(_RUNTIME)
    row = releases.of_version("torch", torch.version, target.platform) if torch else None
    if torch is None or not (row.build.startswith("cu") if row else runtime):
        return None
    kernels = wished or (row.kernels if row else ())
    if not kernels:
        raise BuildError(
            f"no table has the GPUs that torch {torch.version} is compiled for",
            'Name those to compile for: cuda_architectures: ["9.0"] in envbuilder.yaml.',
        )
    ptx = "+PTX" if row and row.ptx and not wished else ""
    requires: tuple[str, ...] = ()
    if runtime:
        series = ".".join(runtime.version.split(".")[:2])
        pinned = (f"{name}=={series}.*" for name in _COMPILER)
        requires = (*pinned, f"{_RUNTIME}=={runtime.version}")
    return Toolkit(requires, ";".join(kernels) + ptx)


def lay(venv: Path) -> str:
    """Complete the toolkit that wheels installed into a venv; return its path there, or nothing.

    They lack the names by which linkers look for it.
    """
    for compiler in venv.glob("lib/python*/site-packages/nvidia/cu*/bin/nvcc"):
        home = compiler.parent.parent
        (home / "lib64").symlink_to("lib")
        for library in sorted((home / "lib").glob("lib*.so.*")):
            plain = library.with_name(f"{library.name.partition('.so.')[0]}.so")
            if not plain.exists():
                plain.symlink_to(library.name)
        return home.relative_to(venv).as_posix()
    return ""


def variables(where: str, home: str, architectures: str, jobs: int) -> dict[str, str]:
    """Return what a build that compiles CUDA finds in its environment; `jobs`: at most at once.

    nvcc names its intermediate files at random, and symbols after them: the linker strips these.
    """
    memory = probe.host().memory
    room = min(size for size in (memory.total_bytes, memory.limit_bytes, _PLENTY) if size)
    return {
        "MAX_JOBS": str(max(1, min(jobs, room // _OF_A_JOB))),
        "FORCE_CUDA": "1",
        "TORCH_CUDA_ARCH_LIST": architectures,
        "NVCC_APPEND_FLAGS": f"-Xcompiler=-g0,-ffile-prefix-map={where}=.",
        "LDFLAGS": "-Wl,-s",
        **({"CUDA_HOME": f"{where}/venv/{home}"} if home else {}),
    }
