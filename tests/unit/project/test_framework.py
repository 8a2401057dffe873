"""What belongs to the hardware in any environment."""

from __future__ import annotations

import pytest

from envbuilder.core import resources
from envbuilder.profiles import lock as profile_lock
from envbuilder.project import framework


@pytest.mark.parametrize(
    "name",
    ["nvidia-cudnn-cu12", "nvidia-cublas-cu13", "nvidia-cublas", "nvidia-cuda-cupti",
     "nvidia-nvtx", "nvidia-cusparselt-cu13", "triton", "triton-rocm", "pytorch-triton-xpu",
     "cuda-bindings", "intel-sycl-rt", "mkl", "umf", "oneccl-devel"],
)  # fmt: skip
def test_runtime_libraries(name: str) -> None:
    assert framework.is_runtime(name)


@pytest.mark.parametrize(
    "name",
    ["nvidia-ml-py", "cuda-python", "numpy", "intel-extension-for-pytorch", "mkl-service",
     "triton-model-analyzer", "torchmetrics", "rocm-docs"],
)  # fmt: skip
def test_packages_of_users(name: str) -> None:
    assert not framework.is_runtime(name)


def test_what_shipped_locks_pin_for_pytorch_is_known() -> None:
    """Whatever only some profiles lock is the hardware's."""
    locks = [profile_lock.load(p) for p in resources.profiles_dir().glob("locks/*.json")]
    named = [{f.name for t in lock.targets for f in t.of_kind("wheel")} for lock in locks]
    common = {"torch", "numpy", "setuptools", "packaging", "psutil", "zentorch", "pyyaml"}
    everywhere = set.intersection(*(names for names in named if names))
    rest = set.union(*named) - everywhere - common
    unknown = {n for n in rest if not framework.is_runtime(n)}
    assert unknown <= {
        "cmake",
        "deprecated",
        "wrapt",
        "safetensors",
        "intel-extension-for-pytorch",
        "pyelftools",
    }


@pytest.mark.parametrize(
    "name",
    ["pytorch-cuda", "pytorch-mutex", "cpuonly", "cudatoolkit", "cuda", "cuda-version",
     "cuda-cudart", "libcublas", "libcusparse", "cudnn", "nccl", "torchtriton"],
)  # fmt: skip
def test_conda_packages_that_are_the_hardwares(name: str) -> None:
    assert framework.is_conda_runtime(name)


@pytest.mark.parametrize(
    "name", ["cuda-nvcc", "cuda-python", "cupy", "libcurl", "numpy", "pytorch", "nccl-tests"]
)
def test_conda_packages_of_users(name: str) -> None:
    assert not framework.is_conda_runtime(name)
