"""The profiles and locks of a command: in a project, variants whose framework is the hardware's."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.library import Library
from envbuilder.project import variants

SHIPPED = resources.profiles_dir() / "locks/cpu.json"


def library(folder: Path, text: str, environment: str = "default") -> Library:
    (folder / "envbuilder.yaml").write_text(text)
    return variants.library(
        load_settings({"ENVBUILDER_CONFIG_DIR": str(folder / "config")}, folder,
                           environment=environment)
    )  # fmt: skip


def test_outside_of_a_project_profiles_are_as_they_are(tmp_path: Path) -> None:
    plain = library(tmp_path, "profile: cpu\n")
    for r in plain.profile("cpu").requirements:
        assert "einops" not in r
    assert plain.usable_lock(plain.profile("cpu")).profile == "cpu"
    with pytest.raises(InvalidError, match=r"there is no environment 'test'") as raised:
        library(tmp_path, "", "test")
    assert "envbuilder.yaml" in raised.value.hint


def test_in_a_project_profiles_are_its_variants(tmp_path: Path) -> None:
    project = library(tmp_path, "requirements: [einops]\nenvironments: {test: {python: '3.12'}}\n")
    assert "einops" in project.profile("cpu").requirements
    assert {p.name for p in project.profiles()} >= {"cpu", "cuda", "rocm", "xpu", "mps"}
    test = library(tmp_path, (tmp_path / "envbuilder.yaml").read_text(), "test")
    assert test.profile("cpu").python.default == "3.12"
    with pytest.raises(InvalidError, match=r"no environment 'nope'"):
        library(tmp_path, (tmp_path / "envbuilder.yaml").read_text(), "nope")


def test_a_project_can_list_its_profiles(tmp_path: Path) -> None:
    project = library(tmp_path, "profiles: [cuda, cpu]\n")
    assert [p.name for p in project.profiles()] == ["cpu", "cuda"]
    with pytest.raises(InvalidError, match=r"the project does not support profile 'mps'") as raised:
        project.profile("mps")
    assert "which lists cuda, cpu" in raised.value.hint


def test_its_locks_are_its_own_and_hosts_are_judged_by_the_profiles_until_then(
    tmp_path: Path,
) -> None:
    project = library(tmp_path, "requirements: [einops]\n")
    judged = project.lock("cpu")
    assert judged == profile_lock.load(SHIPPED)
    with pytest.raises(InvalidError, match=r"profile 'cpu' has no lock"):
        project.usable_lock(project.profile("cpu"))
    locks = tmp_path / "envbuilder.lock"
    locks.mkdir()
    (locks / "default.cpu.json").write_text(SHIPPED.read_text())
    again = library(tmp_path, "requirements: [einops]\n")
    with pytest.raises(InvalidError, match=r"the lock of 'cpu' is stale"):
        again.usable_lock(again.profile("cpu"))
    (locks / "default.cpu.json").write_text("{")
    damaged = library(tmp_path, "requirements: [einops]\n")
    assert damaged.lock("cpu") == judged
    with pytest.raises(InvalidError, match=r"not a lock"):
        damaged.usable_lock(damaged.profile("cpu"))


def test_profiles_that_do_not_fit_are_left_out_unless_none_does(tmp_path: Path) -> None:
    some = library(tmp_path, "requirements: ['torch==2.4.1']\n")
    names = {p.name for p in some.profiles()}
    assert "cpu" in names
    assert "cuda" in names
    assert "xpu" not in names
    none = library(tmp_path, "requirements: ['torch==1.0']\n")
    with pytest.raises(InvalidError, match=r"torch==1.0: profile"):
        none.profiles()


def test_a_profile_with_another_framework_is_refused(tmp_path: Path) -> None:
    project = library(tmp_path, "requirements: ['jax>=0.4']\n")
    with pytest.raises(InvalidError) as raised:
        project.profile("cpu")
    assert raised.value.message == (
        "profile 'cpu' has PyTorch, but the project uses JAX (envbuilder.yaml:1 requires jax)"
    )
    assert "write framework: torch into envbuilder.yaml" in raised.value.hint


@pytest.mark.parametrize(
    ("text", "named", "meant"),
    [
        ("requirements: [jax]\n", "cuda", "jax-cuda"),
        ("requirements: [jax]\n", "jax-cpu", "jax-cpu"),
        ("framework: tensorflow\n", "cpu", "tensorflow-cpu"),
        ("framework: torch\n", "cuda", "cuda"),
    ],
)
def test_hardware_alone_names_the_profile_of_the_projects_framework(
    tmp_path: Path, text: str, named: str, meant: str
) -> None:
    assert library(tmp_path, text).named(named).name == meant


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_libraries_of_a_build_are_the_builds_own(tmp_path: Path, name: str) -> None:
    text = "requirements: [nvidia-cudnn-cu12==9.1.0.70, nvidia-ml-py==12.1, rich]\n"
    added = library(tmp_path, text).profile(name).requirements[-2:]
    assert added == ("nvidia-ml-py==12.1", "rich")


def test_the_source_of_a_package_for_other_hardware_is_left_out(tmp_path: Path) -> None:
    line = "tiny-cuda-nn @ git+https://example.org/tiny-cuda-nn@main"
    project = library(tmp_path, f'framework: torch\nrequirements: ["{line}"]\n')
    (source,) = project.profile("cuda").resolution.sources
    assert source.name == "tiny-cuda-nn"
    assert project.profile("mps").resolution.sources == ()


def test_packages_for_nvidia_gpus_are_those_of_other_hardware_elsewhere(tmp_path: Path) -> None:
    gpu = "faiss-gpu==1.7.*; python_version == '3.12'"
    others = (
        "decord==0.6.0, deepspeed-kernels, intel-extension-for-pytorch==2.2.0, nvidia-cutlass-dsl,"
        " cupy-cuda12x, nvidia-ml-py, tensorflow-cpu"
    )
    text = f'framework: torch\nrequirements: ["{gpu}", {others}]\n'
    project = library(tmp_path, text)
    assert project.profile("cuda").requirements[-7:-1] == (
        "decord==0.6.0",
        "deepspeed-kernels",
        "intel-extension-for-pytorch==2.2.0",
        "nvidia-cutlass-dsl",
        "cupy-cuda12x",
        "nvidia-ml-py",
    )
    mps = project.profile("mps")
    assert mps.requirements[-4:] == (
        'faiss-cpu>=1.7; python_version == "3.12"',
        "eva-decord>=0.6.0",
        "nvidia-ml-py",
        "tensorflow",
    )
    assert [line.partition(": ")[2] for line in mps.warnings[-7:-1]] == [
        "faiss-gpu is for other hardware, here faiss-cpu",
        "decord is for other hardware, here eva-decord",
        "deepspeed-kernels is for other hardware, here left out",
        "intel-extension-for-pytorch is for other hardware, here left out",
        "nvidia-cutlass-dsl is for other hardware, here left out",
        "cupy-cuda12x is for other hardware, here left out",
    ]
