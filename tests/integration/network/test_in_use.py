"""What a command runs in stays until the last of its processes has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import succeeded
from tests.integration.conftest import Cli

VENV = ("--profile", "tiny", "--backend", "venv")
PYTHON = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
STARTED = f"setsid python -c '{PYTHON}' & exit"
COMMANDS = {
    "the command": ("run", *VENV, "--", "python", "-c", PYTHON),
    "what it left running": ("run", *VENV, "--", "bash", "-c", STARTED),
    "in a shell": ("shell", *VENV),
}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, str]:
    return {"ENVBUILDER_DATA_DIR": str(tmp_path / "data"), "SHELL": "/bin/bash"}


@pytest.fixture
def running(
    request: pytest.FixtureRequest,
    tiny: Path,
    cli: Cli,
    session_environment: dict[str, str],
    data: dict[str, str],
    tmp_path: Path,
) -> Iterator[int]:
    """A process of the environment."""
    succeeded(cli("build", *VENV, environment=data))
    with subprocess.Popen(
        [sys.executable, "-m", "envbuilder", *COMMANDS[request.param]],
        env={**os.environ, **session_environment, **data},
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        child.stdin.write(f"{STARTED}\n")
        child.stdin.flush()
        process = int(child.stdout.readline())
        try:
            yield process
        finally:
            os.kill(process, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("running", COMMANDS, indirect=True)
def test_it_is_neither_removed_nor_built_again(
    running: int, cli: Cli, data: dict[str, str], tmp_path: Path
) -> None:
    (prefix,) = (tmp_path / "data/envs").glob("tiny-*/bin/python")
    cleaned: Any = cli("clean", "--yes", "--json", environment=data)
    assert cleaned.returncode == 0, cleaned.stderr
    kept = {each["name"]: each["reason"] for each in json.loads(cleaned.stdout)["kept"]}
    assert kept[str(prefix.parent.parent)] == "in use by a running command"
    rebuilt = cli("build", *VENV, "--rebuild", environment=data)
    assert rebuilt.returncode == 1
    assert "not replaced, because a running command uses it" in rebuilt.stderr
    assert prefix.exists()
    os.kill(running, 0)
    assert cli("run", *VENV, "--", "true", environment=data).returncode == 0, "others may run, too"
