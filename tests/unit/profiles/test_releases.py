"""The tables of releases, and what reads them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from envbuilder.core import resources, types
from envbuilder.host import probe
from envbuilder.profiles import (
    accelerators,
    fit,
    lock as profile_lock,
    profile as profiles,
    releases,
)
from envbuilder.profiles.needs import Needs
from tests.support import host_trees

FOLDER = resources.profiles_dir() / "releases"
PYTHON = r"3\.(7|8|9|1[0-5])"
SM = r"[1-9][0-9]?\.[0-9]"
GPU = rf"{SM}|gfx[0-9a-f]{{3,4}}|[a-z][a-z0-9-]+"
DRIVER = r"([1-9][0-9]{2}(\.[0-9]{2,3}){0,2})?"
COLUMNS = {
    "release": r"[12]\.[0-9]{1,2}\.[0-9]",
    "build": r"cu1[0-9]{2}|rocm[4-7](\.[0-9]+){1,2}|cpu|xpu|macos",
    "platform": "|".join(types.PLATFORMS),
    "index": "default|pytorch-[a-z]+[0-9]*",
    "pythons": rf"{PYTHON}( {PYTHON})*",
    "kernels": rf"(({GPU})( ({GPU}))*)?",
    "partly": r"(gfx[0-9a-f]{3,4}( gfx[0-9a-f]{3,4})*)?",
    "ptx": "true|false",
    "driver": DRIVER,
    "windows_driver": DRIVER,
    "floor": r"2\.(17|28)|1[2-9]\.[0-9]",
    "certainty": "certain|script|one|unverified",
    "source": r"s[0-9]+( s[0-9]+)*",
}


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((FOLDER / name).read_text().splitlines()))


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def test_every_row_of_the_builds_is_complete_and_sourced() -> None:
    sources = {row["key"] for row in rows("sources.csv")}
    known = {row["release"] for row in rows("torch.csv")}
    used = set()
    for row in rows("torch-builds.csv"):
        assert row.keys() == COLUMNS.keys()
        for name, pattern in COLUMNS.items():
            assert re.fullmatch(pattern, row[name]), (row["release"], row["build"], name, row[name])
        used |= {*row["source"].split()}
        assert row["release"] in known
        # A CUDA build states its kernels and its driver; PyTorch for the CPU has neither.
        needs_driver = row["build"].startswith("cu")
        assert bool(row["driver"]) == bool(row["windows_driver"]) == needs_driver
        assert (
            bool(row["kernels"])
            or row["build"] in {"cpu", "macos"}
            or row["certainty"] != "certain"
        )
    for name in ("torch.csv", "torch-hashes.csv", "torch-requires.csv"):
        used |= {key for row in rows(name) for key in row["source"].split()}
    assert used == sources


def test_builds_are_listed_once_and_in_order() -> None:
    keys = [(r["release"], r["platform"], r["build"]) for r in rows("torch-builds.csv")]
    assert len(keys) == len(set(keys))
    order = [number(release) for release, _, _ in keys]
    assert order == sorted(order)
    assert [number(r["release"]) for r in rows("torch.csv")] == sorted({*order})


def test_each_release_is_on_pypi_for_every_platform_once() -> None:
    """PyPI's build is another CUDA in each release; for ARM it is the CPU's up to 2.10."""
    of_pypi: dict[tuple[str, str], str] = {}
    for row in rows("torch-builds.csv"):
        if row["index"] == "default":
            key = row["release"], row["platform"]
            assert key not in of_pypi
            of_pypi[key] = row["build"]
    for release in (row["release"] for row in rows("torch.csv")):
        assert of_pypi[release, "linux/amd64"].startswith("cu")
        arm = of_pypi[release, "linux/arm64"]
        assert arm.startswith("cu") == (number(release) >= (2, 11))


@pytest.mark.parametrize(
    ("version", "platform", "build", "first", "last", "ptx"),
    [
        ("2.14.1", "linux/amd64", "cu130", "7.5", "12.0", False),
        ("2.14.1", "linux/arm64", "cu130", "8.0", "12.0", False),
        ("2.10.0+cu130", "linux/amd64", "cu130", "7.5", "12.0", True),
        ("2.15.0", "linux/arm64", "cu132", "8.0", "12.0", False),
        ("2.5.1+cu124", "linux/arm64", "cu124", "9.0", "9.0", False),
        ("2.9.1+cu129", "linux/amd64", "cu129", "7.0", "12.0", True),
        ("2.7.1+cu128", "linux/amd64", "cu128", "7.5", "12.0", True),
        ("2.8.0+cu128", "linux/amd64", "cu128", "7.0", "12.0", False),
        ("2.13.0+cu126", "linux/amd64", "cu126", "5.0", "9.0", False),
        ("1.13.1", "linux/amd64", "cu117", "3.7", "8.6", False),
        ("2.14.0+rocm7.2", "linux/amd64", "rocm7.2", "gfx90a", "gfx1201", False),
    ],
)
def test_the_build_of_a_version(
    version: str, platform: types.Platform, build: str, first: str, last: str, ptx: bool
) -> None:
    found = releases.of_version(version, platform)
    assert found is not None
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
        ("2.8.0+cu130", "linux/amd64"),
        ("2.100.0", "linux/amd64"),
        ("2.14", "linux/amd64"),
        ("2.8.0+cu126", "linux/arm64"),
        ("2.14.1+mine", "linux/amd64"),
        ("nightly", "linux/amd64"),
        ("2.14.1+rocm7.2", "linux/arm64"),
        ("", "linux/amd64"),
    ],
)
def test_a_build_that_no_source_states(version: str, platform: types.Platform) -> None:
    assert releases.of_version(version, platform) is None


@given(st.text(max_size=20))
def test_any_version_can_be_asked_for(version: str) -> None:
    releases.of_version(version, "linux/amd64")


def test_kernels_that_are_not_verified_are_not_known() -> None:
    build = releases.of_version("2.15.0+cu130", "linux/amd64")
    assert build is not None
    assert build.certainty == "unverified"
    assert build.kernels
    needs = build.needs()
    assert (needs.sm, needs.nvidia_driver) == ((), "580.65.06")


def test_what_builds_need() -> None:
    def needs(version: str, platform: types.Platform, *, wsl: bool = False) -> Needs:
        build = releases.of_version(version, platform)
        assert build is not None
        return build.needs(wsl=wsl)

    assert needs("2.4.1", "linux/amd64").nvidia_driver == "525.60.13"
    assert needs("2.4.1", "linux/amd64", wsl=True).nvidia_driver == "528.33"
    assert needs("2.5.1", "macos/arm64") == Needs(macos="12.3")
    assert needs("2.9.0", "macos/arm64") == Needs(macos="14.0")
    rocm = needs("2.14.0+rocm7.2", "linux/amd64")
    assert rocm.gfx_partly == ("gfx908", "gfx1030", "gfx1103")
    assert not {*rocm.gfx} & {*rocm.gfx_partly}
    assert not rocm.sm


def test_the_torch_of_every_shipped_lock_is_known() -> None:
    folders = profiles.search_path(None, FOLDER)
    for name in profiles.names(folders):
        profile = profiles.load(name, folders)
        path = profile_lock.path_for(name, folders)
        lock = profile_lock.load(path) if path else None
        for target in lock.targets if lock and profile.framework == "torch" else ():
            build = releases.of_target(target)
            assert build is not None, (name, target.platform)
            assert build in releases.every("torch")
            assert releases.is_for(build, profile.accelerator)
            assert target.python in build.pythons


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("", ""),
        ("2.15.0", "2.15.0"),
        ("2.15.0 2.14.1 2.14.0", "2.14.0 and later"),
        ("2.14.0 2.13.0", "2.13.0 to 2.14.0"),
        ("2.15.0 2.13.0 2.7.1", "2.7.1, 2.13.0, 2.15.0"),
        ("2.15.0 2.14.1 2.13.0 2.12.1 2.7.0", "2.7.0, 2.12.1 to 2.13.0, 2.14.1 and later"),
    ],
)
def test_releases_in_words(chosen: str, words: str) -> None:
    assert releases.ranges(chosen.split()) == words


# Which release serves which host, held against what versions.md's sources say of ten of them.


@pytest.mark.parametrize(
    ("name", "accelerator", "works"),
    [
        ("p100", "cuda", "1.11.0 to 2.14.0"),
        ("v100", "cuda", "1.11.0 to 2.14.0"),
        ("t4-container", "cuda", "1.11.0 and later"),
        ("rtx4090", "cuda", "1.11.0 and later"),
        ("h100-eight-nvlink", "cuda", "2.0.0 and later"),
        ("gb10-dgx-spark", "cuda", "2.8.0 and later"),
        ("rx7900", "rocm", "2.1.0 to 2.4.1, 2.7.0 to 2.7.1, 2.9.0 to 2.14.0"),
        ("mi300x", "rocm", "2.3.0 to 2.4.1, 2.7.0 to 2.7.1, 2.9.0 to 2.14.0"),
        ("arc-b580", "xpu", "2.6.0 to 2.14.1"),
        ("mac-m2", "mps", "1.12.0 and later"),
        ("driver470", "cuda", "1.11.0 to 2.7.1"),
        ("alder-lake-uhd", "cuda", ""),
        ("rx7900-without-driver", "rocm", ""),
    ],
)
def test_the_releases_that_serve_a_host(
    name: str, accelerator: types.Accelerator, works: str, tmp_path: Path
) -> None:
    host = probe.host(host_trees.plant(tmp_path, host_trees.load(name)))
    rated = fit.serving(accelerator, host)
    assert rated
    assert releases.ranges([b.release for b, level in rated if level == "note"]) == works


def test_a_build_is_rated_as_its_wheels_are_in_a_lock() -> None:
    """So no release *fits* where its lock would not."""
    folders = profiles.search_path(None, FOLDER)
    for name in ("cuda", "cuda-legacy", "rocm"):
        profile = profiles.load(name, folders)
        path = profile_lock.path_for(name, folders)
        assert path is not None
        lock = profile_lock.load(path)
        for target in lock.targets:
            build = releases.of_target(target)
            assert build is not None
            needs = accelerators.needs(profile, lock, target.platform)
            assert replace(build.needs(), glibc=needs.glibc) == needs
