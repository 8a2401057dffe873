"""The commands of a guide in docs/guides, and what it says that they print.

A guide that is tested ends with a comment:

    <!-- tested
    project: script
    laptop.json: lunar-lake
    needs: torch
    -->

Its `sh` blocks then run one after the other in a copy of that project of `examples/` (`without`
some of its files), beside recordings of constructed hosts under the names that the guide gives
them. A `text` block is what the commands before it print, on stdout or stderr; … stands for
anything, and lines may be wrapped elsewhere. "exit code N" at its end is not printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tests.support import examples, host_trees

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "guides"
_COMMENT = re.compile(r"^<!-- tested\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"\s*exit code (\d+)\s*\Z")
_LONGEST = 600


class Step(Struct):
    """Commands, what they print and how they end."""

    commands: str
    printed: str = ""
    code: int = 0


class Guide(Struct, frozen=True):
    """A guide that is tested."""

    name: str
    project: str
    without: tuple[str, ...]
    hosts: dict[str, str]
    needs: str
    steps: tuple[Step, ...]


def read(path: Path) -> Guide | None:
    """A guide; None if it is not tested."""
    text = path.read_text()
    comment = _COMMENT.search(text)
    if comment is None:
        return None
    keys = dict(line.split(": ", 1) for line in comment[1].splitlines())
    steps: list[Step] = []
    for kind, block in _BLOCK.findall(text):
        if kind == "sh":
            steps.append(Step(commands=block))
        else:
            code = _CODE.search(block)
            steps[-1].code = int(code[1]) if code else 0
            steps[-1].printed = _CODE.sub("", block)
    return Guide(
        name=path.stem,
        project=keys.pop("project"),
        without=tuple(keys.pop("without", "").split()),
        needs=keys.pop("needs", ""),
        hosts=keys,
        steps=tuple(steps),
    )


def tested() -> tuple[Guide, ...]:
    """All guides that are tested."""
    return tuple(guide for path in sorted(FOLDER.glob("*.md")) if (guide := read(path)))


def lay(guide: Guide, folder: Path) -> None:
    """A guide's project, as its reader has it before the first command."""
    examples.copy(guide.project, folder)
    for name in guide.without:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, host in guide.hosts.items():
        shutil.copy(host_trees.FOLDER / f"{host}.json", folder / name)


def environment(home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """A reader's variables: a home of their own, `envbuilder` on PATH, and no container engine."""
    programs = home / "bin"
    programs.mkdir(parents=True)
    program = programs / "envbuilder"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m envbuilder "$@"\n')
    program.chmod(0o755)
    for name in ("pip", "uv"):  # the package index of this machine
        settings = Path.home() / ".config" / name
        if settings.is_dir():
            (home / ".config").mkdir(exist_ok=True)
            (home / ".config" / name).symlink_to(settings)
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("ENVBUILDER_")},
        **variables,
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "DOCKER_HOST": "unix:///nonexistent",
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",  # threads that wait for each other take minutes on a busy machine
    }


def run(step: Step, folder: Path, variables: Mapping[str, str]) -> None:
    """Run a step; fail unless it prints what the guide says, and ends so."""
    done = subprocess.run(
        ["sh", "-eu", "-c", step.commands],
        cwd=folder, env=dict(variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=_LONGEST,
    )  # fmt: skip
    assert done.returncode == step.code, f"{step.commands}{done.stdout}"
    missing = first_missing(step.printed, done.stdout)
    assert not missing, f"{step.commands}does not print: {missing}\n\n{done.stdout}"


def first_missing(shown: str, printed: str) -> str:
    """The first part of a `text` block that was not printed after the parts before it."""
    rest = " ".join(printed.split())
    for part in shown.split("…"):
        words = " ".join(part.split())
        _, found, rest = rest.partition(words) if words else ("", "-", rest)
        if not found:
            return words
    return ""
