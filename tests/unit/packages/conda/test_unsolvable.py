"""Why conda packages cannot be solved, in words."""

from __future__ import annotations

import msgspec
import pytest

from envbuilder.core import resources
from envbuilder.packages.conda import unsolvable
from envbuilder.packages.conda.lock import Package
from envbuilder.packages.conda.unsolvable import UnsolvableError
from envbuilder.profiles import profile as profiles

ZENDNN = profiles.load("zendnn", [resources.profiles_dir()])
PREAMBLE = "Cannot solve the request because of: "
# As py-rattler 0.28 prints it.
TREE = """\
Cannot solve the request because of: gpu-only * cannot be installed because there are no viable \
options:
└─ gpu-only 1.0 would require
   └─ __cuda >=12, for which no candidates were found.
"""


def variant(*packages: str, channels: tuple[str, ...] = ("conda-forge",)) -> profiles.Profile:
    conda = msgspec.structs.replace(
        ZENDNN.conda, channels=channels, packages=(*ZENDNN.conda.packages, *packages)
    )
    return msgspec.structs.replace(ZENDNN, conda=conda)


def test_a_package_that_no_channel_has() -> None:
    text = f"{PREAMBLE}No candidates were found for tiny-lib 9.*.\n"
    error = unsolvable.explained(text, variant("tiny-lib 9.*"), "linux/arm64", ZENDNN)
    assert str(error) == "conda-forge has no tiny-lib 9.* for linux-aarch64"
    assert error.hint == (
        "The project's files list tiny-lib 9.*, profile 'zendnn' gxx. Change the files, or list"
        " what PyPI has under pip:."
    )
    both = variant("no-such", channels=("bioconda", "conda-forge"))
    error = unsolvable.explained(f"{PREAMBLE}No candidates were found for no-such *.",
                                 both, "linux/amd64", None)  # fmt: skip
    assert str(error) == "bioconda and conda-forge have no no-such for linux-64"
    assert error.hint == "Change the profile's conda.packages."


def test_what_machines_are_said_to_have() -> None:
    error = unsolvable.explained(TREE, variant("gpu-only"), "linux/amd64", ZENDNN)
    assert str(error) == (
        "gpu-only * cannot be installed because there are no viable options: gpu-only 1.0 would"
        " require __cuda >=12, for which no candidates were found."
    )
    assert error.hint.startswith("The profile declares no __cuda for linux/amd64")


def test_a_long_explanation_is_one_short_line() -> None:
    text = PREAMBLE + "\n".join(f"├─ package-{n} 1.0 would require" for n in range(500))
    error = unsolvable.explained(text, variant(*["x" * 99] * 99), "linux/amd64", ZENDNN)
    assert len(str(error)) <= 600
    assert str(error).isprintable()
    assert len(error.hint) <= 700


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
    with pytest.raises(UnsolvableError) as raised:
        unsolvable.require_no_framework(ZENDNN, packages)
    assert str(raised.value) == f"{says}, but PyTorch comes from the profile's wheels"
    assert raised.value.hint == f"List {moved} under pip: in environment.yml instead."
    conda = msgspec.structs.replace(ZENDNN.conda, framework="conda")
    unsolvable.require_no_framework(msgspec.structs.replace(ZENDNN, conda=conda), packages)
    unsolvable.require_no_framework(ZENDNN, [package("numpy")])
