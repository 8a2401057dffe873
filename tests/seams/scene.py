"""A world with what was asked of it: what a step changes, and what each command must not."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from tests.seams.forms import Listed
from tests.seams.sources import Repository
from tests.seams.world import SECRET, Ended, World

STRANGER = 65534
"""The uid of another user."""
EDITING = frozenset({"add", "remove", "init"})
Files = dict[str, str]
"""Path → kind, owner and content of what is there."""


class Trouble(Struct, frozen=True):
    """Something that must never happen, and did."""

    invariant: str
    command: str
    message: str


class Act(Struct, frozen=True, kw_only=True):
    """A command that ended, and the files before and after it."""

    words: tuple[str, ...]
    ended: Ended
    before: Files
    after: Files
    outputs: tuple[Path, ...] = ()
    stopped: bool = False
    """Killed, or without the disk it needs: what it must be is less."""

    @property
    def command(self) -> str:
        """The name of the command."""
        return self.words[0] if self.words else ""

    @property
    def text(self) -> str:
        """All that it printed."""
        return self.ended.out + self.ended.err


class Scene:
    """A world, what its files say, and what was found."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.repository = Repository(world.folder / "git/g")
        self.lists: dict[str, Listed] = {}
        self.values: dict[str, str] = {}
        """Module of a local source → the value in the working tree."""
        self.wished: set[str] = set()
        """Names that were asked for."""
        self.made: dict[Path, str] = {}
        """Result → the command that made it."""
        self.acts: list[Act] = []
        self.troubles: list[Trouble] = []
        self.locks_touched = False
        self.trial = False
        self.observing = True
        self.good: dict[str, bytes] | None = None
        self.good_lists: dict[str, Listed] = {}
        self.good_values: dict[str, str] = {}
        self.refused = False
        self.ours: bytes | None = None
        """envbuilder.yaml as a command wrote it."""
        self.ran = world.folder / "ran"
        self.ran.mkdir(exist_ok=True)
        self.ran.chmod(0o777)
        for folder in ("config", "second"):
            (world.home / folder).mkdir(exist_ok=True)
        world.variables["HF_TOKEN"] = SECRET

    def trouble(self, invariant: str, command: str, message: str) -> None:
        """Note that something must not have happened."""
        self.troubles.append(Trouble(invariant, command, message))

    def files(self) -> Files:
        """Return what is in the project, home and temporary folder; not the store's contents."""
        found: Files = {}
        skipped = {self.world.home / "cache", self.world.home / "data"}
        for top in (self.world.home, self.world.folder / "tmp"):
            for above, folders, names in os.walk(top):
                folders[:] = [f for f in folders if Path(above, f) not in skipped]
                folders[:] = [f for f in folders if f not in {".git", "__pycache__"}]
                for name in (*folders, *names):
                    path = Path(above, name)
                    with contextlib.suppress(FileNotFoundError):
                        found[str(path)] = _seen(path)
        for folder in skipped:
            found.update(_of_others(folder))
        for path in (self.world.home / "data/envs").glob("[!.]*"):
            if path.is_dir():  # beside it are its attestations
                found[str(path)] = "an environment"
        return found

    def yaml(self) -> dict[str, Any] | None:
        """Return envbuilder.yaml as another reader sees it; None if it is none."""
        try:
            found = yaml.safe_load((self.world.project / "envbuilder.yaml").read_text())
        except (OSError, ValueError, yaml.YAMLError):
            return None
        return found if isinstance(found, dict) else None

    def locks(self) -> dict[str, dict[str, Any]]:
        """Return the locks of the project that can be read, by file name."""
        found = {}
        for path in sorted((self.world.project / "envbuilder.lock").glob("*.json")):
            with contextlib.suppress(ValueError, OSError):
                found[path.stem] = json.loads(path.read_bytes())
        return {name: lock for name, lock in found.items() if isinstance(lock, dict)}

    def lock_bytes(self) -> dict[str, bytes]:
        """Return the bytes of the project's locks."""
        folder = self.world.project / "envbuilder.lock"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.json"))}

    def envbuilder(
        self,
        *words: str,
        outputs: Sequence[Path] = (),
        stopped: bool = False,
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
        kill_after: float | None = None,
    ) -> Act:
        """Run a command, and note its act."""
        before = self.files()
        ended = self.world.envbuilder(*words, cwd=cwd, variables=variables, kill_after=kill_after)
        return self.note(words, ended, before, outputs, stopped=stopped or kill_after is not None)

    def note(
        self,
        words: Sequence[str],
        ended: Ended,
        before: Files,
        outputs: Sequence[Path] = (),
        *,
        stopped: bool = False,
    ) -> Act:
        """Note the act of a command that ended."""
        act = Act(
            words=tuple(words),
            ended=ended,
            before=before,
            after=self.files(),
            outputs=tuple(outputs),
            stopped=stopped,
        )
        self.acts.append(act)
        return act

    @contextlib.contextmanager
    def tried(self) -> Iterator[None]:
        """Do things to the world, and take them back afterwards."""
        folder = self.world.folder
        saved = folder.with_name(f"{folder.name}.saved")
        subprocess.run(["cp", "-a", str(folder), str(saved)], check=True)
        names = (
            "lists",
            "values",
            "wished",
            "made",
            "good",
            "good_lists",
            "good_values",
            "refused",
            "ours",
            "locks_touched",
        )
        state = {name: copy.copy(getattr(self, name)) for name in names}
        history = list(self.world.history)
        project = self.world.project
        was_trial = self.trial
        self.trial = True
        try:
            yield
        finally:
            self.trial = was_trial
            self.world.project = project
            self.world.history[:] = history
            for name, value in state.items():
                setattr(self, name, value)
            shutil.rmtree(folder)
            saved.rename(folder)

    def keep_good(self) -> None:
        """Remember the project as it is, to return to it."""
        self.refused = False
        self.good = {}
        self.good_lists = {**self.lists}
        self.good_values = {**self.values}
        project = self.world.project
        for path in project.rglob("*"):
            inside = path.relative_to(project)
            if inside.parts[0] not in {".envbuilder", "envbuilder.lock"} and path.is_file():
                self.good[str(inside)] = path.read_bytes()


def normalised(text: str) -> str:
    """Return a message without what differs from world to world."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"/[\w./-]*?/w\d+/x/w\b", "WORLD", text)
    text = re.sub(r"(envbuilder-\w+)-[\w]{6,}|(/\.?tmp)\w{6,}", r"\1\2-RANDOM", text)
    text = re.sub(r"\b[0-9a-f]{12,64}\b", "HASH", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "INDEX", text)
    return re.sub(r"\d+(?:\.\d+)*", "N", text)


def _of_others(folder: Path) -> Files:
    """Return the files of other users, which no command may touch."""
    found: Files = {}
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "site-packages"]
        for name in names:
            path = Path(above, name)
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_uid == STRANGER:
                    found[str(path)] = _seen(path)
    return found


def _seen(path: Path) -> str:
    info = path.lstat()
    if path.is_symlink():
        return f"{info.st_uid} link {path.readlink()}"
    if path.is_dir():
        return f"{info.st_uid} folder"
    return f"{info.st_uid} file {hashlib.sha256(path.read_bytes()).hexdigest()}"
