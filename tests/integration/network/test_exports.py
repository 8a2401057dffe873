"""What `render` exports does what its header says: with plain pip, with uv, with a shell."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core import process
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile
from tests.conftest import exited, ran, succeeded
from tests.integration.conftest import Cli, offer_of
from tests.support import index_server
from tests.support.shipped import shipped_lock

PLATFORM = "linux/arm64" if platform.machine() == "aarch64" else "linux/amd64"
LOCK = shipped_lock("cpu")
TARGET = lockfile.select(LOCK, PLATFORM, "3.11")
CLOSED = "http://127.0.0.1:1/whl"
"""An index that is out of reach: only root could listen there."""


@pytest.fixture(scope="module")
def torch_wheels(
    torch_prefix: Path,
    session_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with the wheels of the `cpu` lock for this platform, out of the store."""
    store = Store(load_settings({**os.environ, **session_environment}).store_dir)
    folder = tmp_path_factory.mktemp("wheels")
    for file in TARGET.of_kind("wheel"):
        store.link(file, folder)
    return folder


@pytest.fixture(scope="module")
def torch_index(torch_wheels: Path) -> Iterator[str]:
    """An index that has torch, as PyTorch's own does."""
    torch = next(f for f in TARGET.of_kind("wheel") if f.name == "torch")
    offer = offer_of(torch, torch_wheels / torch.basename)
    with index_server.serve([offer]) as url:
        yield url


def run(*argv: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program. What only costs time is left out: second tries, and pip's bytecode."""
    quick = {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0", "PIP_NO_COMPILE": "1"}
    return ran([str(a) for a in argv], env={**os.environ, **quick}, timeout=300, **options)


def uv(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The uv that envbuilder uses, without its cache."""
    return run(process.uv_path(), *arguments, "--no-cache", **options)


def torch_of(python: Path) -> str:
    """The version of torch that is installed for an interpreter."""
    script = "from importlib.metadata import version; print(version('torch'))"
    return succeeded(run(python, "-c", script)).stdout.strip()


@pytest.fixture
def fresh(torch_python: Path, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`fresh(*options)`: the interpreter of a new, empty environment with the lock's Python."""
    folder = tmp_path / "env"

    def make(*options: str) -> Path:
        subprocess.run([torch_python, "-m", "venv", *options, folder], check=True)
        return folder / "bin/python"

    yield make
    shutil.rmtree(folder, ignore_errors=True)  # pytest would keep it, and it is large


def header(path: Path, program: str) -> list[str]:
    """The command for `program` that a file's header states."""
    line = next(x for x in path.read_text().splitlines() if x.startswith(f"#   {program}"))
    return line.removeprefix("#").split()[1:]


@pytest.fixture
def walled(cli: Cli, torch_wheels: Path, tmp_path: Path) -> Path:
    """The requirements of `cpu` where PyTorch's index is out of reach, with all the wheels."""
    succeeded(
        cli(
            "render",
            "--profile",
            "cpu",
            "--target",
            "requirements",
            "-o",
            "out",
            environment={"ENVBUILDER_INDEX_PYTORCH_CPU": CLOSED},
        )
    )
    path = tmp_path / "out/requirements.txt"
    assert f"\n--extra-index-url {CLOSED}\n" in path.read_text()
    (tmp_path / "out/wheels").symlink_to(torch_wheels)
    return path


@pytest.mark.slow
def test_uv_needs_every_index_or_none(walled: Path, fresh: Callable[..., Path]) -> None:
    """uv gives up where an index does not answer; from a folder of wheels it needs no index."""
    python = fresh("--without-pip")
    words = header(walled, "uv")
    done = uv(*words, "--find-links", "wheels", "--python", python, cwd=walled.parent)
    assert done.returncode != 0
    assert CLOSED in done.stderr
    offline = ("--no-index", "--find-links", "wheels", "--python", python)
    done = succeeded(uv(*words, *offline, "--dry-run", cwd=walled.parent))
    assert "+ torch==2.13.0+cpu" in done.stderr


@pytest.mark.soak
def test_the_script_makes_an_environment(
    cli: Cli, torch_index: str, torch_python: Path, tmp_path: Path
) -> None:
    done = succeeded(
        cli(
            "render",
            "--profile",
            "cpu",
            "--target",
            "script",
            "-o",
            "out",
            environment={"ENVBUILDER_INDEX_PYTORCH_CPU": torch_index},
        )
    )
    script = ("env", f"PYTHON={torch_python}", "sh", "out/setup-venv.sh", "made")
    done = succeeded(run(*script, cwd=tmp_path))
    assert "torch 2.13.0+cpu is ready" in done.stdout
    assert "already exists" in exited(2, run(*script, cwd=tmp_path)).stderr
    shutil.rmtree(tmp_path / "made")


@pytest.mark.slow
def test_a_script_that_fails_leaves_no_environment(
    cli: Cli, tiny: Path, torch_python: Path, tmp_path: Path
) -> None:
    cli("render", "--profile", "tiny", "--target", "script", "-o", "out")
    wanted = tmp_path / "out/requirements.txt"
    wanted.write_text(re.sub(r"sha256:\w{64}", "sha256:" + "0" * 64, wanted.read_text()))
    done = run("env", f"PYTHON={torch_python}", "sh", "out/setup-venv.sh", "made", cwd=tmp_path)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "made").exists()


@pytest.fixture
def pylock(cli: Cli, torch_wheels: Path, tmp_path: Path) -> Path:
    """The pylock file of `cpu` with the folder of wheels that its header describes."""
    succeeded(cli("render", "--profile", "cpu", "--target", "pylock", "-o", "out"))
    wheels = tmp_path / "out/wheels"
    wheels.mkdir()
    for path in torch_wheels.iterdir():
        (wheels / path.name).symlink_to(path)
    return tmp_path / "out/pylock.cpu-py311.toml"


@pytest.mark.slow
def test_uv_installs_pylock_offline(pylock: Path, fresh: Callable[..., Path]) -> None:
    python = fresh("--without-pip")
    words = header(pylock, "uv")
    assert "--offline" in words
    succeeded(uv(*words, "--python", python, cwd=pylock.parent))
    assert torch_of(python) == "2.13.0+cpu"


@pytest.mark.soak
def test_a_new_pip_takes_pylock(pylock: Path, fresh: Callable[..., Path]) -> None:
    """pip reads such files from 26.1 on. A dry run checks every wheel, and unpacks none."""
    python = fresh()
    done = succeeded(run(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=26.1"))
    words = header(pylock, "pip install")
    done = succeeded(run(python, "-m", "pip", *words, "--dry-run", cwd=pylock.parent))
    assert "torch-2.13.0+cpu" in done.stdout.splitlines()[-1]
