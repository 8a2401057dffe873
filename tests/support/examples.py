"""The projects in `examples/`, as somebody uses them who copied their folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from envbuilder.core.settings import LOCKS

ROOT = Path(__file__).resolve().parents[2] / "examples"
LOCKED = "script"
"""The project whose locks are committed."""
COMMANDS = {
    "script": ("python", "train.py"),
    "package": ("python", "-m", "digits.train"),
    "uv": ("python", "train.py"),
    "conda-pip": ("python", "train.py"),
    "lightning": ("python", "train.py"),
    "pixi": ("python", "train.py"),
    "dockerfile": ("python", "train.py"),
}
"""Each project's own command, as its README has it."""
OTHER_FRAMEWORKS = {"flax": "jax", "keras": "tensorflow"}
"""Projects for another framework than PyTorch, all with `python train.py`."""
ONE_THREAD = ("env", "OMP_NUM_THREADS=1")
"""Before a command: threads that wait for each other take minutes on a busy machine."""


def copy(name: str, folder: Path) -> None:
    """Fill a folder with what the repository holds of a project."""
    made = (".envbuilder", "__pycache__", "logs", "runs.db", *(() if name == LOCKED else (LOCKS,)))
    shutil.copytree(ROOT / name, folder, ignore=shutil.ignore_patterns(*made), dirs_exist_ok=True)


def require_learned(
    done: subprocess.CompletedProcess[str], framework: str = "torch 2.13.0+cpu"
) -> None:
    """Fail unless a training ended well and printed what it did, as all of them do."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    device, losses = done.stdout.splitlines()[-2:]
    assert device.startswith(f"device cpu, {framework}"), device
    before, after = losses.partition(",")[0].removeprefix("loss ").split(" -> ")
    assert float(after) < float(before) / 2
