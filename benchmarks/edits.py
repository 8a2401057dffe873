"""An edit of a project, and a second project with the same lock, beside uv; disk after ten edits.

    python benchmarks/edits.py [--runs 5]

The project requires transformers, datasets and torch for the CPU, from the index and find-links
that pip is set up with. Warm: caches and stores have every file, and each side ran once before. An
edit is `add toolz` (`uv add toolz`), then its import (rich comes with transformers); the second
project has the definition and the lock, and no environment, whether the first one's is there
(`shared`) or not. Both sides alternate; seconds are medians. Nothing is removed meanwhile: where
files were just removed, ext4 takes ten times as long to make folders.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ENVBUILDER = (sys.executable, "-m", "envbuilder")
UV = ("uv",)
DEFINITION = """\
profiles: [cpu]
requirements: [transformers, datasets]
python: "3.11"
"""
PYPROJECT = """\
[project]
name = "edited"
version = "0"
requires-python = "==3.11.*"
dependencies = ["transformers", "datasets", "torch==2.13.0+cpu"]
[tool.uv]
environments = ["sys_platform == 'linux' and platform_machine == 'x86_64'"]
"""
ADDED = (
    "rich",
    "tqdm",
    "click",
    "attrs",
    "cachetools",
    "wcwidth",
    "six",
    "pluggy",
    "iniconfig",
    "ply",
)


def run(folder: Path, *argv: str) -> float:
    """Run a program; return the seconds that it took."""
    began = time.monotonic()
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - began


def project(folder: Path, tool: tuple[str, ...]) -> None:
    """Make a project, locked and built, of one of the tools."""
    folder.mkdir()
    if tool == UV:
        (folder / "pyproject.toml").write_text(PYPROJECT)
        run(folder, "uv", "sync", "-q", "--python", "3.11")
    else:
        (folder / "envbuilder.yaml").write_text(DEFINITION)
        run(folder, *ENVBUILDER, "lock", "--profile", "cpu")
        run(folder, *ENVBUILDER, "run", "true")


def edit(folder: Path, tool: tuple[str, ...], package: str = "toolz") -> float:
    """Add a package, and import it; return the seconds."""
    words = ("python", "-c", f"import {package}")
    return run(folder, *tool, "add", package) + run(folder, *tool, "run", *words)


def second(folder: Path, tool: tuple[str, ...], base: Path) -> float:
    """Start a command in a project with the lock of another; return the seconds."""
    ignored = shutil.ignore_patterns(".venv", ".envbuilder")
    shutil.copytree(base, folder, ignore=ignored)
    return run(folder, *tool, "run", "true")


def megabytes(*folders: Path) -> int:
    """Return what folders take together; linked files count once."""
    done = subprocess.run(["du", "-sm", "--total", *folders], capture_output=True, check=True)
    return int(done.stdout.split()[-2])


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed, envbuilder is compiled
    # uv does not read pip's settings.
    argv = (sys.executable, "-m", "pip", "config", "get", "global.find-links")
    asked = subprocess.run(argv, capture_output=True, text=True, check=False)
    os.environ.setdefault("UV_FIND_LINKS", asked.stdout.strip())
    with tempfile.TemporaryDirectory(prefix="edits-", dir=Path.home()) as temporary:
        work = Path(temporary)
        data = work / "data"
        os.environ["ENVBUILDER_DATA_DIR"] = str(data)
        bases = {ENVBUILDER: work / "ours", UV: work / "uv"}
        for tool, base in bases.items():
            project(base, tool)
        one = megabytes(data / "envs", data / "unpacked")
        took: dict[tuple[str, str], list[float]] = {}
        for number in range(runs + 1):
            for tool, base in bases.items():
                edited = work / f"edited{number}-{base.name}"
                shutil.copytree(base, edited, symlinks=True)
                took.setdefault(("edit", base.name), []).append(edit(edited, tool))
            for what in ("second", "shared"):
                for tool, base in bases.items():
                    if what == "second" and tool == ENVBUILDER:
                        (data / "envs").rename(data / f"envs{number}")
                    other = work / f"{what}{number}-{base.name}"
                    took.setdefault((what, base.name), []).append(second(other, tool, base))
        for what in ("edit", "second", "shared"):
            ours = median(took[what, "ours"][1:])
            uv = median(took[what, "uv"][1:])
            print(f"{what:<8} {ours:6.2f} s, uv {uv:6.2f} s: {ours / uv:.2f} ×", flush=True)
        for package in ADDED:
            edit(bases[ENVBUILDER], ENVBUILDER, package)
        ten = megabytes(data / "envs", data / "unpacked")
        print(f"disk     {one} MB for one environment, {ten} MB after ten edits: {ten / one:.2f} ×")


if __name__ == "__main__":
    main()
