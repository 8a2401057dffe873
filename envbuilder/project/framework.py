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


def is_runtime(name: str) -> bool:
    """Return whether a distribution (normalised) is a library that PyTorch brings with it."""
    return _LIBRARIES.fullmatch(name) is not None
