"""What GitHub keeps between jobs and runs, in folders: caches, and the artifacts of a run."""

from __future__ import annotations

import fnmatch
import os
import shutil
from pathlib import Path

from tests.support.github_expressions import UnknownWorkflowError


class Caches:
    """Entries by key, of which none is ever overwritten; the last saved is the newest.

    Files are hard links: jobs may replace them, not write into them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, Path] = {}

    def find(self, key: str, prefixes: tuple[str, ...]) -> str | None:
        """Return the key of the entry to restore: this one, else the newest with a prefix."""
        if key in self.entries:
            return key
        for prefix in prefixes:
            for saved in reversed(self.entries):
                if saved.startswith(prefix):
                    return saved
        return None

    def restore(self, key: str, workspace: Path) -> None:
        """Copy an entry into a workspace."""
        _link(self.entries[key], workspace)

    def save(self, key: str, paths: tuple[str, ...], workspace: Path) -> None:
        """Keep those of some folders that exist; nothing if none does, or if the key is taken."""
        existing = [path for path in paths if (workspace / path).exists()]
        if key in self.entries or not existing:
            return
        entry = self.folder / str(len(self.entries))
        for path in existing:
            _link(workspace / path, entry / path)
        self.entries[key] = entry


class Artifacts:
    """Files by the job that uploaded them, and the name of their artifact."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def forget(self, job: str) -> None:
        """Remove what a job has uploaded: it runs again."""
        shutil.rmtree(self.folder / job, ignore_errors=True)

    def upload(self, job: str, name: str, paths: tuple[str, ...], workspace: Path) -> None:
        """Keep those of some files that exist."""
        folder = self.folder / job / name
        for path in paths:
            if (workspace / path).is_file():
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(workspace / path, folder)

    def download(self, pattern: str, into: Path) -> None:
        """Copy the files of all artifacts whose name matches; without one, make no folder."""
        for artifact in sorted(self.folder.glob("*/*")):
            if fnmatch.fnmatchcase(artifact.name, pattern):
                shutil.copytree(artifact, into, dirs_exist_ok=True)


def _link(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=os.link)


def lines(text: str) -> tuple[str, ...]:
    """Return the lines of an input that has several."""
    return tuple(filter(None, map(str.strip, text.splitlines())))


def inside(text: str) -> tuple[str, ...]:
    """Return the paths in the workspace that an input names; no patterns."""
    for path in lines(text):
        if Path(path).is_absolute() or ".." in Path(path).parts or set(path) & set("*?[]!~"):
            raise UnknownWorkflowError(f"path: {path}")
    return lines(text)
