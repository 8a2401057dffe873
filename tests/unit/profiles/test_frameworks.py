"""What belongs to the hardware in any environment: a row for each framework."""

from __future__ import annotations

import pytest

from envbuilder.payload.frameworks import title
from envbuilder.profiles import frameworks, requirements
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.profile import Profile
from tests.support.shipped import LIBRARY


def test_runtime_libraries_are_not_packages_of_users() -> None:
    libraries = (
        "nvidia-cudnn-cu12",
        "nvidia-cublas-cu13",
        "nvidia-cublas",
        "nvidia-cuda-cupti",
        "nvidia-nvtx",
        "nvidia-cusparselt-cu13",
        "triton",
        "triton-rocm",
        "pytorch-triton-xpu",
        "cuda-bindings",
        "intel-sycl-rt",
        "mkl",
        "umf",
        "oneccl-devel",
    )
    of_users = (
        "nvidia-ml-py",
        "cuda-python",
        "numpy",
        "intel-extension-for-pytorch",
        "mkl-service",
        "triton-model-analyzer",
        "torchmetrics",
        "rocm-docs",
    )
    assert tuple(filter(frameworks.is_runtime, (*libraries, *of_users))) == libraries


@pytest.mark.parametrize("profile", LIBRARY.profiles(), ids=lambda p: p.name)
def test_every_profile_pins_its_framework(profile: Profile) -> None:
    names = {requirements.distribution(line) for line in profile.requirements}
    own = names & FRAMEWORKS[profile.framework].names
    assert own
    assert all("==" in r for r in profile.requirements if requirements.distribution(r) in own)
    for name, row in FRAMEWORKS.items():
        assert name == profile.framework or not names & row.builds


@pytest.mark.parametrize(
    ("name", "itself", "user"),
    [
        ("torch", "torch", "torch"), ("jax", "jax", "jax"),
        ("tensorflow-gpu", "tensorflow", "tensorflow"), ("jaxlib", None, "jax"),
        ("torchvision", None, "torch"), ("jax-cuda12-plugin", None, "jax"), ("flax", None, "jax"),
        ("optax", None, "jax"), ("keras", None, "tensorflow"), ("tf-keras", None, "tensorflow"),
        ("tensorflow-hub", None, "tensorflow"), ("tensorboard", None, None), ("numpy", None, None),
    ],
)  # fmt: skip
def test_who_is_and_who_needs_which_framework(
    name: str, itself: str | None, user: str | None
) -> None:
    assert (frameworks.of_name(name), frameworks.of_user(name)) == (itself, user)


def test_conda_packages_that_are_the_hardwares() -> None:
    libraries = (
        "pytorch-cuda",
        "pytorch-mutex",
        "cpuonly",
        "cudatoolkit",
        "cuda",
        "cuda-version",
        "cuda-cudart",
        "libcublas",
        "libcusparse",
        "cudnn",
        "nccl",
        "torchtriton",
    )
    of_users = (
        "cuda-nvcc",
        "cuda-python",
        "cupy",
        "libcurl",
        "numpy",
        "pytorch",
        "nccl-tests",
    )
    assert tuple(filter(frameworks.is_conda_runtime, (*libraries, *of_users))) == libraries


def test_a_compiler_of_kernels_is_that_of_one_kind_of_hardware() -> None:
    torch = FRAMEWORKS["torch"]
    every = frozenset().union(*torch.kernel_compilers.values())
    for name in every:
        assert torch.is_library(name)
    assert torch.foreign("cpu") == torch.foreign("mps") == every
    assert "triton" not in torch.foreign("cuda")
    assert torch.foreign("rocm") == every - {"triton-rocm", "pytorch-triton-rocm"}
    assert FRAMEWORKS["jax"].foreign("cuda") == frozenset()


def test_the_payload_has_the_same_titles() -> None:
    assert {name: title(name) for name in FRAMEWORKS} == {n: r.title for n, r in FRAMEWORKS.items()}
