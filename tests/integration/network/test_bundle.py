"""Bundles on a machine without any network: real wheels, real pip, real builds.

"Without network" is a network namespace of its own with nothing but loopback in it, folders of its
own, and no setting of pip or uv.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.containers.engine import images as engines
from envbuilder.containers.engine.interface import Engine
from envbuilder.containers.oci import reference
from envbuilder.containers.registry import transfer
from envbuilder.containers.registry.connection import Connection
from envbuilder.core.console import PlainProgress
from envbuilder.packages import fetch as origins
from envbuilder.payload.training.dataset import MNIST_SHA256
from tests.conftest import missing, succeeded
from tests.integration.conftest import Cli, lay_tiny, start
from tests.support import examples
from tests.support.conda_project import CHANNEL, lay_listed
from tests.support.registry_server import Registry

# No base image, unless a test names one: the registry of the locked one may be out of reach.
BUNDLE = ("bundle", "--profile", "tiny", "--base-image", "envbuilder-test-none:1", "--json")
# Loopback up, and proof that nothing else is there.
ISOLATED = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")


class Machine:
    """Another machine: empty folders, no network, and what is needed to run programs there."""

    def __init__(self, home: Path, *before: str) -> None:
        self.home = self.cwd = home
        home.mkdir()
        self.before = before
        self.environment = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PIP_", "UV_", "ENVBUILDER_", "XDG_", "DOCKER_"))
            and not k.lower().endswith("_proxy")
        } | {
            "HOME": str(home),
            "PIP_CONFIG_FILE": os.devnull,
            # No engine, whatever this machine has.
            "DOCKER_HOST": f"unix://{home}/none.sock",
        }

    def start(self, *argv: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.before, *map(str, argv)],
            env=self.environment,
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str | Path, code: int = 0) -> str:
        process = self.start(*argv)
        out, err = process.communicate()
        assert process.returncode == code, f"{argv}: {process.returncode}\n{out}\n{err}"
        return out + err if code else out

    def envbuilder(self, *argv: str | Path, code: int = 0) -> str:
        """This envbuilder, there."""
        self.environment["PYTHONPATH"] = str(Path(__file__).parents[3])
        return self.run(sys.executable, "-m", "envbuilder", *argv, code=code)

    def completed(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """What came of this envbuilder, there."""
        process = self.start(sys.executable, "-m", "envbuilder", *argv)
        out, err = process.communicate()
        return subprocess.CompletedProcess(argv, process.returncode, out, err)


@pytest.fixture
def there(tmp_path: Path) -> Machine:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no unshare or ip: a machine without network cannot be made")
    if subprocess.run([*ISOLATED, "true"], check=False, capture_output=True).returncode:
        pytest.skip("network namespaces are not allowed here")
    made = Machine(tmp_path / "there", *ISOLATED)
    probe = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    assert "unreachable" in made.run(sys.executable, "-c", probe, code=1)
    return made


@pytest.fixture(scope="module")
def packed(
    session_environment: dict[str, str],
    tiny_lock: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A bundle of the profile `tiny`."""
    folder = tmp_path_factory.mktemp("packed")
    lay_tiny(folder)
    (folder / "profiles/locks/tiny.json").write_text(tiny_lock)
    done = start((*BUNDLE, "-o", "tiny.tar"), session_environment, cwd=folder)
    if done.returncode != 0 and "cannot be" in done.stderr:
        missing("network", done.stderr[-800:])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["profiles"] == ["tiny"]
    assert told["members"]["file"] == 1  # setuptools; uv is one of envbuilder's own wheels
    assert told["members"]["wheel"] > 10
    assert told["members"]["dataset"] == 4
    assert told["bytes"] == (folder / "tiny.tar").stat().st_size
    return folder / "tiny.tar"


@pytest.fixture
def bundle(packed: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copy(packed, tmp_path))


@pytest.mark.slow
def test_a_bare_machine_installs_unbundles_builds_and_runs(
    bundle: Path, there: Machine, session_environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    """With what is in the file alone: envbuilder from its wheels, then the profile."""
    with tarfile.open(bundle) as archive:
        archive.extractall(
            there.home, [m for m in archive if m.name.startswith("wheels/")], filter="data"
        )
    there.run(sys.executable, "-m", "venv", "env")
    pip = there.home / "env/bin/pip"
    there.run(pip, "install", "--quiet", "--no-index", "--find-links", "wheels", "envbuilder-ml")
    own = there.home / "env/bin/envbuilder"
    told = json.loads(there.run(own, "unbundle", bundle, "--json"))
    assert told["new"] > 10
    assert "envbuilder verify --profile tiny --backend venv" in told["next"]
    built = json.loads(there.run(own, "build", "--profile", "tiny", "--backend", "venv", "--json"))
    assert built["status"] == "built"
    script = "import setuptools; print(setuptools.__version__)"
    arguments = ("run", "--profile", "tiny", "--backend", "venv", "--", "python", "-c", script)
    assert there.run(own, *arguments) == "80.9.0\n"
    again = json.loads(there.run(own, "unbundle", bundle, "--json"))
    assert (again["new"], again["written"]) == (0, [])
    # With an index it packs itself, from its own files: the wheel that it came from, put together.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | session_environment
    command = [own, *BUNDLE, "-o", "again.tar"]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True)
    with tarfile.open(tmp_path / "again.tar") as archive:
        name = next(n for n in archive.getnames() if n.startswith("wheels/envbuilder_ml-"))
        packed = archive.extractfile(name)
        assert contents(packed) == contents(there.home / name)


def contents(wheel: Any) -> dict[str, bytes]:
    """What is in a wheel, but for the list of it."""
    with zipfile.ZipFile(wheel) as archive:
        return {n: archive.read(n) for n in archive.namelist() if not n.endswith("RECORD")}


@pytest.mark.slow
def test_the_same_inputs_give_the_same_bytes(
    cli: Cli, tiny: Path, bundle: Path, tmp_path: Path
) -> None:
    succeeded(cli(*BUNDLE, "-o", "sub/other.tar", environment={"TZ": "Asia/Tokyo", "LC_ALL": "C"}))
    assert (tmp_path / "sub/other.tar").read_bytes() == bundle.read_bytes()


@pytest.mark.slow
def test_killed_at_any_point_and_run_again(bundle: Path, there: Machine) -> None:
    python = (sys.executable, "-m", "envbuilder")
    there.environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    for _ in range(4):
        process = there.start(*python, "unbundle", bundle)
        time.sleep(random.uniform(0.1, 0.8))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    told = json.loads(there.envbuilder("unbundle", bundle, "--json"))
    assert told["new"] + told["there"] > 10
    there.envbuilder("build", "--profile", "tiny", "--backend", "venv")
    store = there.home / ".cache/envbuilder/store"
    assert [p for p in (store / "partial").iterdir() if p.suffix != ".lock"] == []


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("verified", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_project_finds_its_own_in_its_clone_without_network(
    verified: bool, cli: Cli, torch_prefix: Path, mnist_dir: Path, tmp_path: Path, there: Machine
) -> None:
    """As docs/guides/offline.md has it, whose test builds and trains."""
    examples.copy("script", tmp_path)
    told = json.loads(
        succeeded(cli("bundle", "--profile", "cpu", *BUNDLE[3:], "-o", "script.tar")).stdout
    )
    assert (told["environment"], told["members"]["project"]) == ("default", 3)
    there.cwd = there.home / "clone"
    examples.copy("script", there.cwd)
    told = json.loads(there.envbuilder("unbundle", tmp_path / "script.tar", "--json"))
    assert (told["environment"], told["differences"]) == ("default", [])
    assert told["next"] == [
        "envbuilder verify --profile cpu", "envbuilder run --profile cpu -- COMMAND",
    ]  # fmt: skip
    mnist = there.home / ".cache/envbuilder/datasets/mnist"
    assert {path.name for path in mnist.glob("*-ubyte")} == MNIST_SHA256.keys()
    if verified:
        arguments = ("verify", "--profile", "cpu", "--quick", "--epochs", "1", "--json")
        assert json.loads(there.envbuilder(*arguments))["status"] == "passed"
    # A lock that is not the bundle's is named, and left; the bundle's can be had.
    lock = there.cwd / "envbuilder.lock/default.cpu.json"
    locked = lock.read_bytes()
    lock.unlink()
    said = there.envbuilder("unbundle", tmp_path / "script.tar")
    assert "the bundle's envbuilder.lock/default.cpu.json is not this project's" in said
    assert not lock.exists()
    (extract,) = [line for line in said.splitlines() if line.startswith("  tar -xf ")]
    there.run("sh", "-c", extract)
    assert lock.read_bytes() == locked


@pytest.mark.slow
def test_conda_packages_of_a_project_go_along(
    there: Machine,
    conda_channel: Path,
    session_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    lay_listed(project, "python=3.11", "tiny-lib")
    environment = {**session_environment, CHANNEL: conda_channel.as_uri()}
    for arguments in (("lock",), ("bundle", "--profile", "little", "-o", "../little.tar")):
        succeeded(start(arguments, environment, cwd=project))
    there.cwd = there.home / "clone"
    shutil.copytree(project, there.cwd)
    there.envbuilder("unbundle", tmp_path / "little.tar")
    assert there.envbuilder("run", "--", "tiny").startswith("tiny-lib 1.0 of ")


@pytest.mark.slow
@pytest.mark.engine
def test_the_base_image_goes_with_it(
    cli: Cli,
    tiny: Path,
    docker_client: Any,
    real_engine: Engine,
    base_image: str,
    tmp_path: Path,
    own_tag: str,
) -> None:
    docker_client.images.get(base_image).tag(own_tag)
    before = real_engine.image(own_tag)
    done = succeeded(cli(*BUNDLE, "--base-image", own_tag, "-o", "tiny.tar"))
    assert json.loads(done.stdout)["lacks"] == []
    docker_client.images.remove(own_tag)
    folders = {
        f"ENVBUILDER_{n}_DIR": str(tmp_path / "there" / n.lower())
        for n in ("CACHE", "DATA", "CONFIG")
    }
    (base,) = json.loads(
        succeeded(cli("unbundle", "tiny.tar", "--json", environment=folders)).stdout
    )["bases"]
    assert (base["name"].endswith(own_tag), base["loaded"]) == (True, True)
    after = real_engine.image(own_tag)
    assert after.id == before.id
    # Without an engine, an image is made of it all the same.
    alone = {**folders, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    arguments = ("--base-image", f"oci:{base['folder']}", "--output", "image.tar", "--json")
    done = succeeded(cli("build", "--profile", "tiny", *arguments, environment=alone))
    assert json.loads(done.stdout)["artifact"]["kind"] == "archive"
    # What is another image is left alone.
    docker_client.images.remove(own_tag)
    other = derived(docker_client, base_image, own_tag)
    done = succeeded(cli("unbundle", "tiny.tar", "--json", environment=folders))
    assert "unless you use --force" in done.stderr
    assert real_engine.image(own_tag).id == other  # type: ignore[union-attr]
    done = succeeded(cli("unbundle", "tiny.tar", "--force", environment=folders))
    assert real_engine.image(own_tag).id == before.id  # type: ignore[union-attr]


def derived(docker_client: Any, base_image: str, tag: str) -> str:
    """The id of an image of that name that is not the base image."""
    container = docker_client.containers.create(base_image, ["true"])
    try:
        repository, _, name = tag.partition(":")
        container.commit(repository, name, changes="ENV OTHER=1")
    finally:
        container.remove()
    identity: str = docker_client.images.get(tag).id
    return identity


@pytest.fixture
def own_tag(docker_client: Any, real_engine: Engine) -> Iterator[str]:
    """A name for an image that only this test uses."""
    name = f"envbuilder-bundle-test:{os.getpid()}"
    yield name
    if real_engine.image(name):
        docker_client.images.remove(name)


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.registry
def test_a_locked_base_image_is_found_by_its_digest_without_network(
    cli: Cli,
    real_engine: Engine,
    base_image: str,
    registry: Registry,
    tmp_path: Path,
    there: Machine,
) -> None:
    """From a registry into a bundle, and from there under an image: no option names it."""
    held = real_engine.image(base_image)
    layout = engines.export(real_engine, held, tmp_path / "exported")
    image = layout.find("linux/amd64")
    where = reference.parse(f"{registry.host}/base:1")
    quiet = PlainProgress(lambda line: None)
    transfer.push(Connection(where), "1", layout, image, tmp_path / "uploads", quiet)
    lay_tiny(tmp_path)
    profile = tmp_path / "profiles/tiny.yaml"
    base = f'{{ref: "{where.name}:1", digest: "{image.digest}", python_path: /usr/bin/python3}}'
    profile.write_text(f"{profile.read_text()}base:\n  '3.11': {base}\n  '3.12': {base}\n")
    done = succeeded(cli("lock", "--profile", "tiny"))
    # The session's cache may have this very image by its digest.
    folders = {"ENVBUILDER_CACHE_DIR": str(tmp_path / "cache")}
    done = succeeded(
        cli("bundle", "--profile", "tiny", "-o", "tiny.tar", "--json", environment=folders)
    )
    assert json.loads(done.stdout)["lacks"] == []
    registry.stop()
    there.envbuilder("unbundle", tmp_path / "tiny.tar")
    arguments = ("build", "--profile", "tiny", "--output", "image.tar", "--json")
    assert json.loads(there.envbuilder(*arguments))["artifact"]["kind"] == "archive"


def test_uv_says_where_it_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:word@index.invalid/simple")
    monkeypatch.setenv("UV_INDEX", "mine=https://other.invalid/simple")
    (tmp_path / "mine.toml").write_text('find-links = ["https://third.invalid/all.html"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", "mine.toml")
    found = origins.places()
    assert [p.url for p in found if not p.flat] == [
        "https://user:word@index.invalid/simple", "https://other.invalid/simple",
    ]  # fmt: skip
    assert [p.url for p in found if p.flat] == ["https://third.invalid/all.html"]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert [p.url for p in origins.places()] == ["https://third.invalid/all.html"]
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    default, other = origins.places()[:2]
    assert default.url.startswith("https://")
    assert other.url == "https://other.invalid/simple"
