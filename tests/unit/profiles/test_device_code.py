"""Which part of a package's device code runs on a GPU, and what is said of the rest."""

from __future__ import annotations

import pytest

from envbuilder.host.model import Gpu
from envbuilder.profiles import needs


def of(gpu: str | None) -> Gpu:
    if gpu and gpu.startswith("gfx"):
        return Gpu(vendor="amd", name="a GPU", state="usable", bus="0000:01:00.0", family=gpu)
    return Gpu(vendor="nvidia", name="a GPU", state="usable", sm=gpu, family="Hopper")


@pytest.mark.parametrize(
    ("code", "gpu", "part"),
    [
        ({"sm_80": 3, "sm_90": 1}, "8.6", 0.75),
        ({"compute_70 sm_70": 1}, "12.0", 1),
        ({"compute_90a sm_90a": 1}, "9.0", 1),
        ({"compute_90a sm_90a": 1}, "10.0", 0),
        ({"sm_100f": 1}, "10.3", 1),
        ({"sm_120": 1}, "9.0", 0),
        ({"gfx90a": 1}, "8.0", 0),
        # Tegra's run machine code for exactly them, and PTX.
        ({"sm_80": 1}, "8.7", 0),
        ({"compute_80": 1, "sm_87": 1}, "8.7", 1),
        ({"gfx90a": 1, "gfx1100 gfx90a": 3, "sm_80": 9}, "gfx1100", 0.75),
        ({"gfx": 1, "gfx11-generic": 1}, "gfx1100", 1),
        ({"gfx9-4-generic": 1}, "gfx942", 1),
        ({}, "gfx1100", 1),
    ],
)
def test_the_part_that_serves_a_gpu(code: dict[str, int], gpu: str, part: float) -> None:
    assert needs.kernel_coverage(code, of(gpu)) == part


@pytest.mark.parametrize(
    ("code", "gpu", "others"),
    [
        ({"sm_90a": 9, "compute_80 sm_80": 1}, "7.5", "SM 8.0, SM 9.0a, PTX 8.0"),
        ({"sm_80": 1, "sm_60": 99}, "8.6", "SM 6.0, SM 8.0"),  # that of a library within it
        ({"sm_80": 1}, "gfx1100", "NVIDIA's GPUs"),
        ({"gfx90a gfx942": 1}, "gfx1100", "gfx90a, gfx942"),
        ({"gfx1100": 1}, "9.0", "AMD's GPUs"),
        ({" ".join(f"sm_{n}" for n in range(20, 50)): 1}, "9.0", "SM 3.1 and 18 more"),
        ({"sm_90 sm_100": 1}, "9.0", ""),
        ({}, "9.0", ""),
    ],
)  # fmt: skip
def test_a_package_for_other_gpus_is_named(
    code: dict[str, int], gpu: str | None, others: str
) -> None:
    said = [finding.text for finding in needs.code_findings([of(gpu)], {"x 1.0": code})]
    if others:
        (sentence,) = said
        own = gpu if gpu and gpu.startswith("gfx") else f"SM {gpu}"
        assert sentence.startswith(f"x 1.0 has no kernels for a GPU ({own}), only for ")
        assert sentence.endswith(f"{others}: lock another version of it, or remove it")
    else:
        assert said == []
