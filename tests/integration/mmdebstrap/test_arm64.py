"""torch for 64-bit ARM, built by layers on a machine that cannot run a program of it.

Once for the processor alone, and once the 3.2 GB of wheels of the profile `cuda`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from debian.deb822 import Deb822

from envbuilder.containers.oci import rootfs
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.oci.rootfs import RootFs
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.debian import deb as dpkg_status
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles.lock import Target
from tests.conftest import missing, succeeded
from tests.integration.conftest import Cli, locked, start
from tests.support import image_files
from tests.support.arm_host import arm_host
from tests.support.image_files import Content
from tests.support.projects import lay_profile
from tests.support.shipped import shipped_lock

pytestmark = [pytest.mark.network, pytest.mark.soak]

COMMON = """\
name: arm
description: torch for 64-bit ARM on a base of locked packages, for tests
python: {default: "3.11", supported: ["3.11"]}
platforms: [linux/arm64]
backends: [docker]
tools: {uv: 0.13.8}
debian_suite: bookworm
debian_base:
  "3.11":
    include: [python3]
    unpacked: [linux/arm64]
"""
# The last torch whose wheel for ARM on PyPI is for the processor alone; from 2.11 on it needs CUDA.
CPU = """\
accelerator: cpu
requirements: [torch==2.10.0]
expects: {device: cpu, version: 2.10.0+cpu}
"""
CUDA = """\
accelerator: cuda
expects: {device: cuda, version: 2.13.0+cu130}
run: {gpus: all}
"""
NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere.sock"}
ELSEWHERE = {
    **NO_ENGINE,
    "TZ": "Pacific/Auckland",
    "LC_ALL": "C",
    "PIP_INDEX_URL": "http://127.0.0.1:9/nothing",
}
GB10 = {"ENVBUILDER_TARGET_GPU": "nvidia:sm=12.1,driver=580.95.05"}
SITE = "opt/env/lib/python3.11/site-packages/"


class Wanted(NamedTuple):
    """A profile, and what its wheels must be."""

    text: str
    torch: str
    library: str
    nvidia: bool


class Image(NamedTuple):
    """What was built."""

    layout: Layout
    digest: str
    root: RootFs
    files: dict[str, Content]


def shipped() -> Target:
    """The wheels of `cuda` for ARM, as they are locked."""
    lock = shipped_lock("cuda")
    return lockfile.select(lock, "linux/arm64", "3.11")


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def wanted(request: pytest.FixtureRequest) -> Wanted:
    if request.param == "cpu":
        torch = "torch-2.10.0-cp311-cp311-manylinux_2_28_aarch64.whl"
        return Wanted(COMMON + CPU, torch, "torch/lib/libtorch_cpu.so", nvidia=False)
    pins = ", ".join(f"{f.name}=={f.version}" for f in shipped().of_kind("wheel"))
    torch = "torch-2.13.0-cp311-cp311-manylinux_2_28_aarch64.whl"
    text = f"{COMMON}{CUDA}requirements: [{pins}]\n"
    return Wanted(text, torch, "torch/lib/libtorch_cuda.so", nvidia=True)


@pytest.fixture(scope="module")
def project(
    wanted: Wanted, session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the profile, locked from the user's package index and Debian mirror."""
    folder = tmp_path_factory.mktemp("arm")
    lay_profile(folder, "arm", wanted.text)
    locked(folder, "arm", session_environment, "Debian or the package index")
    return folder


@pytest.fixture(scope="module")
def lock(project: Path) -> lockfile.Lock:
    return lockfile.load(project / "profiles/locks/arm.json")


@pytest.fixture(scope="module")
def target(lock: lockfile.Lock) -> Target:
    return lockfile.select(lock, "linux/arm64", "3.11")


@pytest.fixture(scope="module")
def store(session_environment: dict[str, str]) -> Store:
    return Store(load_settings({**os.environ, **session_environment}).store_dir)


@pytest.fixture(scope="module")
def build(
    project: Path, session_environment: dict[str, str]
) -> Callable[[Path, dict[str, str], int], tuple[str, Layout]]:
    """`build(folder, variables, umask)` makes the image with `folder/cache` for a cache."""
    if shutil.which("mmdebstrap") is None:
        missing("mmdebstrap", "mmdebstrap is not installed")

    def run(folder: Path, variables: dict[str, str], umask: int) -> tuple[str, Layout]:
        shutil.copytree(project, folder, dirs_exist_ok=True)
        host = arm_host(session_environment, folder)
        environment = {**session_environment, **GB10}
        done = succeeded(start(
            ("build", "--profile", "arm", "--target-host", str(host), "--output", "oci:i",
             "--json"),
            {**environment, "ENVBUILDER_CACHE_DIR": str(folder / "cache"), **variables},
            cwd=folder,
            umask=umask,
        ))  # fmt: skip
        result: dict[str, Any] = json.loads(done.stdout)
        assert (result["status"], result["builder"]) == ("built", "layers")
        return result["artifact"]["digest"], Layout.open(folder / "i")

    return run


@pytest.fixture(scope="module")
def image(
    build: Callable[[Path, dict[str, str], int], tuple[str, Layout]],
    store: Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> Image:
    """From nothing but the store, which the first run ever fills."""
    folder = tmp_path_factory.mktemp("one")
    store.root.mkdir(parents=True, exist_ok=True)
    (folder / "cache").mkdir()
    (folder / "cache/store").symlink_to(store.root)
    digest, layout = build(folder, NO_ENGINE, 0o022)
    manifest = layout.manifest("linux/arm64")
    files = image_files.read(layout, manifest)
    return Image(layout, digest, rootfs.read(layout, manifest), files)


def test_the_index_has_torch_for_arm(wanted: Wanted, lock: lockfile.Lock, target: Target) -> None:
    assert lock.state == "locked"
    wheels = {f.name: f for f in target.of_kind("wheel")}
    assert wheels["torch"].file == wanted.torch
    assert wheels["torch"].provenance == "read"
    nvidia = [n for n in wheels if n.startswith(("nvidia-", "cuda-")) or n == "triton"]
    assert bool(nvidia) == wanted.nvidia
    if wanted.nvidia:
        assert target.of_kind("wheel") == shipped().of_kind("wheel")
    tags = {f.file.removesuffix(".whl").rpartition("-")[2] for f in wheels.values()}
    for tag in tags:
        assert tag == "any" or tag.endswith("_aarch64")
    assert target.base.unpacked


def test_in_other_surroundings_it_is_the_same_image(
    build: Callable[[Path, dict[str, str], int], tuple[str, Layout]],
    image: Image, lock: lockfile.Lock, store: Store, tmp_path: Path,
) -> None:  # fmt: skip
    """Nothing is shared: copies of the files, an own base, own layers; and no index."""
    folder = tmp_path / "with a space"
    there = Store(folder / "cache/store")
    for file in lock.files:
        if store.has(file.sha256):  # other machines' uv were not fetched
            there.path(file.sha256).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(store.path(file.sha256), there.path(file.sha256))
    (folder / "tmp").mkdir()
    places = {"HOME": str(folder), "TMPDIR": str(folder / "tmp")}
    digest, layout = build(folder, {**ELSEWHERE, **places}, 0o077)
    assert digest == image.digest
    assert layout.manifest("linux/arm64") == image.layout.manifest("linux/arm64")
    shutil.rmtree(folder)  # gigabytes, which pytest would keep


def test_every_program_and_library_is_for_arm(image: Image, wanted: Wanted) -> None:
    machines = {path: c.machine for path, c in image.files.items() if c.machine is not None}
    assert {p for p, machine in machines.items() if machine != image_files.AARCH64} == set()
    python = image.root.resolve("usr/bin/python3.11")
    assert {python, f"{SITE}{wanted.library}", "usr/bin/dpkg"} <= machines.keys()


def test_every_file_of_every_wheel_is_there(
    image: Image, target: Target, store: Store, wanted: Wanted
) -> None:
    expected: dict[str, str] = {}
    for wheel in target.of_kind("wheel"):
        stated = image_files.record(store.path(wheel.sha256))
        # What belongs elsewhere is not below site-packages: a page of a manual.
        expected |= {SITE + p: s for p, s in stated.items() if ".data/" not in p}
        if wheel.name == "torch":
            assert len(stated) > 10_000
    assert f"{SITE}{wanted.library}" in expected
    there = {p: c.sha256 for p, c in image.files.items() if p.startswith(SITE)}
    # A RECORD states no hash of itself, and commands that were made for it are added to it.
    own = {p for p in there if image_files.RECORD.fullmatch(p.removeprefix(SITE))}
    assert {p for p in expected if there.get(p) != expected[p]} == set()
    assert there.keys() - expected.keys() == own
    assert len(own) == len(target.of_kind("wheel"))


def test_dpkg_lists_the_packages_of_the_lock(image: Image, target: Target) -> None:
    text = image.root.contents[dpkg_status.STATUS].decode()
    listed = list(Deb822.iter_paragraphs(text.splitlines(), use_apt_pkg=False))
    assert {(p["Package"], p["Version"]) for p in listed} == {
        (f.name, f.version) for f in target.base_files
    }
    by = {p["Package"]: p["Architecture"] for p in listed}
    assert set(by.values()) == {"arm64", "all"}
    assert {by[n] for n in ("libc6", "dpkg", "python3.11-minimal")} == {"arm64"}
    assert {p["Status"] for p in listed} == {"install ok unpacked"}  # no script ever ran


def test_the_image_is_for_arm_and_its_python_is_in_it(image: Image, target: Target) -> None:
    config = image.layout.read_config(image.layout.manifest("linux/arm64"))
    assert (config["os"], config["architecture"]) == ("linux", "arm64")
    program, _, payload, *_ = config["config"]["Entrypoint"]
    python = image.root.resolve(program)
    assert python == image.root.resolve("usr/bin/python3") == "usr/bin/python3.11"
    assert image.root.versions[python] == target.base.python_version  # type: ignore[union-attr]
    assert payload.lstrip("/") in image.files
    assert image.root.resolve("lib/ld-linux-aarch64.so.1") in image.files


def test_the_lock_of_cpu_for_arm_stays_a_claim(
    cli: Cli, session_environment: dict[str, str], tmp_path: Path
) -> None:
    """Its torch, which the index of PyTorch alone has, was never seen where the lock was made."""
    lock = shipped_lock("cpu")
    torch = next(f for f in lockfile.select(lock, "linux/arm64", "3.11").files if f.name == "torch")
    assert torch.provenance != "read"
    assert lock.state == "claimed"
    assert f"torch {torch.version} (linux/arm64, Python 3.11)" in lock.reason
    host = arm_host(session_environment, tmp_path)
    done = succeeded(cli("build", "--profile", "cpu", "--target-host", str(host), "--dry-run",
               "--output", "oci:image", "--base-image", "python:3.11"))  # fmt: skip
    assert f"hashes claimed by others, which the download confirms: torch {torch.version}" in (
        done.stderr
    )
