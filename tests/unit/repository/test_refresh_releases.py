"""The comparison of the table of releases with an index."""

from __future__ import annotations

import pytest

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
    assert refresh.listed("torch", FILES) == {
        ("torch", "2.7.1", "linux/amd64"): {"3.9", "3.13"},
        ("torch", "2.7.1", "linux/arm64"): {"3.10"},
        ("torch", "2.7.1", "macos/arm64"): {"3.10"},
        ("torch", "1.13.1", "linux/amd64"): {"3.11"},
    }


def test_the_newest_build_of_each_python() -> None:
    def build(version: str, **changes: object) -> dict[str, object]:
        _, minor, patch = map(int, version.split("."))
        url = f"https://x/releases/download/2026/cpython-{version}%2B2026.tar.gz"
        plain = {"name": "cpython", "arch": {"family": "x86_64", "variant": None}, "os": "linux",
                 "libc": "gnu", "minor": minor, "patch": patch, "prerelease": "", "url": url,
                 "sha256": version, "variant": None}  # fmt: skip
        return plain | changes

    builds = [build("3.10.9"), build("3.10.11"), build("3.10.2"), build("3.15.0"), build("3.7.1"),
              build("3.9.1", variant="freethreaded"), build("3.9.1", libc="musl"),
              build("3.9.1", name="pypy"), build("3.9.1", prerelease="rc1"),
              build("3.9.1", arch={"family": "x86_64", "variant": "v3"})]  # fmt: skip
    assert [*refresh.pythons(builds, "s1")] == [
        "python,platform,file,sha256,source",
        "3.10.11,linux/amd64,2026/cpython-3.10.11+2026.tar.gz,3.10.11,s1",
    ]


@pytest.mark.parametrize(
    ("file", "listed"),
    [
        ("jaxlib-0.12.0.1-cp315-cp315-macosx_11_0_arm64.whl", "jaxlib 0.12.0.1 macos/arm64"),
        ("jaxlib-0.4.29-cp312-cp312-manylinux2014_x86_64.whl", ""),
        ("jaxlib-0.4.32-cp312-cp312-manylinux2014_x86_64.whl", ""),
        (
            "jax_cuda13_plugin-0.7.2-cp312-cp312-manylinux_2_27_aarch64.whl",
            "jax-cuda13-plugin 0.7.2 linux/arm64",
        ),
        ("tensorflow-2.16.1-cp312-cp312-manylinux_2_17_aarch64.whl", ""),
        ("tensorflow-2.16.1-cp312-cp312-manylinux_2_17_x86_64.whl", ""),
        (
            "tensorflow-2.15.0.post1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "tensorflow 2.15.0.post1 linux/amd64",
        ),
        ("tensorflow_cpu-2.15.0-cp311-cp311-macosx_12_0_arm64.whl", ""),
    ],
)
def test_which_wheels_are_in_the_table(file: str, listed: str) -> None:
    name = file.partition("-")[0].replace("_", "-")
    assert [" ".join(key) for key in refresh.listed(name, [file])] == ([listed] if listed else [])


def test_a_release_of_jax_without_a_jaxlib_uses_the_one_before() -> None:
    found = {("jaxlib", "0.4.36", "linux/amd64"): {"3.10"}, ("torch", "0.4.36", "x"): {"3.9"}}
    versions = ("0.4.38rc1", "0.4.32", "0.4.37", "0.4.36", "0.4.30")
    assert refresh.with_those_between(found, versions) == {
        **found,
        ("jaxlib", "0.4.37", "linux/amd64"): {"3.10"},
    }


def test_every_difference_is_a_line() -> None:
    def key(release: str) -> refresh.Key:
        return "torch", release, "linux/amd64"

    table = {key("2.9.0"): {"3.9", "3.10"}, key("2.7.1"): {"3.9"}}
    index = {key("2.10.0"): {"3.13"}, key("2.7.1"): {"3.9"}}
    assert [*map(str, refresh.differences(table, index))] == [
        "torch 2.9.0 linux/amd64: the table has 3.9 3.10, and the index nothing",
        "torch 2.10.0 linux/amd64: the table has nothing, and the index 3.13",
    ]
    assert [*refresh.differences(table, table)] == []


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
