"""`bootstrap.py` in a copy of the checkout, with a package index that has moved on.

Every locked package has a newer release there, a wheel with nothing in it: whatever resolves anew
gets that. The locked wheels themselves come from the user's package index, once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder import __version__
from tests.conftest import exited, missing, ran, succeeded
from tests.support import make_wheels as small_wheels
from tests.support.folders import names_in
from tests.support.locked_wheels import fetched

COPIED = ("bootstrap.py", "pyproject.toml", "README.md", "LICENSE")
FOLDERS = ("envbuilder", "profiles", "requirements", "share", "templates")
TEST_FILE = "tests/unit/core/test_pip.py"


class Index:
    """A package index on loopback: pages from a folder of wheels, which a test may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.newer: set[str] = set()
        handler = partial(_Handler, self.asked, directory=str(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple"

    def write_pages(self) -> None:
        """List the wheels that are in the folder now."""
        shutil.rmtree(self.folder / "simple", ignore_errors=True)
        for wheel in sorted((self.folder / "wheels").iterdir()):
            name = canonicalize_name(wheel.name.partition("-")[0])
            page = self.folder / "simple" / name / "index.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            with page.open("a") as file:
                file.write(f'<a href="/wheels/{wheel.name}">{wheel.name}</a>\n')


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, asked: list[str], *arguments: object, **options: object) -> None:
        self.asked = asked
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def log_request(self, code: object = "", size: object = "") -> None:
        self.asked.append(self.path)


def pins(file: Path) -> dict[str, Version]:
    """What a requirements file locks for this machine."""
    lines = [line.partition(" \\")[0] for line in file.read_text().splitlines()]
    found = [Requirement(line) for line in lines if "==" in line and not line.startswith(" ")]
    return {
        r.name: Version(next(iter(r.specifier)).version)
        for r in found
        if r.marker is None or r.marker.evaluate()
    }


@pytest.fixture(scope="module")
def locked_wheels(test_cache: Path) -> Path:
    """The wheels that are locked for the tests, from the user's package index."""
    return fetched(test_cache)


@pytest.fixture
def index(locked_wheels: Path, repository: Path, tmp_path: Path) -> Iterator[Index]:
    """An index with the locked wheels, and a newer release of each within most people's ranges."""
    folder = tmp_path / "index"
    (folder / "wheels").mkdir(parents=True)
    made = Index(folder)
    for wheel in locked_wheels.iterdir():
        shutil.copy(wheel, folder / "wheels")
    for name, version in pins(repository / "requirements/test.txt").items():
        *first, last = version.release
        newer = ".".join(str(n) for n in (*first, last + 1000))
        wheel = small_wheels.write(folder / "wheels", name.replace("-", "_"), {}, version=newer)
        made.newer.add(wheel.name)
    made.write_pages()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


@pytest.fixture
def checkout(repository: Path, tmp_path: Path) -> Path:
    """A copy of what `bootstrap.py` needs, and one file of tests."""
    root = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in FOLDERS:
        shutil.copytree(repository / folder, root / folder, ignore=ignored)
    for file in (
        *COPIED,
        "tests/__init__.py",
        "tests/conftest.py",
        "tests/unit/__init__.py",
        "tests/unit/core/__init__.py",
        TEST_FILE,
    ):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository / file, root / file)
    return root


def bootstrap(
    checkout: Path, index: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run it with this index and none of the user's own settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_", "PYTHON"))}
    settings = {"PIP_INDEX_URL": index, "PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull}
    return ran(
        [sys.executable, "bootstrap.py", *arguments],
        cwd=checkout,
        env={**kept, **settings, **variables},
    )


def installed(checkout: Path) -> dict[str, Version]:
    """What is installed in `.venv`."""
    code = "from importlib.metadata import distributions as all; import json\n"
    code += "print(json.dumps([[d.name, d.version] for d in all()]))"
    python = checkout / ".venv/bin/python"
    listed = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return {canonicalize_name(name): Version(v) for name, v in json.loads(listed.stdout)}


def newest_uv(folder: Path) -> Path:
    """A folder with a uv of the year after next; it notes when it is started."""
    folder.mkdir()
    program = folder / "uv"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/started\necho uv 99.0.0\n')
    program.chmod(0o755)
    return folder


def spoiled(folder: Path) -> dict[str, str]:
    """Settings of a caller's pip and Python that would put other things in other places."""
    modules = folder / "modules"
    modules.mkdir(parents=True)
    for name in ("pip", "click", "pytest", "hatchling"):
        (modules / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    constraint = folder / "constraint.txt"
    constraint.write_text("click==8.2.0\nuv==0.13.9999\n")
    named = folder / "pip.conf"
    named.write_text(
        f"[global]\nquiet = 3\nrequire-virtualenv = yes\nconstraint = {constraint}\n"
        f"[install]\ntarget = {folder}/target\nno-binary = :all:\n"
    )
    return {
        "PIP_CONFIG_FILE": str(named),
        "PIP_REQUIRE_VIRTUALENV": "1",
        "PIP_USER": "1",
        "PIP_PREFIX": str(folder / "prefix"),
        "PIP_CONSTRAINT": str(constraint),
        "PIP_PYTHON": "/nonexistent/python",
        "PIP_DRY_RUN": "1",
        "PIP_UPGRADE": "1",
        "PYTHONPATH": str(modules),
        "PYTHONWARNINGS": "error",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.mark.soak
def test_the_locked_versions_come_although_the_index_has_newer_ones(
    checkout: Path, index: Index, tmp_path: Path
) -> None:
    fake = newest_uv(tmp_path / "newest")
    environment = {
        **spoiled(tmp_path / "spoiled"),
        "PATH": f"{fake}{os.pathsep}{os.environ['PATH']}",
    }
    done = succeeded(bootstrap(checkout, index.url, "setup", **environment))
    locked = pins(checkout / "requirements/run.txt")
    found = installed(checkout)
    assert {name: found.get(name) for name in locked} == locked
    assert set(found) == {*locked, "envbuilder-ml", "pip"} | set(found) & {"setuptools", "wheel"}
    done = ran([checkout / ".venv/bin/envbuilder", "--version"])
    assert (done.returncode, done.stdout) == (0, f"envbuilder {__version__}\n"), done.stderr
    # README's second command, in the same checkout.
    done = succeeded(
        bootstrap(checkout, index.url, "test", "-q", TEST_FILE, "-k", "broken", **environment)
    )
    assert " passed" in done.stdout
    locked = pins(checkout / "requirements/test.txt")
    found = installed(checkout)
    assert {name: found.get(name) for name in locked} == locked
    assert not (fake / "started").exists()
    assert names_in(tmp_path / "spoiled") == {
        "modules", "constraint.txt", "pip.conf",
    }  # fmt: skip
    assert {path.rpartition("/")[2] for path in index.asked}.isdisjoint(index.newer)
    assert [path for path in index.asked if path.endswith(".whl")]
    # Nothing is asked for once more.
    asked = len(index.asked)
    assert bootstrap(checkout, index.url, "setup", **environment).returncode == 0
    assert len(index.asked) == asked


@pytest.mark.slow
def test_what_is_not_the_locked_file_is_refused(checkout: Path, index: Index) -> None:
    """Other bytes under a locked name, a version that is gone, an index that does not answer."""
    version = pins(checkout / "requirements/run.txt")["click"]
    (wheel,) = (index.folder / "wheels").glob(f"click-{version}-*.whl")
    content = wheel.read_bytes()
    wheel.unlink()
    small_wheels.write(index.folder / "wheels", "click", {}, version=str(version))
    assert wheel.exists()
    done = exited(4, bootstrap(checkout, index.url, "setup"))
    assert "error: pip could not install requirements/run.txt: a file is not the one" in done.stderr
    assert wheel.name in done.stderr
    assert hashlib.sha256(content).hexdigest() in done.stderr
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in done.stderr
    assert set(installed(checkout)) <= {"pip", "setuptools", "wheel"}

    wheel.unlink()
    index.write_pages()
    done = exited(4, bootstrap(checkout, index.url, "setup"))
    assert "click==" in done.stderr
    assert "has no wheel of that version" in done.stderr

    nowhere = "http://127.0.0.1:9/simple"
    done = exited(4, bootstrap(checkout, nowhere, "setup", PIP_RETRIES="0"))
    assert "the package index cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_a_refresh_without_reason_changes_nothing(checkout: Path, repository: Path) -> None:
    """The files are what uv makes of pyproject.toml, and newer releases do not get in unasked."""
    (checkout / "tools").mkdir()
    shutil.copy(repository / "tools/refresh_requirements.py", checkout / "tools")
    before = {path.name: path.read_bytes() for path in (checkout / "requirements").iterdir()}
    done = ran(
        [sys.executable, "tools/refresh_requirements.py"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )
    if "Failed to fetch" in done.stderr:
        missing("network", f"the package index cannot be asked: {done.stderr[-800:]}")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert {p.name: p.read_bytes() for p in (checkout / "requirements").iterdir()} == before
