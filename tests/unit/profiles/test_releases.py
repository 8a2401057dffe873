"""The tables of releases, and what reads them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.version import Version

from envbuilder.core import resources, types
from envbuilder.host import probe
from envbuilder.host.accelerators import of_vendor
from envbuilder.host.gpus.accelerator import Needs
from envbuilder.profiles import (
    fit,
    lock as profile_lock,
    needs as needs_of_wheels,
    profile as profiles,
    releases,
)
from tests.support import host_trees
from tests.support.tools import lock_of, wheel
from tools import releases_page

FOLDER = resources.profiles_dir() / "releases"
PYTHON = r"3\.(7|8|9|1[0-5])"
SM = r"[1-9][0-9]?\.[0-9]"
GPU = rf"{SM}|gfx[0-9a-f]{{3,4}}|[a-z][a-z0-9-]+"
DRIVER = r"([1-9][0-9]{2}(\.[0-9]{2,3}){0,2})?"
COLUMNS = {
    "release": r"[0-2]\.[0-9]{1,2}\.[0-9]{1,2}(\.[0-9]|\.post1)?",
    "build": r"cu1[0-9]{2}|rocm[4-7](\.[0-9]+){1,2}|cpu|xpu|macos|cuda1[23]",
    "platform": "|".join(types.PLATFORMS),
    "index": "default|pytorch-[a-z]+[0-9]*",
    "pythons": rf"{PYTHON}( {PYTHON})*",
    "kernels": rf"(({GPU})( ({GPU}))*)?",
    "partly": rf"(({GPU})( ({GPU}))*)?",
    "ptx": "true|false",
    "driver": DRIVER,
    "windows_driver": DRIVER,
    "floor": r"2\.(17|27|28)|1[1-9]\.[0-9]",
    "certainty": "certain|script|one|unverified",
    "source": r"s[0-9]+( s[0-9]+)*",
}


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((FOLDER / name).read_text().splitlines()))


every_framework = pytest.mark.parametrize("framework", types.FRAMEWORKS)


NAMED = {"torch", "jax", "numpy", "setuptools"}


def test_what_wheels_do_not_state_names_the_framework_or_the_python() -> None:
    for row in releases.unstated():
        needs = [Requirement(text) for text in row.requires_dist.split(" | ")]
        made_for = [need for need in needs if need.name in NAMED]
        # One that requires another release of itself there cannot be imported by that Python.
        own = [need for need in needs if need.name == row.distribution and need.marker]
        assert own or any(need.specifier for need in made_for), row
        if row.last:
            assert Requirement(row.last).name == "torch"
    keys = [(row.distribution, row.version) for row in releases.unstated()]
    assert len({*keys}) == len(keys)


@every_framework
def test_every_row_of_the_builds_is_complete_and_sourced(framework: types.Framework) -> None:
    known = {row["release"] for row in rows(f"{framework}.csv")}
    builds = rows(f"{framework}-builds.csv")
    assert len(builds) == len(releases.every(framework))
    for row in builds:
        assert row.keys() == COLUMNS.keys()
        for name, pattern in COLUMNS.items():
            assert re.fullmatch(pattern, row[name]), (row["release"], row["build"], name, row[name])
        assert row["release"] in known
        # A CUDA build states its kernels and its driver; one for the CPU has neither.
        needs_driver = row["build"].startswith("cu")
        assert bool(row["driver"]) == bool(row["windows_driver"]) == needs_driver
        assert (
            bool(row["kernels"])
            or row["build"] in {"cpu", "macos"}
            or row["certainty"] != "certain"
        )


def test_each_python_is_there_for_every_platform_once() -> None:
    table = rows("pythons.csv")
    assert {(r["python"].rpartition(".")[0], r["platform"]) for r in table} == {
        (f"3.{minor}", platform) for minor in range(8, 15) for platform in types.PLATFORMS
    }
    assert len(table) == len(releases.python_builds()) == 7 * 3
    machines = {
        "linux/amd64": "x86_64-unknown-linux-gnu",
        "linux/arm64": "aarch64-unknown-linux-gnu",
        "macos/arm64": "aarch64-apple-darwin",
    }
    for row in table:
        build = rf"(\d{{8}})/cpython-{re.escape(row['python'])}\+\1-{machines[row['platform']]}"
        assert re.fullmatch(rf"{build}-install_only(_stripped)?\.tar\.gz", row["file"])
        assert re.fullmatch("[0-9a-f]{64}", row["sha256"])
    assert len({row["sha256"] for row in table}) == len(table)


def test_every_source_is_used() -> None:
    tables = [table.name for table in FOLDER.glob("*.csv") if table.name != "sources.csv"]
    used = {key for name in tables for row in rows(name) for key in row["source"].split()}
    assert used == {row["key"] for row in rows("sources.csv")}


@every_framework
def test_builds_are_listed_once_and_in_order(framework: types.Framework) -> None:
    keys = [(r["release"], r["platform"], r["build"]) for r in rows(f"{framework}-builds.csv")]
    assert len(keys) == len(set(keys))
    order = [Version(release) for release, _, _ in keys]
    assert order == sorted(order)
    assert [Version(r["release"]) for r in rows(f"{framework}.csv")] == sorted({*order})


@pytest.mark.parametrize(
    ("version", "platform", "build", "first", "last", "ptx"),
    [
        ("2.14.1", "linux/amd64", "cu130", "7.5", "12.0", False),
        ("2.10.0+cu130", "linux/amd64", "cu130", "7.5", "12.0", True),
        ("1.13.1", "linux/amd64", "cu117", "3.7", "8.6", False),
        ("2.14.0+rocm7.2", "linux/amd64", "rocm7.2", "gfx90a", "gfx1201", False),
    ],
)
def test_the_build_of_a_version(
    version: str, platform: types.Platform, build: str, first: str, last: str, ptx: bool
) -> None:
    found = releases.of_version("torch", version, platform)
    assert (found.build, found.kernels[0], found.kernels[-1], found.ptx) == (
        build,
        first,
        last,
        ptx,
    )


@pytest.mark.parametrize(
    ("version", "platform"),
    [
        ("2.15.0+cu126", "linux/amd64"),
        ("2.100.0", "linux/amd64"),
        ("2.14.1+mine", "linux/amd64"),
        ("", "linux/amd64"),
    ],
)
def test_a_build_that_no_source_states(version: str, platform: types.Platform) -> None:
    assert releases.of_version("torch", version, platform) is None


# Ten rows, each held by hand against ../shared/releases and what was read in the wheels.


@pytest.mark.parametrize(
    "row",
    [
        "jax 0.4.30 cuda12 linux/amd64: 3.9 to 3.12, 7.5 8.0 9.0, 525.60.13",
        # plugin 0.5.1
        "jax 0.7.2 cuda13 linux/arm64: 3.11 to 3.14, 7.5 8.0 9.0 10.0 12.0, 580.65.06",
        "jax 0.12.0.1 cuda13 linux/amd64: 3.12 to 3.15, 7.5 8.0 9.0 10.0 11.0 12.0, 580.65.06",
        "tensorflow 2.15.0.post1 cu122 linux/amd64: 3.9 to 3.11, 5.0 6.0 7.0 7.5 8.0, 525.60.13",
        "tensorflow 2.21.0 cu125 linux/amd64: 3.10 to 3.13, 7.5 8.0 8.9 9.0, 525.60.13",
        "tensorflow 2.16.2 cpu linux/arm64: 3.9 to 3.12, , ",
    ],
)
def test_builds_of_jax_and_tensorflow(row: str) -> None:
    written = [
        f"{framework} {each.release} {each.build} {each.platform}: {each.pythons[0]} to"
        f" {each.pythons[-1]}, {' '.join(each.kernels)}, {each.driver}"
        for framework in ("jax", "tensorflow")
        for each in releases.every(framework)
    ]
    assert written.count(row) == 1


@pytest.mark.parametrize(
    ("framework", "wheels", "build"),
    [
        ("jax", "jaxlib 0.12.0.1, jax-cuda13-plugin 0.12.0, nvidia-cuda-runtime 13.5.37", "cuda13"),
        ("jax", "jax-cuda12-plugin 0.12.0, nvidia-cuda-runtime-cu12 12.9.79", "cuda12"),
        ("jax", "jax-cuda13-plugin 0.12.0, nvidia-cuda-runtime-cu12 12.9.79", None),
        # With the CUDA of the system, of which nothing is known.
        ("jax", "jaxlib 0.12.0.1, jax-cuda13-plugin 0.12.0.1", "cpu"),
        ("jax", "jax-cuda13-plugin 0.13.0, nvidia-cuda-runtime 13.5.37", None),
        ("tensorflow", "tensorflow 2.21.0, nvidia-cuda-runtime-cu12 12.9.79", "cu125"),
        ("tensorflow", "tensorflow 2.21.0", "cpu"),
        ("torch", "torch 2.7.1, tensorflow-cpu 2.21.0", "cu126"),
    ],
)
def test_the_build_in_a_lock(framework: types.Framework, wheels: str, build: str | None) -> None:
    named = [each.split() for each in wheels.split(", ")]
    files = [wheel(f"{n}-{v}-py3-none-any.whl", n, v) for n, v in named]
    target = lock_of(*files).targets[0]
    found = needs_of_wheels.build_of(framework, target.versions, target.platform)
    assert (found and found.build) == build


def test_kernels_that_are_not_verified_are_not_known() -> None:
    build = releases.of_version("torch", "2.15.0+cu130", "linux/amd64")
    assert build.certainty == "unverified"
    assert build.kernels
    needs = build.needs()
    assert needs.kernels == ()
    assert needs.driver == "580.65.06"


def test_what_builds_need() -> None:
    def needs(version: str, platform: types.Platform, *, wsl: bool = False) -> Needs:
        build = releases.of_version("torch", version, platform)
        return build.needs(wsl=wsl)

    assert needs("2.4.1", "linux/amd64").driver == "525.60.13"
    assert needs("2.4.1", "linux/amd64", wsl=True).driver == "528.33"
    assert needs("2.5.1", "macos/arm64") == Needs(macos="12.3")
    rocm = needs("2.14.0+rocm7.2", "linux/amd64")
    assert rocm.partly == ("gfx908", "gfx1030", "gfx1103")
    assert not {*rocm.kernels} & {*rocm.partly}
    jax = releases.of_version("jax", "0.7.0", "linux/amd64", "cuda12")
    assert jax.needs().partly == ("5.2", "6.0", "7.0")


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("", ""),
        ("2.15.0 2.13.0 2.7.1", "2.7.1, 2.13.0, 2.15.0"),
        ("2.15.0 2.14.1 2.13.0 2.12.1 2.7.0", "2.7.0, 2.12.1 to 2.13.0, 2.14.1 and later"),
    ],
)
def test_releases_in_words(chosen: str, words: str) -> None:
    assert releases.ranges("torch", chosen.split()) == words


# Which release serves which host, held against what versions.md's sources say of ten of them.


@pytest.mark.parametrize(
    ("name", "profile", "works"),
    [
        ("p100", "cuda", "1.11.0 to 2.14.0"),
        ("gb10-dgx-spark", "cuda", "2.8.0 and later"),
        ("rx7900", "rocm", "2.1.0 to 2.4.1, 2.5.1, 2.7.0 to 2.7.1, 2.9.0 to 2.14.0"),
        ("arc-b580", "xpu", "2.7.0 to 2.14.1"),
        ("mac-m2", "mps", "1.12.0 and later"),
        ("driver470", "cuda", "1.11.0 to 2.7.1"),
        ("rx7900-without-driver", "rocm", ""),
        ("p100", "tensorflow-cuda", "2.15.0.post1 to 2.15.1, 2.16.2 to 2.19.1"),
        ("gb10-dgx-spark", "tensorflow-cuda", None),
    ],
)
def test_the_releases_that_serve_a_host(
    name: str, profile: str, works: str | None, tmp_path: Path
) -> None:
    """None: there is no build for its platform."""
    host = probe.host(host_trees.plant(tmp_path, host_trees.load(name)))
    chosen = profiles.load(profile, profiles.search_path(None, FOLDER))
    rated = fit.serving(chosen, host)
    named = [build.release for build, level in rated if level == "note"]
    assert (releases.ranges(chosen.framework, named) if rated else None) == works


# Rows of docs/reference/releases.md, each written by hand from the sources that
# ../shared/releases names: build scripts at the tag, flags read in PyPI's wheels, reports.


@pytest.mark.parametrize(
    ("gpu", "release", "builds"),
    [
        # build_cuda.sh: CUDA 12.8 and 13 left out SM 5.0 and 6.0, CUDA 12.6 has them up to 2.14.
        ("Tesla P100", "2.7.1", "cu118 cu126"),
        # The wheel of 2.15.0 (cu132) starts at SM 7.5; what its cu130 has, no source states.
        ("Tesla P100", "2.15.0", ""),
        # cog doctor, measured: cu128 of 2.7 starts at 7.5. The wheels of 2.8 to 2.10: 7.0 again.
        ("Tesla V100", "2.7.0", "cu118 cu126"),
        ("Tesla V100", "2.11.0", "cu126"),
        # The wheel (cu102) ends at SM 7.0, whose kernels run on 7.5, not on 8.6: CUDA's guide.
        ("Tesla T4", "1.12.1", "cu102 cu113 cu116"),
        ("GeForce RTX 4090", "2.0.1", "cu117 cu118"),
        # The wheel (cu124) ends at SM 9.0, without PTX; Blackwell came with CUDA 12.8.
        ("GeForce RTX 5090", "2.6.0", ""),
        ("GeForce RTX 5090", "2.7.0", "cu128"),
        # The wheel (cu117) ends at SM 8.6; build_cuda.sh adds 9.0 for CUDA 11.8.
        ("H100", "1.13.1", ""),
        # build_docker.sh: gfx1100 from ROCm 5.5 on, gfx942 from 6.0 on. uv#14086: get_arch_list()
        # of 2.5.1+rocm6.2; of rocm6.1 no source states it.
        ("Radeon RX 7900", "2.0.1", ""),
        ("Instinct MI300X", "2.3.0", "rocm6.0"),
        ("Instinct MI300X", "2.5.1", "rocm6.2"),
        # torch-xpu-ops BuildFlags.cmake: on Linux 2.6 is built for pvc, xe-lpg and ats-m150 alone.
        ("Arc B580", "2.6.0", ""),
        ("Arc B580", "2.7.0", "xpu"),
        # Its libtorch_cpu.dylib names macOS 14.0 for MPS. 1.11 has no MPS.
        ("Apple M1, macOS 14", "2.9.0", "macos"),
        ("Apple M1, macOS 14", "1.11.0", ""),
    ],
)
def test_rows_of_the_page_are_what_their_sources_say(gpu: str, release: str, builds: str) -> None:
    host = releases_page.hosts()[gpu]
    row = of_vendor(host.gpus[0].vendor)
    assert row
    profile = profiles.load(row.name, profiles.search_path(None, FOLDER))
    rated = fit.serving(profile, host)
    fits = {b.build for b, level in rated if b.release == release and level == "note"}
    assert fits == {*builds.split()}


def test_a_build_is_rated_as_its_wheels_are_in_a_lock() -> None:
    """So no release *fits* where its lock would not."""
    folders = profiles.search_path(None, FOLDER)
    for name in ("cuda", "cuda-legacy", "rocm", "jax-cuda", "tensorflow-cuda"):
        profile = profiles.load(name, folders)
        path = profile_lock.path_for(name, folders)
        lock = profile_lock.load(path)
        for target in lock.targets:
            build = needs_of_wheels.build_of(profile.framework, target.versions, target.platform)
            needs = needs_of_wheels.needs(profile, lock, target.platform)
            assert replace(build.needs(), glibc=needs.glibc) == needs
