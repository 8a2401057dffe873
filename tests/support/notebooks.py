"""JupyterLab as `envbuilder jupyter` starts it, used through its own interfaces."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.conftest import missing, succeeded

CLIENT = Path(__file__).with_name("notebook_client.py")
CELLS = (
    "import torch; torch.__version__",
    "import os, sys; print(os.getpid(), os.getcwd(), sys.prefix)",
)
NOTEBOOK: dict[str, Any] = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
STOP_SECONDS = 2.0
ENDED = (0, 130)
"""Exit codes after Ctrl-C; the second one if a kernel takes long to end, on a busy machine."""


class Lab(Struct, kw_only=True):
    """A running JupyterLab."""

    server: subprocess.Popen[str]
    link: str
    python: Path
    output: str = ""
    """What it printed after its link; complete at the end."""
    seconds: float = 0.0
    """How long it took to end."""

    @property
    def token(self) -> str:
        return self.link.partition("token=")[2]

    def use(self, *cells: str) -> dict[str, Any]:
        """Log in, run cells in a new kernel, interrupt one; return what came of it."""
        command = [str(self.python), str(CLIENT), self.link, *cells]
        results: dict[str, Any] = json.loads(
            succeeded(
                subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            ).stdout
        )
        return results


def lay(folder: Path) -> None:
    """A project with a notebook, without ipykernel."""
    (folder / "envbuilder.yaml").write_text("profiles: [cpu]\nrequirements: [einops]\n")
    (folder / "notes.ipynb").write_text(json.dumps(NOTEBOOK))


@contextlib.contextmanager
def serving(folder: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[Lab]:
    """Serve a project's folder, and press Ctrl-C once at the end."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    log = scratch.with_name("stderr")
    with log.open("w") as stderr:
        server = subprocess.Popen(
            [sys.executable, "-m", "envbuilder", "jupyter", "--no-browser", *arguments],
            env={**os.environ, **environment, "TMPDIR": str(scratch)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    printed = ""
    for line in server.stdout:
        printed = line.strip()
        if printed.startswith("http"):
            break
    else:
        server.wait(30)
        missing("network", f"JupyterLab cannot be built here: {log.read_text()[-400:]}")
    data = Path(environment["ENVBUILDER_DATA_DIR"])
    (python,) = data.glob("envs/jupyter-py*/bin/python")
    lab = Lab(server=server, link=printed, python=python)
    try:
        yield lab
        started = time.monotonic()
        server.send_signal(signal.SIGINT)
        server.wait(30)
        lab.seconds = time.monotonic() - started
        lab.output = server.stdout.read()  # until the kernels' launchers have ended, too
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    lab.output += log.read_text()


def ends(pid: int) -> bool:
    """Whether a process has ended, or does in ten seconds: it looks for its parent every second."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
