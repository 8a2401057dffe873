"""The wheel holds what the tool needs and nothing else, and works outside the checkout.

Everything is built from a copy of the checkout: first the source distribution, then from that the
wheel, so a file that is missing in either is missing in the end.
"""

from __future__ import annotations

import email.parser
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from envbuilder import __version__
from envbuilder.core.files import file_sha256
from tests.conftest import missing, ran, succeeded
from tests.integration.conftest import Cli
from tests.support.user_index import ask_uv, uv

INFO = f"envbuilder_ml-{__version__}.dist-info"
DATA = "envbuilder/data"
"""Where a wheel has what lies beside the package in a checkout."""
SHARED = f"envbuilder_ml-{__version__}.data/data"
"""Where a wheel has what is installed below the prefix itself."""
PARTS = (
    "envbuilder",
    "profiles",
    "templates",
    "requirements",
    "share",
    "tests",
    "benchmarks",
    "docs",
    "tools",
)
RUBBISH = ("__pycache__", "*.pyc", ".*_cache", ".hypothesis")
Installed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def copy(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout without its history, with rubbish as it gathers in one."""
    folder = tmp_path_factory.mktemp("source") / "envbuilder"
    folder.mkdir()
    for part in PARTS:
        shutil.copytree(repository / part, folder / part, ignore=shutil.ignore_patterns(*RUBBISH))
    for file in repository.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return folder


def below(folder: Path) -> set[str]:
    """Paths of all files below a folder."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def source_files(copy: Path) -> set[str]:
    """What the copy held before anything was built or thrown in."""
    return below(copy)


@pytest.fixture(scope="module")
def built(copy: Path, source_files: set[str], session_environment: dict[str, str]) -> Path:
    """A folder with the sdist and the wheel that was built from it."""
    for place in ("envbuilder", "envbuilder/payload", "tests", "profiles/locks"):
        (copy / place / "__pycache__").mkdir()
        (copy / place / "__pycache__/x.cpython-311.pyc").write_bytes(b"rubbish")
    (copy / ".venv/bin").mkdir(parents=True)
    (copy / ".venv/bin/python").write_text("rubbish")
    # Whether the index answers is asked apart: a project that does not build is a failure.
    wanted = copy.parent / "wanted.in"
    project = tomllib.loads((copy / "pyproject.toml").read_text())
    needed = (*project["build-system"]["requires"], *project["project"]["dependencies"])
    wanted.write_text("\n".join(needed))
    asked = ask_uv("pip", "compile", "--quiet", str(wanted), environment=session_environment)
    if asked.returncode != 0:
        missing("network", f"the package index cannot be asked: {asked.stderr[-800:]}")
    out = copy.parent / "dist"
    uv("build", "--quiet", "--out-dir", str(out), str(copy), environment=session_environment)
    return out


def test_the_same_files_make_the_same_bytes(
    built: Path, copy: Path, session_environment: dict[str, str], tmp_path: Path
) -> None:
    """Elsewhere, and at another time."""
    elsewhere = shutil.copytree(copy, tmp_path / "elsewhere", copy_function=shutil.copy)
    again = tmp_path / "dist"
    uv("build", "--quiet", "--out-dir", str(again), str(elsewhere), environment=session_environment)
    digests = [{p.name: file_sha256(p) for p in folder.glob("envb*")} for folder in (built, again)]
    assert len(digests[0]) == 2
    assert digests[0] == digests[1]


def test_the_index_accepts_it(built: Path, session_environment: dict[str, str]) -> None:
    """Its metadata, and README as it renders it."""
    files = map(str, built.glob("envbuilder_ml-*"))
    uv("tool", "run", "twine", "check", "--strict", *files, environment=session_environment)


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {n: archive.read(n) for n in archive.namelist()}


@pytest.fixture(scope="module")
def prefix(
    wheel: Path, session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A fresh environment with the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("installed") / "env"
    run = {"environment": session_environment}
    uv("venv", "--quiet", "--no-project", "--python", sys.executable, str(folder), **run)
    python = str(folder / "bin/python")
    uv("pip", "install", "--quiet", "--python", python, str(wheel), **run)
    uv("pip", "check", "--quiet", "--python", python, **run)
    return folder


@pytest.fixture
def installed(prefix: Path, session_environment: dict[str, str], tmp_path: Path) -> Installed:
    """`installed(program, *arguments)`: run a program of the fresh environment elsewhere."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ran(
            [prefix / "bin" / program, *arguments],
            env={**kept, **session_environment},
            cwd=tmp_path,
        )

    return run


# ---- what is inside


def test_the_wheel_holds_the_package_its_data_and_nothing_else(
    members: dict[str, bytes], source_files: set[str], copy: Path
) -> None:
    expected = {f for f in source_files if f.startswith("envbuilder/")}
    expected |= {f"{DATA}/{f}" for f in source_files if f.startswith(("profiles/", "templates/"))}
    expected |= {f"{SHARED}/{f}" for f in source_files if f.startswith("share/")}
    about = {"METADATA", "WHEEL", "RECORD", "entry_points.txt"}
    about |= {f"licenses/{name}" for name in ("LICENSE", "envbuilder/data/mnist-subset/README.md")}
    assert set(members) == expected | {f"{INFO}/{name}" for name in about}
    for name in expected:
        here = copy / name
        beside = copy / name.removeprefix(f"{DATA}/").removeprefix(f"{SHARED}/")
        assert members[name] == (here if here.is_file() else beside).read_bytes(), name


@pytest.mark.parametrize(
    "name",
    [
        "py.typed",
        "cli.py",
        "payload/verify.py",
        "payload/cli.py",
        "data/mnist-subset/README.md",
        "data/mnist-subset/train-images-idx3-ubyte.gz",
        "data/mnist-subset/t10k-labels-idx1-ubyte.gz",
        "data/templates/docker/Dockerfile.j2",
        "data/templates/venv/setup-venv.sh.j2",
        "data/templates/requirements.txt.j2",
        "data/profiles/indexes.yaml",
        "data/profiles/_defaults.yaml",
        "data/profiles/cpu.yaml",
        "data/profiles/locks/cpu.json",
        "data/profiles/releases/hashes.csv",
        "data/profiles/devices/nvidia-sm.csv",
    ],
)
def test_the_wheel_holds(members: dict[str, bytes], name: str) -> None:
    assert members[f"envbuilder/{name}"] or name == "py.typed"


def test_the_metadata_say_what_pyproject_says(members: dict[str, bytes]) -> None:
    data = email.parser.BytesParser().parsebytes(members[f"{INFO}/METADATA"])
    assert (data["Name"], data["Version"]) == ("envbuilder-ml", __version__)
    assert data["License-Expression"] == "Apache-2.0 AND CC-BY-SA-3.0"
    assert data["Requires-Python"] == ">=3.11"
    assert data.get_payload()
    required = [Requirement(r) for r in data.get_all("Requires-Dist", [])]
    plain = {r.name for r in required if "extra" not in str(r.marker)}
    assert {"click", "docker", "filelock", "jinja2", "msgspec", "uv"} <= plain
    assert not plain & {"torch", "pytest", "mypy", "ruff", "hatchling"}
    assert b"envbuilder = envbuilder.__main__:main" in members[f"{INFO}/entry_points.txt"]
    # Pure Python: the same wheel for every platform.
    assert b"Root-Is-Purelib: true" in members[f"{INFO}/WHEEL"]
    assert b"Tag: py3-none-any" in members[f"{INFO}/WHEEL"]


def test_the_sdist_holds_what_one_needs_to_work_on_it(built: Path, source_files: set[str]) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {m.name.partition("/")[2] for m in archive if m.isreg()}
        assert {m.name.partition("/")[0] for m in archive} == {f"envbuilder_ml-{__version__}"}
    parts = tuple(f"{part}/" for part in PARTS)
    assert {n for n in names if n.startswith(parts)} == {
        f for f in source_files if f.startswith(parts)
    }
    top = {n for n in names if "/" not in n}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md"} <= top
    assert names == top | {n for n in names if n.startswith(parts)}


# ---- does it work


def test_it_is_the_installed_one_that_runs(installed: Installed, prefix: Path) -> None:
    """Else all that follows would prove nothing."""
    asked = (
        "from envbuilder.core import resources as r; print(r.profiles_dir(), r.folder('templates'))"
    )
    done = succeeded(installed("python", "-c", asked))
    for folder in done.stdout.split():
        assert Path(folder).is_relative_to(prefix.resolve())


@pytest.mark.parametrize(
    "how",
    [
        ("envbuilder",),
        ("python", "-m", "envbuilder"),
        ("python", "-I", "-m", "envbuilder"),
        ("python", "-I", "-X", "dev", "-W", "error", "-m", "envbuilder"),
        ("python", "-OO", "-m", "envbuilder"),
    ],
    ids=" ".join,
)
def test_every_way_to_start_it(installed: Installed, how: tuple[str, ...]) -> None:
    done = installed(*how, "--version")
    assert (done.returncode, done.stdout) == (0, f"envbuilder {__version__}\n"), done.stderr
    done = succeeded(installed(*how, "profiles", "cpu", "--json"))
    assert json.loads(done.stdout)["profile"]["name"] == "cpu"
    assert done.stderr == ""


def test_the_script_runs_isolated(installed: Installed, prefix: Path) -> None:
    done = installed("python", "-I", str(prefix / "bin/envbuilder"), "--version")
    assert (done.returncode, done.stdout) == (0, f"envbuilder {__version__}\n"), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("profiles", "--json"),
        ("profiles", "zendnn", "--json"),
        ("detect", "--json"),
        ("render", "--profile", "cpu"),
        ("render", "--profile", "zendnn", "--target", "requirements"),
        ("render", "--profile", "cpu", "--target", "pylock"),
        ("render", "--profile", "mps", "--target", "script"),
        ("check", "cpu"),
        ("--help",),
    ],
    ids=" ".join,
)
def test_it_says_what_the_checkout_says(
    installed: Installed, cli: Cli, arguments: tuple[str, ...]
) -> None:
    here = cli(*arguments)
    there = installed("envbuilder", *arguments)
    assert here.returncode == 0, here.stderr
    assert there.returncode == 0, there.stderr
    if "--json" in arguments:
        assert json.loads(there.stdout) == json.loads(here.stdout)
    else:
        assert there.stdout == here.stdout


def test_man_pages_and_completions_are_where_they_are_looked_for(
    prefix: Path, source_files: set[str]
) -> None:
    shared = {f for f in source_files if f.startswith("share/")}
    assert {f"share/{name}" for name in below(prefix / "share")} == shared
    assert "share/man/man1/envbuilder.1" in shared
    assert {"share/envbuilder.schema.json", "share/envbuilder/lock.schema.json"} <= shared


SUBSET = """\
from envbuilder.builds import mnist
print(len(list(mnist.subset().folder.glob("*.gz"))))
"""


def test_the_shipped_digits_are_found(installed: Installed) -> None:
    asked = SUBSET
    assert installed("python", "-I", "-c", asked).stdout == "4\n"


def test_running_leaves_nothing_in_the_installation(
    installed: Installed, prefix: Path, members: dict[str, bytes]
) -> None:
    """Locks and reports go to the user's folders, never into the package."""
    assert installed("envbuilder", "detect").returncode == 0
    (package,) = prefix.glob("lib/python*/site-packages/envbuilder")
    found = {f"envbuilder/{n}" for n in below(package) if "__pycache__" not in n}
    assert found == {n for n in members if n.startswith("envbuilder/")}


# ---- the ways to install it


WAYS = {
    "pip": (
        "venv --seed {home}",
        "run --no-project {home}/bin/pip install {wheel}",
    ),
    "uv tool": ("tool install {wheel}",),
    "pipx": ("tool run pipx install --python {python} {wheel}",),
}
"""How → commands of uv."""


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("way", WAYS)
def test_it_can_be_installed(
    way: str, version: str, wheel: Path, session_environment: dict[str, str], tmp_path: Path
) -> None:
    found = ask_uv("python", "find", version, environment=session_environment)
    if found.returncode:
        missing(f"python{version}", "uv finds none: uv python install")
    python = found.stdout.strip()
    environment = {**session_environment, "UV_PYTHON": python}
    for name in ("UV_TOOL_BIN_DIR", "PIPX_BIN_DIR"):
        environment[name] = str(tmp_path / "bin")
    for name in ("UV_TOOL_DIR", "PIPX_HOME"):
        environment[name] = str(tmp_path / "tools")
    for command in WAYS[way]:
        words = command.format(home=tmp_path, wheel=wheel, python=python).split()
        uv(*words, environment=environment)
    program = tmp_path / "bin/envbuilder"
    assert "cpu" in succeeded(ran([program, "check", "cpu"], cwd=tmp_path)).stdout
