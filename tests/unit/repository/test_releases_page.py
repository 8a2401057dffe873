"""The page of releases, held by hand against the sources that the tables name."""

from __future__ import annotations

import pytest

from tools import releases_page


@pytest.mark.parametrize(
    ("framework", "gpu", "cell"),
    [
        ("torch", "Tesla P100", "cu126: 2.6.0 to 2.14.0"),  # what 2.14.1 has is not verified
        ("torch", "Tesla V100", "cu128: 2.8.0 to 2.10.0"),
        ("torch", "H100", "cu118: 2.0.0 to 2.7.1"),
        ("torch", "GeForce RTX 5090", "cu128: 2.7.0 to 2.11.0"),
        ("torch", "GB10 (arm64)", "cu130: 2.9.0 to 2.14.1"),
        ("torch", "Instinct MI300X", "rocm6.0: 2.3.0 to 2.4.1"),
        ("torch", "Radeon RX 7900", "rocm5.5: 2.1.0 to 2.1.2"),
        ("torch", "Apple M1, macOS 14", "macos: 1.12.0 and later"),
        ("jax", "B200", "cuda12: 0.6.0 and later"),
        ("jax", "Tesla T4", "cuda13: 0.7.2 and later"),
        ("tensorflow", "Tesla V100", "cu125: 2.18.0 to 2.19.1"),
        ("tensorflow", "H100", "cu123: 2.16.2 to 2.17.1"),
    ],
)
def test_which_releases_fit_which_gpu(framework: str, gpu: str, cell: str) -> None:
    assert cell in releases_page.served(framework, releases_page.hosts()[gpu]).split("; ")


@pytest.mark.parametrize(
    ("framework", "gpu"),
    [
        ("jax", "Tesla P100"),
        ("jax", "Tesla V100"),
        ("jax", "Arc B580"),
        ("tensorflow", "GeForce RTX 5090"),
        ("tensorflow", "GB10 (arm64)"),
    ],
)
def test_which_gpus_no_release_fits(framework: str, gpu: str) -> None:
    assert releases_page.served(framework, releases_page.hosts()[gpu]) == ""
