"""Bases on real machines: read in a real engine, made from real packages of Debian's mirror."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuilder.builds.image import base as image_base, debian_base
from envbuilder.builds.plan import MakeBase
from envbuilder.containers.engine import images as engines
from envbuilder.containers.engine.interface import Engine
from envbuilder.containers.oci import rootfs
from envbuilder.containers.oci.layout import Layout
from envbuilder.core import console
from envbuilder.core.archives import READ_LIMIT
from envbuilder.core.errors import BuildError, EnvbuilderError
from envbuilder.core.settings import Settings, load as load_settings
from envbuilder.packages import fetch
from envbuilder.packages.debian import deb as base_status
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles.lock import Target
from tests.conftest import exited, missing, succeeded
from tests.integration.conftest import locked, start
from tests.support.projects import lay_profile

pytestmark = pytest.mark.network
MAKER = """\
import sys
from pathlib import Path
import msgspec
from envbuilder.builds.image import debian_base
from envbuilder.builds.plan import MakeBase
from envbuilder.packages.store import Store
step = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=MakeBase)
debian_base.make(step, Store(Path(sys.argv[2])), lambda line: None)
"""

PROFILE = """\
name: based
description: A small environment on a base of locked packages, for tests
accelerator: cpu
python: {default: "3.11", supported: ["3.11"]}
platforms: [linux/amd64, linux/arm64]
backends: [docker, venv]
tools: {uv: 0.13.8}
requirements: [setuptools==80.9.0]
debian_suite: bookworm
debian_base:
  "3.11":
    include: [ca-certificates, python3, python3-venv]
    unpacked: [linux/arm64]
system_packages: [libgomp1]
expects: {device: cpu, version: 2.13.0}
"""
INSTALLED = ["dpkg-query", "--show", "--showformat", "${Package} ${Version} ${db:Status-Status}\\n"]


def lay(folder: Path, text: str = PROFILE) -> None:
    lay_profile(folder, "based", text)


@pytest.fixture(scope="module")
def based(session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose profile has a base of locked packages."""
    folder = tmp_path_factory.mktemp("based")
    lay(folder)
    locked(folder, "based", session_environment, "Debian or the package index")
    return folder


@pytest.fixture(scope="module")
def lock(based: Path) -> lockfile.Lock:
    return lockfile.load(based / "profiles/locks/based.json")


@pytest.fixture(scope="module")
def own(session_environment: dict[str, str]) -> Settings:
    return load_settings({**os.environ, **session_environment})


def fetched(target: Target, own: Settings) -> Target:
    silent = console.PlainProgress(lambda _: None)
    try:
        fetch.fetch(target.base_files, target, own, silent)
    except BuildError as error:
        missing("network", error.message)
    return target


@pytest.fixture(scope="module")
def target(lock: lockfile.Lock, own: Settings) -> Target:
    return fetched(lockfile.select(lock, "linux/amd64", "3.11"), own)


def made(wanted: MakeBase, own: Settings) -> Layout:
    if shutil.which("mmdebstrap") is None:
        missing("mmdebstrap", "mmdebstrap is not installed")
    lines: list[str] = []
    try:
        return debian_base.make(wanted, Store(own.store_dir), lines.append)
    except EnvbuilderError as error:
        raise AssertionError("\n".join([error.message, *lines[-30:]])) from error


def elsewhere(wanted: MakeBase, folder: Path) -> MakeBase:
    return msgspec.structs.replace(wanted, layout=str(folder / "with a space/base"))


@pytest.fixture(scope="module")
def base(target: Target, own: Settings) -> Layout:
    return made(image_base.debian_step(target, own), own)


@pytest.mark.slow
def test_the_lock_names_every_package(lock: lockfile.Lock) -> None:
    for target in lock.targets:
        names = {f.name for f in target.base_files}
        assert {"dpkg", "libc6", "python3.11", "python3.11-venv", "ca-certificates"} <= names
        assert "usrmerge" not in names
        assert [f.name for f in target.of_kind("deb")] == ["libgomp1"]  # all else is in the base
        assert target.base.python_version.startswith("3.11.")
        assert target.base.unpacked == (target.platform == "linux/arm64")


@pytest.mark.soak
def test_the_same_packages_give_the_same_bytes(
    base: Layout, target: Target, own: Settings, tmp_path: Path
) -> None:
    wanted = elsewhere(image_base.debian_step(target, own), tmp_path)
    before = os.umask(0o077)
    try:
        again = made(wanted, own)
    finally:
        os.umask(before)
    assert again.index().manifests == base.index().manifests
    by = debian_base.made_by(wanted)
    assert by.keys() == {"mmdebstrap", "apt", "dpkg"}
    shown = subprocess.run(["mmdebstrap", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["mmdebstrap", by["mmdebstrap"]]


@pytest.mark.slow
def test_nothing_of_this_machine_is_in_it(base: Layout) -> None:
    root = rootfs.read(base, base.manifest("linux/amd64"))
    paths = set(root.entries)
    gone = {"etc/hostname", "etc/resolv.conf", "etc/apt/sources.list", "var/lib/dpkg/status-old"}
    assert not paths & gone
    assert not [p for p in paths if p.startswith(("dev/", "var/log/", "var/lib/apt/lists/"))
                and root.entries[p].kind != "folder"]  # fmt: skip
    assert not [p for p in paths if "__pycache__" in p]
    assert "usr/share/doc/dpkg/copyright" in paths
    assert root.python("3.11", "/usr/bin")[0] == "/usr/bin/python3.11"
    assert [root.entries[n].kind for n in ("bin", "lib", "lib64", "sbin")] == ["link"] * 4


@pytest.mark.engine
@pytest.mark.slow
def test_it_runs_in_the_engine(
    base: Layout,
    target: Target,
    own: Settings,
    docker_client: Any,
    real_engine: Engine,
    tmp_path: Path,
) -> None:
    engines.load(real_engine, base, Layout.create(tmp_path / "cache"))
    ref = target.base.ref
    run = docker_client.containers.run
    version = run(ref, ["python3", "--version"], remove=True, network_mode="none").decode()
    assert version.split() == ["Python", target.base.python_version]
    shown = run(ref, INSTALLED, remove=True, network_mode="none").decode().split("\n")
    expected = sorted(f"{f.name} {f.version} installed" for f in target.base_files)
    assert sorted(filter(None, shown)) == expected
    assert run(ref, ["dpkg", "--audit"], remove=True, network_mode="none") == b""
    verified = run(ref, ["sh", "-c", "dpkg --verify | grep -v ' /usr/share/' || true"], remove=True)
    assert verified == b""
    # What is read in the engine and in the layout is the same.
    contents = rootfs.read(base, base.manifest("linux/amd64")).contents
    in_layout = base_status.installed_in(contents, "linux/amd64", ref)
    files = real_engine.files(ref, "linux/amd64", base_status.STATUS_PATHS, READ_LIMIT)
    assert base_status.installed_in(files, "linux/amd64", ref) == in_layout


@pytest.mark.slow
@pytest.mark.engine
def test_without_mmdebstrap_nothing_is_downloaded(
    based: Path, session_environment: dict[str, str], docker_client: Any, tmp_path: Path
) -> None:
    client = shutil.which("docker")
    (tmp_path / "docker").symlink_to(client)
    nothing = {"PATH": str(tmp_path), "ENVBUILDER_CACHE_DIR": str(tmp_path / "cache")}
    argv = ("build", "--profile", "based", "--backend", "docker", "--output", f"oci:{tmp_path}/o")
    done = exited(4, start(argv, {**session_environment, **nothing}, cwd=based))
    assert "mmdebstrap is not on PATH" in done.stderr
    assert "apt-get install mmdebstrap" in done.stderr
    assert not (tmp_path / "cache/store").exists()


@pytest.fixture(scope="module")
def arm(lock: lockfile.Lock, own: Settings) -> Target:
    return fetched(lockfile.select(lock, "linux/arm64", "3.11"), own)


@pytest.mark.slow
def test_another_processors_packages_are_unpacked(arm: Target, own: Settings) -> None:
    target = arm
    layout = made(image_base.debian_step(target, own), own)
    manifest = layout.manifest("linux/arm64")
    root = rootfs.read(layout, manifest)
    path, version = root.python("3.11", "/usr/bin")
    assert (path, version) == ("/usr/bin/python3.11", target.base.python_version)
    assert root.contents["etc/passwd"].startswith(b"root:")
    assert layout.read_config(manifest)["architecture"] == "arm64"


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("builder", [pytest.param("buildkit", marks=pytest.mark.soak), "layers"])
def test_an_image_on_it(
    based: Path, session_environment: dict[str, str], target: Target, docker_client: Any,
    own: Settings, builder: str,
) -> None:  # fmt: skip
    argv = ("build", "--profile", "based", "--backend", "docker", "--builder", builder, "--json")
    result = json.loads(succeeded(start(argv, session_environment, cwd=based)).stdout)
    ref = result["artifact"]["ref"]
    # The base was made before, by another process: it says itself what made it.
    step = image_base.debian_step(target, own)
    told = json.loads(Path(result["documents"]["provenance"]).read_text())
    versions = told["predicate"]["runDetails"]["builder"]["version"]
    assert debian_base.made_by(step).items() <= result["made_by"].items() <= versions.items()
    code = "import sys, setuptools, ctypes; ctypes.CDLL('libgomp.so.1'); print(sys.version)"
    said = docker_client.containers.run(ref, ["python", "-c", code], remove=True).decode()
    assert said.split()[0] == target.base.python_version
