"""The table of frameworks that profiles can use. The payload has its own table.

The hardware determines the build of a framework, and the project chooses its release. All
differences between frameworks are in the rows of this table, except for those in the payload.
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
"""Pattern for normalized extras that select a framework's build for a kind of hardware."""


class Framework(Struct, frozen=True, kw_only=True):
    """A framework, with the normalized names of its distributions and conda packages."""

    title: str
    names: frozenset[str]
    """The distributions that provide the framework itself. A profile pins one of them."""
    parts: frozenset[str] = frozenset()
    """Other distributions that belong to the framework's builds. An environment contains only the
    parts of its profile's build."""
    companions: frozenset[str] = frozenset()
    """Distributions that have a build for each kind of hardware and that a project may also
    list."""
    libraries: str
    """Pattern for the runtime libraries that the framework's builds require in exact versions."""
    kernel_compilers: dict[str, frozenset[str]] = {}
    """The names of the framework's kernel compiler for each accelerator."""
    used_by: str = ""
    """Pattern for distributions that are used only with this framework."""
    conda: dict[str, str]
    """The PyPI name of each of the framework's conda packages."""
    conda_cores: frozenset[str] = frozenset()
    """Conda packages that contain the framework's code, but that projects do not list directly."""
    conda_libraries: str
    """Pattern for conda packages that select a build of the framework or that contain libraries
    which are part of the framework's wheels."""
    extensions: dict[str, str] = {}
    """The distribution that provides each extension, by the value of `expects.extension`."""
    index_hosts: tuple[str, ...] = ()
    """Hosts of indexes that contain only the framework's builds."""

    @property
    def builds(self) -> frozenset[str]:
        """The framework's distributions that have a separate build for each kind of hardware."""
        return self.names | self.parts | self.companions

    def foreign(self, accelerator: types.Accelerator) -> frozenset[str]:
        """Return the names of the framework's kernel compiler on accelerators other than this one.

        The packages with these names install the same modules as the compiler for this accelerator,
        which the framework's builds require.
        """
        here = self.kernel_compilers.get(accelerator, frozenset())
        return frozenset().union(*self.kernel_compilers.values()) - here

    def is_library(self, name: str) -> bool:
        """Return whether a distribution is a runtime library that the framework's builds use."""
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
    """Return the name of the preferred profile for a framework and an accelerator."""
    if framework == DEFAULT:
        return accelerator
    return f"{framework}-{accelerator}"


def of_build(name: str) -> Framework | None:
    """Return the framework that has builds of a distribution, or None if there is none.

    `name` must be normalized.
    """
    for row in FRAMEWORKS.values():
        if name in row.builds:
            return row
    return None


def of_conda(name: str) -> str | None:
    """Return the PyPI name of a framework's conda package, or None for any other package."""
    for row in FRAMEWORKS.values():
        if name in row.conda:
            return row.conda[name]
    return None


def of_name(name: str) -> types.Framework | None:
    """Return the framework that a distribution provides, or None for any other distribution.

    `name` must be normalized.
    """
    for key, row in FRAMEWORKS.items():
        if name in row.names:
            return key
    return None


def of_user(name: str) -> types.Framework | None:
    """Return the framework that a distribution belongs to or uses, or None if there is none.

    `name` must be normalized.
    """
    for key, row in FRAMEWORKS.items():
        if name in row.builds or (row.used_by and re.fullmatch(row.used_by, name)):
            return key
    return None


def is_build_extra(extra: str) -> bool:
    """Return whether a normalized extra selects a framework build for one kind of hardware."""
    return bool(re.fullmatch(_BUILD_EXTRA, extra))


def is_runtime(name: str) -> bool:
    """Return whether a distribution is a runtime library of any framework.

    `name` must be normalized.
    """
    return any(row.is_library(name) for row in FRAMEWORKS.values())


def cuda_of(name: str) -> str:
    """Return the CUDA major version contained in the name of a build or of a distribution.

    The name of a distribution must be normalized. Return an empty string if the name contains no
    version, or if the distribution belongs to a framework's own build.
    """
    version = re.fullmatch(r"(?:.+-)?cu(?:da)?(1\d)\d?x?(?:-.+)?", name)
    return version[1] if version and not (of_build(name) or is_runtime(name)) else ""


def is_conda_runtime(name: str) -> bool:
    """Return whether a conda package selects a framework build or contains its libraries."""
    return any(re.fullmatch(row.conda_libraries, name) for row in FRAMEWORKS.values())
