"""Real components: the command line as a process, a native environment with torch, an engine.

Downloads go to one cache below the user's cache folder (or ENVBUILDER_TEST_CACHE), so that a second
run needs no network; everything else goes to the test's own folders.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from envbuilder.builds import mnist, payload
from envbuilder.builds.records import CLAIMS
from envbuilder.containers.engine import connection
from envbuilder.containers.engine.docker import DockerEngine
from envbuilder.containers.engine.interface import Engine
from envbuilder.containers.oci.reference import familiar
from envbuilder.core import console, files
from envbuilder.core.errors import ToolError
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.python import uv
from envbuilder.packages.sources import source_locker
from envbuilder.profiles import lock
from tests.conftest import missing
from tests.support import (
    conda_channel as conda,
    conda_packages,
    conda_project,
    debian_python,
    forked,
    overlays,
)
from tests.support.projects import lay_profile
from tests.support.registry_server import Registry

Cli = Callable[..., subprocess.CompletedProcess[str]]
FOLDER = Path(__file__).parent


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with what it needs, which is the name of its folder."""
    if item.path.parent != FOLDER:
        item.add_marker(item.path.parent.name)


@pytest.fixture(autouse=True)
def no_memory_of_builds() -> None:
    """Each test is a process of its own: folders of earlier ones may have had its name."""
    source_locker._REMEMBERED.clear()
    source_locker._FAILED.clear()


@pytest.fixture(scope="session")
def test_cache() -> Path:
    """Downloads shared by all tests and runs."""
    named = os.environ.get("ENVBUILDER_TEST_CACHE")
    return Path(named or platformdirs.user_cache_dir("envbuilder-tests"))


@pytest.fixture(scope="session")
def session_environment(
    test_cache: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, str]:
    """Variables that keep a command's folders out of the user's.

    What was unpacked and compiled is compared and linked again by later sessions, but for `--all`:
    to do both with all of torch takes twenty seconds.
    """
    home = tmp_path_factory.mktemp("envbuilder")
    if not pytestconfig.getoption("--all"):
        unpacked = test_cache / "unpacked"
        unpacked.mkdir(parents=True, exist_ok=True)
        (home / "data").mkdir()
        (home / "data/unpacked").symlink_to(unpacked)
    return {
        "ENVBUILDER_CACHE_DIR": str(test_cache),
        "ENVBUILDER_DATA_DIR": str(home / "data"),
        "ENVBUILDER_CONFIG_DIR": str(home / "config"),
        "ENVBUILDER_SHARED_STORE": "",
        "CI": "",  # where `run` would lock nothing
    }


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The payload as every backend starts it."""
    path = tmp_path_factory.mktemp("payload") / "payload.pyz"
    path.write_bytes(payload.payload_pyz())
    return path


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> overlays.Words:
    """Options for a payload that trains on 320 digits."""
    return overlays.few_digits(tmp_path_factory.mktemp("digits"))


def start(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    cwd: Path | None = None,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, with this input."""
    return forked.run(arguments, {**os.environ, **environment}, cwd or Path.cwd(), given)


def start_with_umask(
    arguments: tuple[str, ...], environment: dict[str, str], umask: int, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line from nothing to its end, with a umask of its own."""
    return subprocess.run(
        (sys.executable, "-m", "envbuilder", *arguments),
        env={**os.environ, **environment},
        cwd=cwd,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )


def begin(
    arguments: tuple[str, ...], environment: dict[str, str], cwd: Path | None = None
) -> subprocess.Popen[str]:
    """Start the command line from nothing, as a process that can be stopped."""
    return subprocess.Popen(
        (sys.executable, "-m", "envbuilder", *arguments),
        env={**os.environ, **environment},
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def cli(session_environment: dict[str, str], tmp_path: Path) -> Cli:
    """`cli(*arguments, environment={…})` in the test's own working folder."""

    def run(*arguments: str, environment: dict[str, str] | None = None) -> Any:
        return start(arguments, {**session_environment, **(environment or {})}, cwd=tmp_path)

    return run


def _native(framework: str, profile: str, environment: dict[str, str]) -> Path:
    arguments = ("build", "--profile", profile, "--backend", "venv", "--json")
    done = start(arguments, environment)
    if done.returncode != 0:
        error = done.stderr.partition("error: ")[2]  # notes come before it
        missing(framework, f"the {profile} profile cannot be built here: {error}")
    return Path(json.loads(done.stdout)["artifact"]["ref"])


@pytest.fixture(scope="session")
def torch_prefix(session_environment: dict[str, str]) -> Path:
    """The `cpu` profile as a native environment, built by envbuilder itself."""
    return _native("torch", "cpu", session_environment)


@pytest.fixture(scope="session")
def torch_python(torch_prefix: Path) -> Path:
    """An interpreter with torch 2.13.0+cpu."""
    return torch_prefix / "bin/python"


@pytest.fixture(scope="session")
def jax_prefix(session_environment: dict[str, str]) -> Path:
    """The `jax-cpu` profile as a native environment, built by envbuilder itself."""
    return _native("jax", "jax-cpu", session_environment)


@pytest.fixture(scope="session")
def tensorflow_prefix(session_environment: dict[str, str]) -> Path:
    """The `tensorflow-cpu` profile as a native environment, built by envbuilder itself."""
    return _native("tensorflow", "tensorflow-cpu", session_environment)


@pytest.fixture(scope="session")
def mnist_dir(session_environment: dict[str, str]) -> Path:
    """The four MNIST files."""
    found = load_settings({**os.environ, **session_environment})
    dataset = mnist.obtain(found, console.PlainProgress(lambda line: None))
    if dataset.subset:
        missing("network", "MNIST could not be fetched")
    return dataset.folder


@pytest.fixture(scope="session")
def real_engine(test_cache: Path, session_environment: dict[str, str]) -> Iterator[Engine]:
    """The engine of this machine."""
    try:
        connected = connection.connect()
    except ToolError as error:
        missing("engine", error.message)
    with connected as engine:
        forget_claims(engine, test_cache / "docker-claims", session_environment)
        yield engine


def forget_claims(engine: Engine, kept: Path, variables: Mapping[str, str]) -> None:
    """Remove the claims of earlier sessions' data folders; keep for the next whose these are.

    `clean` leaves an image to whoever else claims it, and a session that was killed claims forever.
    """
    folders = kept.read_text().splitlines() if kept.exists() else []
    beginnings = tuple(f"{CLAIMS}{files.folder_identity(Path(f))[:12]}:" for f in folders)
    for tag in chain.from_iterable(image.tags for image in engine.labelled()):
        if familiar(tag).startswith(beginnings):
            engine.remove(tag)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(variables["ENVBUILDER_DATA_DIR"])


@pytest.fixture(scope="session")
def docker_client(real_engine: Engine) -> Any:
    """The SDK's client of an engine that is Docker itself."""
    if not isinstance(real_engine, DockerEngine):
        pytest.skip("podman answers: it has no buildx, and its client is another")
    return real_engine._client


@pytest.fixture(scope="session")
def base_image(real_engine: Engine) -> str:
    """A base image with Python 3.11 that is in the engine."""
    ref = os.environ.get("ENVBUILDER_TEST_BASE_IMAGE", "")
    if not ref or real_engine.image(ref) is None:
        missing("engine", "ENVBUILDER_TEST_BASE_IMAGE names no image of the engine")
    return ref


@pytest.fixture(scope="session")
def conda_python(test_cache: Path) -> conda.Package:
    """A Python 3.11 that works, as a conda package."""
    why = debian_python.unsupported()
    if why:
        missing("conda", f"there is no Python for its channel: {why}")
    try:
        return debian_python.python_package(debian_python.fetch(test_cache))
    except subprocess.CalledProcessError as error:
        missing("network", f"Debian's Python cannot be fetched: {error.stderr[-400:]}")


@pytest.fixture(scope="session")
def conda_channel(conda_python: conda.Package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel of the packages of `conda_packages` and a Python that works; to be read only."""
    return _channel(tmp_path_factory, conda_python)


@pytest.fixture(scope="session")
def conda_matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on any machine, with a stand-in for Python; to be read only."""
    return _channel(tmp_path_factory, conda_packages.PYTHON_STUB)


def _channel(factory: pytest.TempPathFactory, python: conda.Package) -> Path:
    if importlib.util.find_spec("rattler") is None:
        missing("conda", "py-rattler is not installed")
    channel = factory.mktemp("conda") / "channel"
    for package in (*conda_packages.MATRIX, python):
        conda.write(package, channel)
    conda.index(channel)
    return channel


@pytest.fixture(scope="session")
def little_lock(
    session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The lock of the small wheel of `little`, made from the user's package index."""
    folder = tmp_path_factory.mktemp("little")
    conda_project.lay_little(folder)
    return locked(folder, "little", session_environment).read_text()


@pytest.fixture
def project(cli: Cli, tmp_path: Path, little_lock: str) -> conda_project.Project:
    """A project with `little` on some of the channel's packages, whose data is its own."""
    made = conda_project.Project(cli, tmp_path, little_lock)
    made.lay(*conda_project.PLAIN)
    return made


@pytest.fixture
def source(project: conda_project.Project, conda_channel: Path) -> str:
    """The URL of the channel that the project is locked from."""
    url = conda_channel.as_uri()
    project.lock(url)
    return url


@pytest.fixture
def prefix(project: conda_project.Project, source: str) -> Path:
    """The project's environment, built from that channel."""
    return conda_project.prefix_of(project.built(source))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """Debian's docker-registry on loopback, with nothing in it."""
    yield from _registry(tmp_path / "registry", password=False)


@pytest.fixture
def closed_registry(tmp_path: Path) -> Iterator[Registry]:
    """One that wants a password."""
    yield from _registry(tmp_path / "closed-registry", password=True)


def _registry(folder: Path, *, password: bool) -> Iterator[Registry]:
    if shutil.which("docker-registry") is None:
        missing("registry", "docker-registry is not installed")
    made = Registry(folder, password=password)
    made.start()
    try:
        yield made
    finally:
        made.stop()


TINY = """\
extends: _cpu
description: A small environment without torch, for tests of the machinery
platforms: [linux/amd64]
requirements: [setuptools==80.9.0]
system_packages: []
preload: []
expects:
  version: 2.13.0+cpu
"""


@pytest.fixture(scope="session")
def tiny_lock(session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The lock of the profile `tiny`, made by envbuilder from the user's package index."""
    folder = tmp_path_factory.mktemp("tiny")
    lay_tiny(folder)
    return locked(folder, "tiny", session_environment).read_text()


def lay_tiny(folder: Path) -> None:
    """A project with the profile `tiny`."""
    lay_profile(folder, "tiny", TINY)


def locked(
    folder: Path, name: str, environment: dict[str, str], asked: str = "the package index"
) -> Path:
    """The lock of a project's profile, made from the user's package index and Debian mirror."""
    done = start(("lock", "--profile", name), environment, cwd=folder)
    if done.returncode != 0:
        missing("network", f"{asked} cannot be asked: {done.stderr[-400:]}")
    return folder / f"profiles/locks/{name}.json"


@pytest.fixture
def tiny(tiny_lock: str, tmp_path: Path) -> Path:
    """The test's folder as a project whose locked profile `tiny` builds in seconds."""
    lay_tiny(tmp_path)
    lock = tmp_path / "profiles/locks/tiny.json"
    lock.write_text(tiny_lock)
    return lock


def offer_of(file: lock.File, location: Path) -> uv.Offer:
    """A locked wheel as an index would offer it, from a file of this machine."""
    return uv.Offer(
        distribution=file.name,
        version=file.version,
        file=file.basename,
        sha256=file.sha256,
        source=file.source,
        provenance=file.provenance,
        by=file.by,
        location=str(location),
    )
