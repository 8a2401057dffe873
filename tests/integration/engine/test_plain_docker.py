"""A rendered folder builds with plain `docker build`: every file downloaded, no envbuilder about.

PyTorch's own index is used where it answers. Elsewhere the one wheel that only it has comes out of
the store, through an index on the loopback address; all other files are downloaded for real.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from msgspec.structs import replace

from envbuilder.core import settings
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.debian import mirrors
from envbuilder.packages.python import indexes
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile
from tests.conftest import exited, ran, succeeded
from tests.integration.conftest import TINY, Cli, locked, offer_of
from tests.integration.network.test_layers import require_equal
from tests.integration.network.test_own_python import FACTS, PROFILE
from tests.integration.test_git_sources import Repository
from tests.support import index_server, make_wheels, sources
from tests.support.folders import names_in
from tests.support.http_server import Files, serving
from tests.support.projects import lay_profile
from tests.support.python_archive import Archive
from tests.support.repositories import lay
from tests.support.shipped import shipped_lock

pytestmark = pytest.mark.network
TAG = "envbuilder-test/plain:image"
Docker = Callable[..., subprocess.CompletedProcess[str]]
PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "lib"
version = "1.0"
"""


@pytest.fixture
def docker() -> Iterator[Docker]:
    """Docker's command, with a PATH without envbuilder; the image that it makes is removed."""
    folders = os.environ["PATH"].split(os.pathsep)
    path = os.pathsep.join(f for f in folders if not (Path(f) / "envbuilder").exists())
    assert shutil.which("envbuilder", path=path) is None

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return ran(
            ["docker", *arguments],
            env={**os.environ, "PATH": path, "DOCKER_BUILDKIT": "1"},
            timeout=900,
        )

    yield run
    run("image", "rm", "--force", TAG)


@pytest.fixture
def own(session_environment: dict[str, str]) -> settings.Settings:
    """The settings of the commands that the tests start."""
    return load_settings({**os.environ, **session_environment})


@contextlib.contextmanager
def pytorch_index(own: settings.Settings) -> Iterator[str]:
    """PyTorch's CPU index; where it does not answer, one that has the locked wheel."""
    upstream = indexes.url("pytorch-cpu", own)
    with contextlib.suppress(requests.RequestException):
        if requests.get(f"{upstream}/torch/", timeout=20).ok:
            yield upstream
            return
    lock = shipped_lock("cpu")
    machine = "arm64" if platform.machine() == "aarch64" else "amd64"
    target = lockfile.select(lock, f"linux/{machine}", "3.11")
    torch = next(f for f in target.of_kind("wheel") if f.name == "torch")
    offer = offer_of(torch, Store(own.store_dir).path(torch.sha256))
    with index_server.serve([offer]) as url:
        yield url


def build_options(own: settings.Settings) -> list[str]:
    """What a user of this machine says to `docker build`: its mirrors, and whom it trusts."""
    options = []
    for source in (lockfile.MAIN, lockfile.SECURITY):
        name = f"{source.upper().replace('-', '_')}_MIRROR"
        options += ["--build-arg", f"{name}={mirrors.roots(source, own)[0]}"]
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if os.environ.get(name):
            return [*options, "--secret", f"id=ca,src={os.environ[name]}"]
    return options


@pytest.mark.slow
@pytest.mark.usefixtures("torch_prefix")
def test_a_rendered_folder_builds_and_trains(
    cli: Cli,
    docker: Docker,
    docker_client: Any,
    base_image: str,
    mnist_dir: Path,
    own: settings.Settings,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "image"
    assert cli("render", "--profile", "cpu", "-o", str(folder)).returncode == 0
    names = {"Dockerfile", "requirements.txt", "compile_bytecode.py", "payload.pyz"}
    assert names_in(folder) == names
    with pytorch_index(own) as index:
        done = docker(
            "build",
            "--network",
            "host",
            "--tag",
            TAG,
            "--build-arg",
            f"BASE_IMAGE={base_image}",
            "--build-arg",
            f"PYTORCH_CPU_INDEX={index}",
            *build_options(own),
            str(folder),
        )
    assert done.returncode == 0, done.stderr[-4000:]
    done = succeeded(
        docker(
            "run",
            "--rm",
            "--network",
            "none",
            "--volume",
            f"{mnist_dir}:/data:ro",
            "--env",
            "OMP_WAIT_POLICY",
            TAG,  # of our own environment
            "python",
            "/opt/envbuilder/payload.pyz",
            "verify",
            "--device",
            "cpu",
            "--data",
            "/data",
            "--quick",
            "--epochs",
            "1",
        )
    )
    assert json.loads(done.stdout.splitlines()[-1])["report"]["status"] == "unproven"
    assert docker_client.images.get(TAG).labels["io.envbuilder.profile"] == "cpu"


def test_nothing_is_downloaded_again(
    cli: Cli,
    docker: Docker,
    base_image: str,
    own: settings.Settings,
    session_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """After a change of the lock, which makes the engine repeat the whole step."""
    lay_profile(tmp_path, "tiny", TINY)
    locked(tmp_path, "tiny", session_environment)
    folder = tmp_path / "image"
    succeeded(cli("render", "--profile", "tiny", "-o", str(folder)))
    options = ("--network", "host", "--build-arg", f"BASE_IMAGE={base_image}", "--target", "wheels")
    options += ("--output", "type=cacheonly")
    for _ in range(2):
        with (folder / "requirements.txt").open("a") as requirements:
            requirements.write(f"# {secrets.token_hex()}\n")
        done = docker("build", *options, "--progress", "plain", *build_options(own), str(folder))
        succeeded(done)
    assert "Downloading " not in done.stderr
    assert "File was already downloaded " in done.stderr


@pytest.mark.soak
def test_it_downloads_the_locks_python(
    cli: Cli,
    docker: Docker,
    base_image: str,
    own: settings.Settings,
    session_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """A stand-in for an archive of python-build-standalone; the base has no Python."""
    archive = Archive(tmp_path / "mirror")
    lay_profile(tmp_path, "tiny", PROFILE)
    lock = locked(tmp_path, "tiny", session_environment)
    archive.put_into(lock)
    (target,) = lockfile.load(lock).targets
    offer = replace(offer_of(target.of_image, archive.path), file=archive.file)
    folder = tmp_path / "image"
    succeeded(cli("render", "--profile", "tiny", "-o", str(folder)))
    dockerfile = folder / "Dockerfile"
    system = "FROM ${BASE_IMAGE} AS system\n"
    text = dockerfile.read_text()
    assert system in text
    dockerfile.write_text(text.replace(system, f"{system}RUN rm /usr/bin/python*\n"))
    with index_server.serve([offer]) as url:
        mirror = url.replace("/simple", "/files")
        done = docker(
            "build",
            "--network",
            "host",
            "--tag",
            TAG,
            "--build-arg",
            f"BASE_IMAGE={base_image}",
            "--build-arg",
            f"PYTHON_STANDALONE_MIRROR={mirror}",
            *build_options(own),
            str(folder),
        )
    assert done.returncode == 0, done.stderr[-4000:]
    done = succeeded(
        docker(
            "run",
            "--rm",
            "--network",
            "none",
            TAG,
            "python",
            "-c",
            f"import ctypes, sqlite3, ssl, setuptools; {FACTS}",
        )
    )
    assert json.loads(done.stdout) == [archive.version, "/opt/python"]


@pytest.mark.soak
def test_packages_without_wheels_are_built_inside(
    cli: Cli,
    docker: Docker,
    docker_client: Any,
    base_image: str,
    own: settings.Settings,
    session_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """An sdist by its hash, a repository by its commit, a folder; a wheel by its URL is taken."""
    www = tmp_path / "www"
    www.mkdir()
    make_wheels.write(www, "straight", {"straight.py": b"x = 1\n"})
    repository = Repository(tmp_path / "repository")
    lay(repository.folder / "sub", sources.files())
    repository.commit(a="1")
    repository.git("clone", "--quiet", "--bare", ".", str(www / "tiny.git"))
    repository.git("-C", str(www / "tiny.git"), "update-server-info")
    lay_profile(tmp_path, "tiny", TINY)
    lay(tmp_path / "lib", {"pyproject.toml": PYPROJECT, "lib.py": "x = 1\n"})
    handler = partial(Files, directory=str(www))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, serving(server):
        url = f"http://127.0.0.1:{server.server_address[1]}"
        lines = f"""\
            antlr4-python3-runtime==4.9.3
            tiny @ git+{url}/tiny.git@main#subdirectory=sub
            ./lib
            straight @ {url}/straight-1.0-py3-none-any.whl
            """
        files = {
            "requirements.txt": textwrap.dedent(lines),
            "envbuilder.yaml": "profiles: [tiny]\nrequirements_from: [requirements.txt]\n"
            "build_from_source: true\n",
        }
        lay(tmp_path, files)
        # An index that has another `lib`: with several, the best version of all would be taken.
        (tmp_path / "empty").mkdir()
        several = {"PIP_EXTRA_INDEX_URL": (tmp_path / "empty").as_uri()}
        locked(tmp_path, "tiny", {**session_environment, **several})
        for _ in range(2):  # what is there already is its own
            succeeded(cli("render", "--profile", "tiny", "-o", "image"))
        folder = tmp_path / "image"
        assert len([*folder.glob("sources/lib-*.tar")]) == 1
        done = docker(
            "build",
            "--network",
            "host",
            "--tag",
            TAG,
            "--build-arg",
            f"BASE_IMAGE={base_image}",
            *build_options(own),
            str(folder),
        )
        assert done.returncode == 0, done.stderr[-4000:]
    program = "import antlr4, tiny, lib, straight; print(tiny.x)"
    done = docker("run", "--rm", "--network", "none", TAG, "python", "-c", program)
    assert done.stdout == "1\n", done.stderr
    require_equal(cli, docker_client, "tiny", base_image)


@pytest.mark.parametrize("builder", [pytest.param("buildkit", marks=pytest.mark.soak), "layers"])
def test_what_was_compiled_for_a_newer_system_than_the_base_is_refused(
    cli: Cli,
    base_image: str,
    builder: str,
    session_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """The package's library names the glibc that it needs, as the linker writes it."""
    lay_profile(tmp_path, "tiny", TINY)
    (tmp_path / "requirements.txt").write_text("./tiny\n")
    (tmp_path / "envbuilder.yaml").write_text(
        "profiles: [tiny]\nrequirements_from: [requirements.txt]\nbuild_from_source: [tiny]\n"
    )
    asked = ("build", "--backend", "docker", "--base-image", base_image, "--builder", builder)
    for needed, status in ((99, 1), (30, 0)):
        files = sources.files(f"def content():\n    return chr(0) + 'GLIBC_2.{needed}' + chr(0)\n")
        own = files["own.py"].replace("py3-none-any", "cp311-cp311-linux_x86_64")
        files["own.py"] = own.replace("tiny/__init__.py", "tiny.so")
        lay(tmp_path / "tiny", files)
        locked(tmp_path, "tiny", session_environment)
        done = exited(status, cli(*asked))
        said = "it needs glibc 2.99, but the base image has 2."
        assert (said in " ".join(done.stderr.split())) == bool(status)
