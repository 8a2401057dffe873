"""The venv backend for real: build, verify, run, tamper, kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import exited, succeeded
from tests.integration.conftest import Cli, begin, start


def test_an_unchanged_build_is_reused(cli: Cli, torch_prefix: Path) -> None:
    done = cli("build", "--profile", "cpu", "--backend", "venv", "--json")
    result = json.loads(done.stdout)
    assert result["status"] == "reused"
    digest = json.loads((torch_prefix / "envbuilder.json").read_text())["digest"]
    assert result["artifact"] == {"kind": "venv", "ref": str(torch_prefix), "digest": digest}


@pytest.mark.soak
def test_a_full_epoch_reaches_the_accuracy(cli: Cli, torch_prefix: Path, mnist_dir: Path) -> None:
    data = json.loads(
        succeeded(
            cli(
                "verify",
                "--profile",
                "cpu",
                "--backend",
                "venv",
                "--data",
                str(mnist_dir),
                "--json",
            )
        ).stdout
    )
    assert data["dataset"]["subset"] is False
    assert data["training"]["epochs"][0]["accuracy"] >= 0.975


@pytest.mark.slow
def test_cuda_is_3_here_and_5_when_forced(cli: Cli, torch_python: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA GPU")
    done = exited(3, cli("verify", "--profile", "cuda", "--python", str(torch_python), "--quick"))
    assert "NVIDIA" in done.stderr
    done = exited(
        5, cli("verify", "--profile", "cuda", "--python", str(torch_python), "--quick", "--force")
    )
    assert "NOT VERIFIED" in done.stdout


def test_run_passes_the_code_and_the_environment_through(cli: Cli, torch_prefix: Path) -> None:
    script = "import os, sys; print(sys.prefix, os.environ['LD_PRELOAD']); sys.exit(7)"
    done = exited(
        7, cli("run", "--profile", "cpu", "--backend", "venv", "--", "python", "-c", script)
    )
    assert done.stdout.startswith(f"{torch_prefix} {torch_prefix}/lib/envbuilder/libtcmalloc")
    done = exited(127, cli("run", "--profile", "cpu", "--backend", "venv", "--", "no-such-program"))


def test_no_command_reaches_another_environments_installer(
    cli: Cli, tiny: Path, tmp_path: Path
) -> None:
    """The host has a pip on PATH, and so have shells and scripts."""
    trace = tmp_path / "trace"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("pip", "pip3.11", "conda", "jupyter"):
        program = elsewhere / name
        program.write_text(f"#!{sys.executable}\nopen({str(trace)!r}, 'w')\n")
        program.chmod(0o755)
    path = {"PATH": f"{elsewhere}:{os.environ['PATH']}"}
    tiny_here = ("--profile", "tiny", "--backend", "venv", "--")
    # What would change the environment is refused before that is built.
    changing = "pip install would change the environment"
    for command in (["pip", "install", "x"], ["pip3.11", "list"], ["conda"], ["jupyter"]):
        done = exited(125, cli("run", *tiny_here, *command, environment=path))
        missing = f"{command[0]} is not in this environment"
        assert (changing if command[1:2] == ["install"] else missing) in done.stderr
        assert "add_requirements: (or requirements:) in profiles/tiny.yaml" in done.stderr
        assert "envbuilder lock --profile tiny" in done.stderr
    for inner in ("pip install x", "conda list", "jupyter lab"):
        done = exited(125, cli("run", *tiny_here, "bash", "-c", inner, environment=path))
        assert f"{inner.split()[0]} is not in this environment" in done.stderr
    assert not trace.exists()
    done = succeeded(cli("run", *tiny_here, str(elsewhere / "jupyter"), environment=path))
    assert trace.exists(), "what is named by its path is meant"
    done = succeeded(cli("run", *tiny_here, "git", "--version", environment=path))


@pytest.mark.parametrize("shell", ["bash", "sh", "fish"])
def test_a_shell_reaches_no_other_environment_whatever_its_own_files_do(
    session_environment: dict[str, str], tiny: Path, tmp_path: Path, shell: str
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    home = tmp_path / "home"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("pip", "python"):
        (elsewhere / name).write_text("#!/bin/sh\necho another $0\n")
        (elsewhere / name).chmod(0o755)
    (home / ".config/fish").mkdir(parents=True)
    (home / ".bashrc").write_text(f'PATH="{elsewhere}:$PATH"\nMINE=read\n')
    fish = f"set -gx PATH {elsewhere} $PATH\nset MINE read\n"
    (home / ".config/fish/config.fish").write_text(fish)
    path = f"{elsewhere}:{os.environ['PATH']}"
    places = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "PATH": path}
    done = exited(
        7,
        start(
            ("shell", "--profile", "tiny", "--backend", "venv"),
            {**session_environment, **places, "SHELL": program},
            cwd=tmp_path,
            given="echo mine=$MINE\npip install x\n"
            "python -c 'import sys; print(sys.prefix)'\nexit 7\n",
        ),
    )
    assert "another" not in done.stdout
    assert "pip is not in this environment" in done.stderr
    assert f"{session_environment['ENVBUILDER_DATA_DIR']}/envs/tiny-" in done.stdout
    assert ("mine=read" in done.stdout) == (shell != "sh"), "its own files are read"


@pytest.mark.slow
def test_an_edited_file_does_not_reach_the_next_environment(
    cli: Cli, tiny: Path, tmp_path: Path
) -> None:
    def build() -> Path:
        folder = {"ENVBUILDER_DATA_DIR": str(tmp_path / "data")}
        done = cli("build", "--profile", "tiny", "--backend", "venv", "--json", environment=folder)
        return Path(json.loads(succeeded(done).stdout)["artifact"]["ref"])

    first = build()
    (edited,) = first.glob("lib/python3.*/site-packages/setuptools/version.py")
    right = edited.read_bytes()
    edited.chmod(0o644)
    edited.write_bytes(b"raise SystemExit('tampered')\n")
    first.rename(tmp_path / "aside")
    assert (build() / edited.relative_to(first)).read_bytes() == right


@pytest.mark.slow
def test_a_build_restores_what_was_edited(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    folder = {"ENVBUILDER_DATA_DIR": str(tmp_path / "data")}
    arguments = ("build", "--profile", "tiny", "--backend", "venv", "--json")
    done = succeeded(cli(*arguments, environment=folder))
    prefix = Path(json.loads(done.stdout)["artifact"]["ref"])
    (edited,) = prefix.glob("lib/python3.*/site-packages/setuptools/version.py")
    edited.chmod(0o644)
    edited.write_bytes(b"raise SystemExit('tampered')\n")
    done = succeeded(cli(*arguments, environment=folder))
    assert "was changed since it was built" in done.stderr
    assert json.loads(done.stdout)["status"] == "built"
    assert b"tampered" not in edited.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(n, marks=pytest.mark.soak) for n in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_a_killed_build_leaves_nothing_that_is_trusted(
    number: signal.Signals,
    cli: Cli,
    tiny: Path,
    session_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    environment = {**session_environment, "ENVBUILDER_DATA_DIR": str(tmp_path / "data")}
    arguments = ("build", "--profile", "tiny", "--backend", "venv")
    child = begin(arguments, environment, tmp_path)
    envs = tmp_path / "data/envs"
    wait_for(lambda: list(envs.glob(".*.partial/env")))
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert (
        child.returncode
        == {
            signal.SIGKILL: -9,
            signal.SIGINT: 130,
            signal.SIGTERM: 143,
        }[number]
    ), said
    assert not [p for p in envs.iterdir() if not p.name.startswith(".")]
    if number != signal.SIGKILL:
        assert not list(envs.glob(".*.partial"))
        assert "Traceback" not in said
    done = succeeded(cli(*arguments, "--json", environment=environment))
    prefix = Path(json.loads(done.stdout)["artifact"]["ref"])
    again = subprocess.run(
        [prefix / "bin/python", "-c", "import setuptools; print(setuptools.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout == "80.9.0\n"
    assert not list(envs.glob(".*.partial"))


def wait_for(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
