"""Remember what interpreters answered, for as long as their files stay the same.

Running interpreters takes longer than all else that `run` does before its command. An answer holds
for the file that gave it: what a program answers that starts another one (pyenv's shims choose an
interpreter each time) is not remembered.
"""

from __future__ import annotations

import contextlib
import os
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, files

OWNED = files.Owned("interpreters", (r"answers\.json",))
NAME = "answers.json"
_LARGEST = 256 << 10
_MOST = 64
"""Maximum number of interpreters that are remembered."""
_VENV = "pyvenv.cfg"
"""The file next to an interpreter, or one folder above, that makes it one of a venv."""


class Answer(Struct, frozen=True, kw_only=True):
    """What an interpreter says of itself."""

    version: str
    final: bool
    bits: int
    implementation: str
    machine: str
    free_threaded: bool
    executable: str
    prefix: str
    base_prefix: str
    base_executable: str | None = None


class _Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    identity: tuple[int, ...]
    answer: Answer


class _Stored(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal[1] = 1
    answers: dict[str, _Entry] = {}
    managed: dict[str, str] = {}


class Answers:
    """The answers of interpreters, by path; kept in a folder if one is given."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        stored = _Stored() if folder is None else _read(folder / NAME)
        self._entries, self._managed = dict(stored.answers), dict(stored.managed)
        self._stored, self._changed = set(self._entries), False
        self.used = False
        """Whether an answer of an earlier command was returned."""

    def get(self, path: Path) -> Answer | None:
        """Return what the interpreter answered, if its file is still the same."""
        entry = self._entries.get(str(path))
        if entry is None or entry.identity != _identity(path):
            return None
        self.used |= str(path) in self._stored
        return entry.answer

    def add(self, path: Path, answer: Answer) -> None:
        """Remember an answer, if it came from this very file."""
        identity = _identity(path)
        if identity and os.path.realpath(answer.executable) == os.path.realpath(path):
            self._entries.pop(str(path), None)  # the latest come last
            self._entries[str(path)] = _Entry(identity=identity, answer=answer)
            self._stored.discard(str(path))
            self._changed = True

    def managed(self, version: str) -> Path | None:
        """Return uv's interpreter of this version, if it is still the same file."""
        path = Path(self._managed.get(version, ""))
        return path if self.get(path) else None

    def add_managed(self, version: str, path: Path) -> None:
        """Remember where uv's interpreter of this version is."""
        if self._managed.get(version) != str(path):
            self._managed[version] = str(path)
            self._changed = True

    def forget(self) -> None:
        """Drop everything, so that each interpreter is run again."""
        self._entries, self._managed, self._stored = {}, {}, set()
        self._changed, self.used = True, False

    def save(self) -> None:
        """Write what was learned; without a place to write it, the next command asks again."""
        if self._folder is None or not self._changed:
            return
        first = max(0, len(self._entries) - _MOST)
        latest = dict(islice(self._entries.items(), first, None))
        content = msgspec.json.encode(_Stored(answers=latest, managed=self._managed))
        with contextlib.suppress(OSError):
            files.ensure_folder(self._folder)
            files.write(self._folder / NAME, content, files.PRIVATE)


def _read(file: Path) -> _Stored:
    try:
        return decoding.from_json(files.read(file, _LARGEST), _Stored)
    except (OSError, msgspec.DecodeError, UnicodeError):  # a damaged file is replaced
        return _Stored()


def _identity(path: Path) -> tuple[int, ...]:
    """Return numbers that change with an interpreter's file or venv; empty if there is no file."""
    try:
        numbers = _stamp(path)
        for file in (path.parent / _VENV, path.parent.parent / _VENV):
            with contextlib.suppress(FileNotFoundError):
                numbers += _stamp(file)
    except (OSError, ValueError):
        return ()
    return numbers


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
