"""Conda packages beside the profile's wheels."""

from __future__ import annotations

import pytest

from envbuilder.packages.conda import solve
from envbuilder.packages.conda.lock import Package
from tests.support.shipped import shipped_profile

ZENDNN = shipped_profile("zendnn")


def package(name: str, *depends: str) -> Package:
    return Package(
        name=name, version="1.0", build="0", build_number=0, subdir="linux-64",
        file=f"{name}-1.0-0.conda", channel="conda-forge", sha256="0" * 64, size=1,
        depends=depends,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("packages", "says", "moved"),
    [
        (
            (package("timm", "python", "pytorch >=2"), package("pytorch", "libtorch"),
             package("libtorch")),
            "timm 1.0 requires pytorch 1.0 of conda-forge",
            "timm",
        ),
        ((package("libtorch"), package("numpy")), "libtorch 1.0 of conda-forge", "libtorch"),
    ],
)  # fmt: skip
def test_a_second_pytorch_is_refused(packages: tuple[Package, ...], says: str, moved: str) -> None:
    with pytest.raises(solve.UnsolvableError) as raised:
        solve.require_no_framework(ZENDNN, packages)
    assert str(raised.value) == f"{says}, but PyTorch comes from the profile's wheels"
    assert raised.value.hint == f"List {moved} under pip: in environment.yml instead."
    solve.require_no_framework(ZENDNN, [package("numpy")])
