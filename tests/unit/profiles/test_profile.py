"""Shipped profiles are right and complete; wrong ones are refused with file, key and a hint."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.requirements import Requirement

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.locks import compare
from envbuilder.packages.python import indexes
from envbuilder.profiles import lock as profile_lock, profile as profiles
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.profile import Profile
from tests.support.shipped import shipped_lock, shipped_profile

SHIPPED = (resources.profiles_dir(),)
NAMES = (
    "cpu",
    "cpu-debian",
    "cpu-ipex",
    "cuda",
    "cuda-legacy",
    "jax-cpu",
    "jax-cuda",
    "jax-xpu",
    "mps",
    "rocm",
    "tensorflow-cpu",
    "tensorflow-cuda",
    "xpu",
    "xpu-ipex",
    "zendnn",
    "zendnn-debian",
    "zendnn-tensorflow",
)

EXPECTS = "expects: {device: cpu, version: 2.13.0}"
MINIMAL = """\
name: mine
description: A profile
accelerator: cpu
python: {default: "3.11", supported: ["3.11"]}
platforms: [linux/amd64]
backends: [venv]
tools: {uv: 0.13.8}
requirements: [torch==2.13.0]
expects: {device: cpu, version: 2.13.0}
"""


def load(folder: Path, text: str, name: str = "mine") -> Profile:
    (folder / f"{name}.yaml").write_text(text)
    return profiles.load(name, (folder,))


def test_all_of_them_are_shipped(repository: Path) -> None:
    assert profiles.names(SHIPPED) == NAMES
    assert {*NAMES} <= {*re.findall(r"`([a-z-]+)`", (repository / "README.md").read_text())}


def test_only_a_file_with_our_keys_is_a_profile(tmp_path: Path) -> None:
    for name in ("cpu", "slurm", "broken"):
        (tmp_path / f"{name}.yaml").write_text("name: of-a-cluster\njobs: 3\n")
    (tmp_path / "broken.yaml").write_bytes(b"\xff")
    (tmp_path / "lab.yaml").write_text("'extends' : cpu\ndescription: Ours\n")
    (tmp_path / "json.yaml").write_text('{"description": "Ours", "extends": "cpu"}')
    (tmp_path / "other.yaml").write_text('{"description": "theirs", "jobs": 3}')
    folders = (tmp_path, *SHIPPED)
    assert profiles.names(folders) == tuple(sorted((*NAMES, "broken", "json", "lab")))
    assert profiles.load("lab", folders).accelerator == "cpu"
    with pytest.raises(InvalidError, match=r"slurm\.yaml: name: is 'of-a-cluster'"):
        profiles.load("slurm", folders)


def with_package(text: str) -> str:
    return MINIMAL.replace("[torch==2.13.0]", f'[torch==2.13.0, "a{text}"]')


@pytest.mark.parametrize("text", ["==2.x", ">=1.*", "~=1", "==1+", "==v1", ">=1+cpu"])
def test_what_is_no_requirement_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidError, match=r"mine\.yaml:8: requirements\.1: expected a package"):
        load(tmp_path, with_package(text))


@pytest.mark.parametrize(
    "text",
    ["~=1.2", "==1.2.*", "==2.8+xpu", ">=1.0rc1, <2", "!=1!2", "==1.0.post1.dev2", "[b]>=1"],
)
def test_what_is_a_requirement_is_taken(tmp_path: Path, text: str) -> None:
    requirement = load(tmp_path, with_package(text)).requirements[1]
    assert Requirement(requirement) == Requirement(f"a{text}")


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_profile_is_whole_and_its_lock_fits_and_names_no_place(name: str) -> None:
    profile = shipped_profile(name)
    path = SHIPPED[0] / f"locks/{name}.json"
    assert profile.description
    assert profile.platforms
    assert profile.expects.device == profile.accelerator
    assert set(profile.indexes.values()) <= set(indexes.upstreams())
    lock = profile_lock.load(path)
    text = path.read_text(encoding="utf-8")
    assert compare.check(profile, lock) == ()
    assert lock.inputs == profile_lock.inputs_digest(profile)
    assert profile_lock.dump(lock) == text
    assert "://" not in text
    assert '"/' not in text.replace('"/usr/', "")
    for target in lock.targets:
        names = FRAMEWORKS[profile.framework].names
        (held,) = [f.version for f in target.of_kind("wheel") if f.name in names]
        expected = profile.expected(target.python).version
        # PyPI's wheels of torch do not state their build.
        assert held in (expected, expected.partition("+")[0])


@pytest.mark.parametrize("name", ["cpu", "zendnn"])
def test_a_base_of_debian_packages_is_all_that_its_variant_changes(name: str) -> None:
    one = shipped_profile(name)
    other = shipped_profile(f"{name}-debian")
    differ = {f for f in one.__struct_fields__ if getattr(one, f) != getattr(other, f)}
    states = {"name", "description", "extends", "opt_in"}
    assert differ - {"platforms"} == states | {"python", "backends", "base", "debian_base"}
    folder = resources.profiles_dir() / "locks"
    locks = [profile_lock.load(folder / f"{n}.json") for n in (name, other.name)]
    assert locks[0].tools == locks[1].tools
    wheels = [profile_lock.select(k, "linux/amd64", "3.11").of_kind("wheel") for k in locks]
    assert wheels[0] == wheels[1]


def test_claims_agree_with_locks() -> None:
    table = resources.profiles_dir() / "releases/hashes.csv"
    rows = csv.DictReader(table.read_text().splitlines())
    stated = {row["file"]: row["sha256"] for row in rows}
    for name in NAMES:
        lock = shipped_lock(name)
        for target in lock.targets:
            for file in target.files:
                assert stated.get(file.file, file.sha256) == file.sha256


def test_extends_merges_mappings_and_replaces_the_rest(tmp_path: Path) -> None:
    load(tmp_path, MINIMAL + "environment: {A: '1', B: '2'}\nwarnings: [careful]\nopt_in: true\n")
    child = load(
        tmp_path,
        "extends: mine\ndescription: Other\nenvironment: {B: '3'}\nrequirements: [torch==2.14.0]\n",
        "child",
    )
    assert child.environment == {"A": "1", "B": "3"}
    assert child.requirements == ("torch==2.14.0",)
    assert child.warnings == ()
    assert not child.opt_in


def test_bases_of_other_pythons_are_not_inherited(tmp_path: Path) -> None:
    load(
        tmp_path,
        MINIMAL.replace('["3.11"]', '["3.11", "3.12"]')
        + 'base: {"3.11": {ref: python:3.11}, "3.12": {ref: python:3.12}}\n',
    )
    child = load(
        tmp_path, 'extends: mine\ndescription: Other\npython: {supported: ["3.11"]}\n', "one"
    )
    assert list(child.base) == ["3.11"]
    stray = 'extends: mine\npython: {supported: ["3.11"]}\nbase: {"3.12": {ref: python:3.12}}\n'
    with pytest.raises(InvalidError, match=r"base\.3\.12: not in python\.supported"):
        load(tmp_path, f"{stray}description: Other\n", "two")


def test_extends_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b\n")
    (tmp_path / "b.yaml").write_text("extends: a\n")
    with pytest.raises(InvalidError, match="extends forms a cycle: a → b"):
        profiles.load("a", (tmp_path,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[venv]", "[venv, docker]"), "base: the docker backend needs a base image"),
        (('default: "3.11"', 'default: "3.12"'), r"python\.default"),
        (("torch==2.13.0]", "torch=2.13]"), "requirements"),
        (("accelerator: cpu", "accelerator: tpu"), "accelerator: 'tpu' is not one of cuda"),
        (("name: mine", "name: other"), "the file is named"),
        (("requirements:", "preload: [libx.so.1]\nrequirements:"), "preload"),
        (("requirements:", "system_packages: [gcc]\nrequirements:"), "debian_suite"),
        (("requirements:", "base: {'3.9': {ref: a}}\nrequirements:"), r"base\.3\.9"),
        (("requirements:", "debian_base: {'3.9': {include: [a1]}}\nrequirements:"), r"e\.3\.9"),
        (
            ("requirements:", "debian_base: {'3.11': {include: [a1]}}\nrequirements:"),
            "debian_suite: required because debian_base is set",
        ),
        (
            ("requirements:", "debian_base: {'3.11': {includes: [a1]}}\nrequirements:"),
            "Did you mean 'include'|unknown key",
        ),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        load(tmp_path, MINIMAL.replace(*change))


@pytest.mark.parametrize("text", ["[" * 8000, "[" * 200_000, "- " * 100_000, "{a: " * 50_000])
def test_deep_nesting_is_an_error_and_not_the_end_of_the_process(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidError, match="not valid YAML"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("expects: {device: cpu, torch: 2.13.0}", "Did you mean 'version'?"),
        (f"{EXPECTS}\nframework: mxnet", ""),
    ],
)
def test_keys_that_named_torch_name_what_to_write(tmp_path: Path, old: str, hint: str) -> None:
    text = MINIMAL.replace(EXPECTS, old)
    with pytest.raises(InvalidError) as raised:
        load(tmp_path, text)
    assert hint in raised.value.hint


def test_each_python_can_have_another_version() -> None:
    profile = shipped_profile("jax-cpu")
    versions = {python: profile.expected(python).version for python in profile.python.supported}
    assert versions == {"3.11": "0.10.2", "3.12": "0.12.0.1", "3.13": "0.12.0.1"}
    assert profile.expected("3.12").framework == "jax"
    assert profile.expected(None).version == ""


# Names that no profile has


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zendn", "Did you mean 'zendnn'? Known"),
        ("AMD", "Did you mean 'rocm'? Known"),
        ("gpu", "GPUs: cuda (NVIDIA), rocm (AMD), xpu (Intel), mps (Apple). Known"),
        ("none of these", "Known"),
    ],
)
def test_the_nearest_or_the_makers_is_suggested(name: str, words: str) -> None:
    hint = profiles.suggestion(name, NAMES)
    assert hint.startswith(words)
    assert hint.endswith(f"Known profiles: {', '.join(NAMES)}. See `envbuilder profiles`.")


def test_a_fault_is_noted_for_its_release_and_its_cpus_alone() -> None:
    cpu = shipped_profile("cpu")
    for flags in (None, ("avx512f", "fma")):
        (note,) = cpu.notes(flags)
        assert note.startswith("torch 2.13.0+cpu miscompiles a convolution gradient")
    assert cpu.notes(("avx2",)) == ()
    assert replace(cpu, release="2.12.1").notes() == ()
