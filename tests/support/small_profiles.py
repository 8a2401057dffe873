"""Five small profiles of generated wheels, and many builds of them at once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.support import make_wheels
from tests.support.folders import names_in
from tests.support.projects import lay_profile

COUNT = 5
PROFILE = """\
extends: _cpu
description: A small environment of generated wheels
platforms: [linux/amd64]
requirements: [small-common==1.0, small-{number}==1.0]
system_packages: []
preload: []
expects: {{version: 2.13.0+cpu}}
"""


class Build(Struct, frozen=True):
    """How a build of many ended."""

    profile: str
    code: int
    stdout: str
    stderr: str


def names(prefix: str = "small") -> tuple[str, ...]:
    return tuple(f"{prefix}-{number}" for number in range(COUNT))


def lay(folder: Path, prefix: str = "small") -> Path:
    """A project with the profiles, unlocked; return the folder of their wheels."""
    wheels = folder / "wheels"
    wheels.mkdir()
    make_wheels.write(wheels, "small_common", {"small_common.py": b"", "data": b"x" * 2_000_000})
    for number, name in enumerate(names(prefix)):
        lay_profile(folder, name, PROFILE.format(number=number))
        make_wheels.write(wheels, f"small_{number}", {f"small_{number}.py": b"HERE = True\n"})
    return wheels


def locked_files(folder: Path, prefix: str = "small") -> dict[str, str]:
    """sha256 → name of what builds of the profiles need on this machine."""
    return tools(folder, prefix) | {
        file["sha256"]: file["file"]
        for name in names(prefix)
        for target in _lock(folder, name)["targets"]
        for file in target["files"]
        if target["python"] == "3.11"
    }


def tools(folder: Path, prefix: str = "small") -> dict[str, str]:
    """sha256 → name of the uv that installs the profiles on this machine."""
    locked = [_lock(folder, name)["tools"]["linux/amd64"] for name in names(prefix)]
    return {file["sha256"]: file["file"] for file in locked}


def _lock(folder: Path, name: str) -> Any:
    return json.loads((folder / f"profiles/locks/{name}.json").read_text())


def build_at_once(
    folder: Path,
    environments: Sequence[Mapping[str, str]],
    *options: str,
    prefix: str = "small",
) -> list[Build]:
    """Start a build of every profile with each of the environments, all at the same time."""
    with ExitStack() as stack:
        started = []
        for number, environment in enumerate(environments):
            for name in names(prefix):
                out, err = (folder / f"{name}-{number}.{end}" for end in ("out", "err"))
                argv = [sys.executable, "-m", "envbuilder", "build", "--profile", name, "--json"]
                child = subprocess.Popen(
                    [*argv, "--python-version", "3.11", *options],
                    env={**os.environ, **environment},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=stack.enter_context(out.open("wb")),
                    stderr=stack.enter_context(err.open("wb")),
                )
                stack.callback(child.kill)
                started.append((name, child, out, err))
        return [
            Build(name, child.wait(timeout=1800), out.read_text(), err.read_text())
            for name, child, out, err in started
        ]


def require_whole(cache: Path, files: Mapping[str, str]) -> None:
    """Fail unless the store has one right copy of each file, and nothing half-made is left."""
    stored = [p for p in (cache / "store/sha256").glob("*/*") if p.is_file()]
    assert {p.name for p in stored} == set(files)
    for path in stored:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name, files[path.name]
        assert path.stat().st_nlink == 1, f"{path}: still linked from a working folder"
        assert path.stat().st_mode & 0o777 == 0o444
    partial = names_in(cache / "store/partial")
    assert partial <= {f"{sha256}.lock" for sha256 in files}
    working = [p for p in (cache / "build").glob("*") if p.suffix != ".lock"]
    unfinished = [p for p in cache.rglob("*.part") if "uv-resolve" not in p.parts]
    assert working + unfinished + [*cache.rglob(".part-*")] == []
