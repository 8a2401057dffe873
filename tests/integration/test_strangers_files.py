"""What another user puts into shared folders of a user who is not root: unused, and still there.

Each file that is planted would leave a trace if anything ran it. The users are other uids, so that
owners and the kernel's rules for sticky folders are real.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import exited, missing
from tests.integration.test_shared_store import ENVIRONMENT, as_user, usable
from tests.seams.conftest import uv_wheel
from tests.seams.index import Index
from tests.seams.world import World, fill

__all__ = ["uv_wheel"]
USER = 54320
STRANGER = 65534
RUN = ("run", "--", "python", "-c", "import six")
WATCH = ("watch", "--", "python", "-c", "import six")
BUILD = ("build", "--profile", "cpu", "--backend", "venv")
LOCK = ("lock", "--upgrade")
CHECK = ("check",)
DECIDES = "profile: nowhere-to-be-found\n"
PROJECT = "profiles: [cpu]\npython: '3.11'\nframework_version: '2.12.1'\nrequirements: [six]\n"


def slow(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


class Shared:
    """Folders of a user that everybody may add to, like /tmp, with a project that is built."""

    def __init__(self, root: Path, index: Index, python: str) -> None:
        self.root = root
        self.python = python
        self.trace = root / "trace/ran"
        self.folders = {name: root / name for name in ("data", "cache", "config", "tmp")}
        self.above = root / "above"
        self.project = self.above / "project"
        for folder in (self.above, *self.folders.values(), self.project, self.trace.parent):
            folder.mkdir()
            folder.chmod(0o755 if folder == self.folders["config"] else 0o1777)
            os.chown(folder, 0 if folder == self.above else USER, 0)
        self.write(self.project / "envbuilder.yaml", PROJECT, USER)
        world = World(root / "world", index)
        self.variables = {
            **{n: v for n, v in world.variables.items() if n != "PATH"},
            **ENVIRONMENT,
            **{f"ENVBUILDER_{name.upper()}_DIR": str(self.folders[name]) for name in self.folders},
            "TMPDIR": str(self.folders["tmp"]),
            "HOME": str(root / "home"),
        }

    def write(self, path: Path, text: str, owner: int) -> None:
        path.write_text(text)
        path.chmod(0o755)
        os.chown(path, owner, owner)

    def plant(self, name: str, kind: str) -> Path:
        """Put a file, a folder or a link there, as the stranger would."""
        place, _, below = name.partition("/")
        path = {**self.folders, "above": self.above, "project": self.project}[place] / below
        program = f"#!/bin/sh\ntouch {self.trace}\n"
        texts = {
            "yaml": DECIDES,
            "python": f"open({str(self.trace)!r}, 'w')\n",
            "program": program,
            "toml": f'[pip]\npython = "{self.root}/evil"\n',
            "project": f'[tool.uv.pip]\npython = "{self.root}/evil"\n',
            "version": f"{self.root}/evil\n",
            "config": f"[core]\nfsmonitor = {self.root}/evil\n",
        }
        self.write(self.root / "evil", program, STRANGER)
        if kind == "link":
            (self.root / "elsewhere").mkdir(exist_ok=True)
            os.chown(self.root / "elsewhere", STRANGER, STRANGER)
            path.symlink_to(self.root / "elsewhere")
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        elif kind == "folder":
            path.mkdir()
            self.write(path / "sitecustomize.py", texts["python"], STRANGER)
            self.write(path / "cpu.yaml", DECIDES, STRANGER)
            path.chmod(0o777)
            os.chown(path, STRANGER, STRANGER)
        else:
            self.write(path, texts[kind], STRANGER)
        return path

    def run(self, words: tuple[str, ...], **variables: str) -> Any:
        argv = [self.python, "-m", "envbuilder", *words]
        return as_user(USER, argv, {**self.variables, **variables}, self.project)


@pytest.fixture(scope="module")
def shared(uv_wheel: Path) -> Iterator[Shared]:
    if os.geteuid() != 0:
        missing("root", "other users' processes cannot be started")
    python = next(filter(usable, (sys.executable, "/usr/bin/python3")), None)
    if python is None:
        missing("root", "other users may not read this checkout or any fitting Python")
    # pytest's own folders are closed to other users.
    root = Path(tempfile.mkdtemp(prefix="envbuilder-strangers-"))
    root.chmod(0o755)
    index = Index(root / "index")
    fill(index, uv_wheel)
    try:
        with index.served():
            made = Shared(root, index, python)
            for words in (("lock",), BUILD, RUN):
                exited(0, made.run(words))
            yield made
    finally:
        shutil.rmtree(root)


@contextlib.contextmanager
def aside(path: Path) -> Iterator[None]:
    """Move what the user has there away, and put it back in place of what is planted."""
    kept = path.with_name(f"{path.name}.kept")
    there = os.path.lexists(path)
    if there:
        path.rename(kept)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()
        if there:
            kept.rename(path)


def seen(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Owner, mode and content of a file or of what is in a folder."""
    paths = (path, *path.rglob("*")) if path.is_dir() else (path,)
    return {
        str(p): (p.lstat().st_uid, p.lstat().st_mode, p.read_bytes() if p.is_file() else b"")
        for p in paths
    }


@pytest.mark.parametrize(
    ("name", "kind", "words", "code"),
    [
        ("above/envbuilder.yaml", "yaml", RUN, 0),
        ("above/profiles", "folder", CHECK, 0),
        ("above/envbuilder.lock", "folder", CHECK, 0),
        ("above/.envbuilder", "folder", RUN, 0),
        ("above/sitecustomize.py", "python", RUN, 0),
        slow("above/uv.toml", "toml", LOCK, 0),
        slow("above/pyproject.toml", "project", LOCK, 0),
        slow("above/.python-version", "version", LOCK, 0),
        ("above/.git", "folder", WATCH, 0),
        ("project/.envbuilder", "folder", RUN, 125),
        ("project/.envbuilder", "link", RUN, 125),
        ("project/.envbuilder", "yaml", RUN, 125),
        ("project/.envbuilder", "folder", WATCH, 125),
        ("project/.envbuilder", "link", WATCH, 125),
        ("project/.envbuilder", "folder", BUILD, 2),
        ("project/profiles", "folder", CHECK, 2),
        ("project/profiles", "link", RUN, 125),
        ("project/sitecustomize.py", "python", RUN, 0),
        slow("project/uv.toml", "toml", LOCK, 0),
        slow("project/.python-version", "version", LOCK, 0),
        ("project/git", "program", WATCH, 0),
        slow("project/uv", "program", LOCK, 0),
        ("project/fleet.yaml", "yaml", ("fleet", "verify", "--dry-run"), 2),
        ("data/runs", "folder", RUN, 0),
        ("data/runs", "link", RUN, 0),
        ("data/runs", "yaml", RUN, 0),
        ("data/runs", "folder", WATCH, 0),
        ("data/envs", "folder", RUN, 125),
        ("data/envs", "link", RUN, 125),
        ("data/records", "folder", BUILD, 2),
        ("cache/store", "folder", RUN, 125),
        ("cache/store", "link", BUILD, 2),
        ("cache/bases", "folder", BUILD, 2),
        ("cache/layers", "folder", BUILD, 2),
        ("cache/datasets", "folder", BUILD, 2),
        ("cache/interpreters", "folder", RUN, 125),
        slow("cache/uv-resolve", "folder", LOCK, 2),
        ("config/config.yaml", "yaml", RUN, 125),
        ("config/profiles", "folder", RUN, 125),
        slow("tmp/uv.toml", "toml", LOCK, 0),
        slow("tmp/pyproject.toml", "project", LOCK, 0),
        slow("tmp/.python-version", "version", LOCK, 0),
        ("tmp/sitecustomize.py", "python", RUN, 0),
        ("tmp/envbuilder-1", "folder", RUN, 0),
    ],
)
def test_a_strangers_file_is_neither_run_nor_read_nor_removed(
    name: str, kind: str, words: tuple[str, ...], code: int, shared: Shared
) -> None:
    folder, _, below = name.partition("/")
    own = {**shared.folders, "above": shared.above, "project": shared.project}[folder] / below
    with aside(own):
        planted = shared.plant(name, kind)
        before = seen(planted)
        # As `env -i` or a careless profile leaves it: the working folder is on PATH.
        done = shared.run(words, PATH="/usr/bin:/bin:")
        assert not shared.trace.exists(), "it was run"
        assert seen(planted) == before
        exited(code, done)
        assert "Traceback" not in done.stderr
        if code:
            assert str(planted) in done.stderr
            assert f"uid {STRANGER}" in done.stderr or "is a link" in done.stderr
