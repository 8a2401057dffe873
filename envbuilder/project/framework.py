"""What belongs to the hardware in any environment, whatever a project's files say of it."""

from __future__ import annotations

import re

TORCH = ("torch", "torchvision", "torchaudio", "torchcodec")
"""PyTorch and its companions, distributions with a build for each kind of hardware."""
_LIBRARIES = re.compile(
    r"nvidia-(cu[a-z]+|cuda-.+|cusparselt|nccl|nv[a-z]+)(-cu1[0-9])?"
    r"|cuda-(bindings|pathfinder|toolkit)|(pytorch-)?triton(-rocm|-xpu)?"
    r"|intel-(cmplr|opencl|openmp|pti|sycl).*|dpcpp-.+|onemkl-.+|oneccl.*|mkl|tbb|tcmlib|umf|impi-rt"
)
"""Runtime libraries that builds of PyTorch require in exact versions, by normalised names."""
CONDA_TORCH = {
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
}
"""PyTorch's packages as conda channels name them → as PyPI does."""
_CONDA_LIBRARIES = re.compile(
    r"pytorch-(cuda|mutex)|cpuonly|torchtriton|cudatoolkit|cudnn|nccl"
    r"|cuda(-(cudart|cupti|libraries|nvrtc|nvtx|opencl|runtime|toolkit|version))?"
    r"|lib(cublas|cufft|cufile|curand|cusolver|cusparse|npp|nvfatbin|nvjitlink|nvjpeg)"
)
"""Conda packages that choose a build of PyTorch, or hold libraries that its wheels bring along."""


def is_runtime(name: str) -> bool:
    """Return whether a distribution (normalised) is a library that PyTorch brings with it."""
    return _LIBRARIES.fullmatch(name) is not None


def is_conda_runtime(name: str) -> bool:
    """Return whether a conda package chooses a build of PyTorch, or is a library of it."""
    return _CONDA_LIBRARIES.fullmatch(name) is not None
