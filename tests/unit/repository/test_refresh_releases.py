"""The comparison of the table of releases with an index."""

from __future__ import annotations

import pytest

from envbuilder.profiles import releases
from tools import refresh_releases as refresh

FILES = (
    "torch-2.7.1-cp39-cp39-manylinux_2_28_x86_64.whl",
    "torch-2.7.1-cp313-cp313-manylinux_2_28_x86_64.whl",
    "torch-2.7.1-cp313-cp313t-manylinux_2_28_x86_64.whl",  # free-threaded
    "torch-2.7.1-cp310-cp310-manylinux_2_28_aarch64.whl",
    "torch-2.7.1-cp310-none-macosx_11_0_arm64.whl",
    "torch-2.7.1-cp310-none-macosx_10_9_x86_64.whl",
    "torch-2.7.1-cp310-cp310-win_amd64.whl",
    "torch-1.13.1-1-cp311-cp311-manylinux1_x86_64.whl",
    "torch-1.11.0-cp38-none-macosx_11_0_arm64.whl",
    "torch-1.10.2-cp38-cp38-manylinux1_x86_64.whl",
    "torch-2.16.0rc1-cp312-cp312-manylinux_2_28_x86_64.whl",
    "torch_extra-2.7.1-cp39-cp39-manylinux_2_28_x86_64.whl",
)


def test_pythons_by_names_of_wheels() -> None:
    assert refresh.listed(FILES) == {
        ("2.7.1", "linux/amd64"): {"3.9", "3.13"},
        ("2.7.1", "linux/arm64"): {"3.10"},
        ("2.7.1", "macos/arm64"): {"3.10"},
        ("1.13.1", "linux/amd64"): {"3.11"},
    }


def test_every_difference_is_a_line() -> None:
    table = {("2.9.0", "linux/amd64"): {"3.9", "3.10"}, ("2.7.1", "linux/amd64"): {"3.9"}}
    index = {("2.10.0", "linux/amd64"): {"3.13"}, ("2.7.1", "linux/amd64"): {"3.9"}}
    assert [*map(str, refresh.differences(table, index))] == [
        "2.9.0 linux/amd64: the table has 3.9 3.10, and the index nothing",
        "2.10.0 linux/amd64: the table has nothing, and the index 3.13",
    ]
    assert [*refresh.differences(table, table)] == []


def test_the_table_states_what_the_index_has_once() -> None:
    pythons = refresh.stated()
    assert len(pythons) == sum(build.index == "default" for build in releases.every("torch"))
    assert pythons["2.14.1", "linux/arm64"] == {"3.10", "3.11", "3.12", "3.13", "3.14"}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\0sm_50 sm_60 sm_90\0", "5.0 6.0 9.0"),
        (b"\0sm_75\0sm_80 sm_90a sm_120 compute_120\0", "8.0 9.0 12.0"),
        (b"compute_80", ""),
        (b"nothing", ""),
    ],
)
def test_the_kernels_that_a_library_names(content: bytes, found: str) -> None:
    assert refresh.kernels(content) == found
