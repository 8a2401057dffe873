"""The frameworks of profiles, one row each; the payload has its own table.

The build of a framework belongs to the hardware; its release is a project's choice. All differences
between frameworks outside of the payload are in their rows.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from envbuilder.core import types

DEFAULT: types.Framework = "torch"


_BUILD_EXTRA = r"(and-)?(cpu|cuda|metal|oneapi|rocm|tpu|xpu|minimum-jaxlib)[a-z0-9-]*"
"""Pattern: extras that choose a build of a framework for some hardware (normalised)."""


class Framework(Struct, frozen=True, kw_only=True):
    """Its distributions and conda packages; names are normalised as in indexes."""

    title: str
    names: frozenset[str]
    """The distributions that are the framework itself; a profile pins one of them."""
    parts: frozenset[str] = frozenset()
    """Further distributions of its builds: an environment only has the profile's."""
    companions: frozenset[str] = frozenset()
    """Distributions that a project may list in addition, with a build for each kind of hardware."""
    libraries: str
    """Pattern: runtime libraries that its builds require in exact versions."""
    kernel_compilers: dict[str, frozenset[str]] = {}
    """Its compiler of kernels, by its name on each kind of hardware."""
    used_by: str = ""
    """Pattern: distributions that show that a project uses the framework."""
    conda: dict[str, str]
    """Its packages: name in conda channels → name on PyPI."""
    conda_cores: frozenset[str] = frozenset()
    """Conda packages with its code that nobody lists."""
    conda_libraries: str
    """Pattern: conda packages that choose a build of it, or contain libraries of its wheels."""
    extensions: dict[str, str] = {}
    """`expects.extension` → its distribution."""
    index_hosts: tuple[str, ...] = ()
    """Hosts that only have its builds."""

    @property
    def builds(self) -> frozenset[str]:
        """The distributions with a build for each kind of hardware."""
        return self.names | self.parts | self.companions

    def foreign(self, accelerator: types.Accelerator) -> frozenset[str]:
        """Return the names of its kernel compiler for other hardware.

        They install the same modules as the one for this hardware, which its builds require.
        """
        here = self.kernel_compilers.get(accelerator, frozenset())
        return frozenset().union(*self.kernel_compilers.values()) - here

    def is_library(self, name: str) -> bool:
        """Return whether a distribution is a runtime library of its builds."""
        # Compiled at the first use, and kept by `re`: patterns are a tenth of the start-up's time.
        return bool(re.fullmatch(self.libraries, name))


_CUDA = r"nvidia-(cu[a-z]+|cuda-.+|cusparselt|nccl|nv(jitlink|shmem|tx|vm))(-cu1[0-9])?"
_ONEAPI = (
    r"|intel-(cmplr|opencl|openmp|pti|sycl).*|dpcpp-.+|onemkl-.+|oneccl.*"
    r"|mkl|tbb|tcmlib|umf|impi-rt"
)
_CONDA_CUDA = (
    r"cudatoolkit|cudnn|nccl"
    r"|cuda(-(cudart|cupti|libraries|nvrtc|nvtx|opencl|runtime|toolkit|version))?"
    r"|lib(cublas|cufft|cufile|curand|cusolver|cusparse|npp|nvfatbin|nvjitlink|nvjpeg)"
)

FRAMEWORKS: dict[types.Framework, Framework] = {
    "torch": Framework(
        title="PyTorch",
        names=frozenset({"torch"}),
        companions=frozenset({"torchvision", "torchaudio", "torchcodec"}),
        libraries=_CUDA
        + r"|cuda-(bindings|pathfinder|toolkit)|(pytorch-)?triton(-rocm|-xpu)?"
        + _ONEAPI,
        kernel_compilers={
            "cuda": frozenset({"triton", "pytorch-triton"}),
            "rocm": frozenset({"triton-rocm", "pytorch-triton-rocm"}),
            "xpu": frozenset({"triton-xpu", "pytorch-triton-xpu"}),
        },
        conda={
            "pytorch": "torch",
            "pytorch-cpu": "torch",
            "pytorch-gpu": "torch",
            "torchvision": "torchvision",
            "torchaudio": "torchaudio",
        },
        conda_libraries=r"pytorch-(cuda|mutex)|cpuonly|torchtriton|" + _CONDA_CUDA,
        conda_cores=frozenset({"libtorch"}),
        extensions={"zentorch": "zentorch", "ipex": "intel-extension-for-pytorch"},
        index_hosts=("pytorch.org",),
    ),
    "jax": Framework(
        title="JAX",
        names=frozenset({"jax"}),
        parts=frozenset(
            {
                "jaxlib",
                "libtpu",
                "jax-metal",
                "jax-mps",
                *(
                    f"jax-{runtime}-{suffix}"
                    for runtime, suffix in itertools.product(
                        ("cuda12", "cuda13", "rocm60", "rocm7", "oneapi"), ("plugin", "pjrt")
                    )
                ),
            }
        ),
        libraries=_CUDA + _ONEAPI,
        used_by=r"flax|optax|equinox|chex|dm-haiku|orbax-checkpoint|diffrax|distrax|numpyro|jaxtyping",
        conda={"jax": "jax", "jaxlib": "jaxlib"},
        conda_libraries=_CONDA_CUDA,
    ),
    "tensorflow": Framework(
        title="TensorFlow",
        names=frozenset(
            {
                "tensorflow",
                "tensorflow-cpu",
                "tensorflow-gpu",
                "tensorflow-intel",
                "tensorflow-macos",
                "tensorflow-rocm",
                "tensorflow-cpu-aws",
                "intel-tensorflow",
            }
        ),
        parts=frozenset({"tensorflow-metal", "intel-extension-for-tensorflow"}),
        libraries=_CUDA,
        used_by=r"keras|tf-keras|tensorflow-(datasets|hub|text|probability|addons)",
        conda={
            "tensorflow": "tensorflow",
            "tensorflow-cpu": "tensorflow",
            "tensorflow-gpu": "tensorflow",
        },
        conda_cores=frozenset({"libtensorflow_cc", "tensorflow-base"}),
        conda_libraries=_CONDA_CUDA,
        extensions={"zentf": "zentf"},
    ),
}


def first_profile(framework: types.Framework, accelerator: types.Accelerator) -> str:
    """Return the name of the profile that is preferred for an accelerator."""
    if framework == DEFAULT:
        return accelerator
    return f"{framework}-{accelerator}"


def of_build(name: str) -> Framework | None:
    """Return the framework of which a distribution (normalised) is a part or a companion."""
    for row in FRAMEWORKS.values():
        if name in row.builds:
            return row
    return None


def of_conda(name: str) -> str | None:
    """Return the distribution of a framework's conda package; None for any other package."""
    for row in FRAMEWORKS.values():
        if name in row.conda:
            return row.conda[name]
    return None


def of_name(name: str) -> types.Framework | None:
    """Return the framework that a distribution (normalised) is; None for any other one."""
    for key, row in FRAMEWORKS.items():
        if name in row.names:
            return key
    return None


def of_user(name: str) -> types.Framework | None:
    """Return the framework that a distribution (normalised) belongs to or uses."""
    for key, row in FRAMEWORKS.items():
        if name in row.builds or (row.used_by and re.fullmatch(row.used_by, name)):
            return key
    return None


def is_build_extra(extra: str) -> bool:
    """Return whether an extra (normalised) chooses a build of a framework for some hardware."""
    return bool(re.fullmatch(_BUILD_EXTRA, extra))


def is_runtime(name: str) -> bool:
    """Return whether a distribution (normalised) is a runtime library of some framework."""
    return any(row.is_library(name) for row in FRAMEWORKS.values())


def cuda_of(name: str) -> str:
    """Return the major version of CUDA in the name of a distribution (normalised) or a build.

    Empty if there is none, or if the framework's own build decides.
    """
    version = re.fullmatch(r"(?:.+-)?cu(?:da)?(1\d)\d?x?(?:-.+)?", name)
    return version[1] if version and not (of_build(name) or is_runtime(name)) else ""


def is_conda_runtime(name: str) -> bool:
    """Return whether a conda package chooses a framework's build, or is a library of one."""
    return any(re.fullmatch(row.conda_libraries, name) for row in FRAMEWORKS.values())
