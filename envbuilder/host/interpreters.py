"""Find a Python interpreter from which to build environments. Candidates are run, not only located.

A file named python3.11 may be a pyenv shim that fails, another version, a build for another
architecture under Rosetta, or part of a venv that will be deleted. Therefore, each candidate is run
to identify it, and an interpreter in a venv is replaced by the interpreter from which the venv was
created.

Running interpreters takes longer than everything else that `run` does before it starts its command.
Therefore, the answers of the interpreters are cached until the files change. An answer is valid
only for the file that gave it. If a candidate starts another program that gives the answer, the
answer is not cached, because pyenv's shims choose an interpreter each time.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, files, process
from envbuilder.core.errors import ToolError, first

Runner = Callable[..., process.Completed]

_FILE = "answers.json"
_VENV = "pyvenv.cfg"
"""Name of the file that marks a venv. It is in the interpreter's folder or one folder above."""
SECONDS = 10.0
_MOST_REJECTED = 6
"""Maximum number of interpreters that an error message lists. A user's PATH may have dozens."""
# Runs in any Python 3. _base_executable is the executable of a venv's base, but before 3.11 it
# names the venv's own.
_QUESTION = """
import json, os, platform, sys, sysconfig
v = sys.version_info
c = sysconfig.get_config_var
library = os.path.join(c("PYTHONFRAMEWORKPREFIX") or c("LIBDIR") or "", c("INSTSONAME") or "")
print(json.dumps({
    "version": "%d.%d.%d" % v[:3], "final": v[3] == "final",
    "bits": 64 if sys.maxsize > 2**32 else 32,
    "implementation": sys.implementation.name, "machine": platform.machine(),
    "free_threaded": bool(c("Py_GIL_DISABLED")),
    "library": library if c("PYTHONFRAMEWORK") or c("Py_ENABLE_SHARED") else "",
    "executable": sys.executable, "base_executable": getattr(sys, "_base_executable", None),
    "prefix": sys.prefix, "base_prefix": sys.base_prefix,
}))
"""


class Answer(Struct, frozen=True, kw_only=True):
    """The data that an interpreter reports about itself."""

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
    library: str = ""
    """Path of the interpreter's shared library; empty if the executable itself contains the
    library."""


class _Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    identity: tuple[int, ...]
    answer: Answer


class _Stored(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal[2] = 2
    answers: dict[str, _Entry] = {}
    managed: dict[str, str] = {}


class Answers:
    """The answers of interpreters, keyed by path.

    If a folder is given, the answers are cached in it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        stored = _Stored() if folder is None else _read(folder / _FILE)
        self._entries = dict(stored.answers)
        self._managed = dict(stored.managed)
        self._changed = False

    def get(self, path: Path) -> Answer | None:
        """Return an interpreter's cached answer, or None if there is no answer or it is outdated.

        An answer is outdated if the interpreter's file, library or venv has changed.
        """
        entry = self._entries.get(str(path))
        if entry is None or entry.identity != _identity(path, entry.answer.library):
            return None
        return entry.answer

    def add(self, path: Path, answer: Answer) -> None:
        """Cache an answer if it was given by the file at `path` itself.

        A program that starts another interpreter passes on the answer of that interpreter. Such an
        answer is not cached.
        """
        identity = _identity(path, answer.library)
        if identity and os.path.realpath(answer.executable) == os.path.realpath(path):
            self._entries[str(path)] = _Entry(identity=identity, answer=answer)
            self._changed = True

    def managed(self, version: str) -> Path | None:
        """Return the cached path of the interpreter of the given version that uv has installed.

        Return None if the path is unknown or the interpreter has changed.
        """
        path = Path(self._managed.get(version, ""))
        return path if self.get(path) else None

    def add_managed(self, version: str, path: Path) -> None:
        """Cache the path of the interpreter of the given version that uv has installed."""
        if self._managed.get(version) != str(path):
            self._managed[version] = str(path)
            self._changed = True

    def forget(self) -> None:
        """Drop all cached answers, so that each interpreter is run again when it is needed."""
        self._entries = {}
        self._managed = {}
        self._changed = True

    def save(self) -> None:
        """Write the cache to disk.

        Errors are ignored. The next command then runs the interpreters again.
        """
        if self._folder is None or not self._changed:
            return
        content = msgspec.json.encode(_Stored(answers=self._entries, managed=self._managed))
        with suppress(OSError):
            files.ensure_folder(self._folder)
            files.write(self._folder / _FILE, content, files.PRIVATE)


def _read(file: Path) -> _Stored:
    try:
        return decoding.from_json(file.read_bytes(), _Stored)
    except (OSError, ValueError):  # a damaged file is replaced
        return _Stored()


def _identity(path: Path, library: str) -> tuple[int, ...]:
    """Return numbers that change when an interpreter's file, library or venv changes.

    Return an empty tuple if the interpreter's file or library is missing.
    """
    try:
        numbers = _stamp(path)
        if library:
            numbers += _stamp(Path(library))
        for file in (path.parent / _VENV, path.parent.parent / _VENV):
            with suppress(FileNotFoundError):
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


class Interpreter(Struct, frozen=True, kw_only=True):
    """A CPython interpreter that was run and identified itself. It is never part of a venv."""

    path: Path
    version: str
    """The version, in the form X.Y.Z."""


class _RejectedError(Exception):
    """Raised if a candidate interpreter cannot be used. The message contains the reason."""


def find(
    version: str | None,
    supported: Sequence[str],
    machine: str,
    *,
    runner: Runner = process.run,
    environ: Mapping[str, str] = os.environ,
    answers: Answers | None = None,
) -> Interpreter:
    """Return the interpreter from which to build.

    If `version` (such as 3.12) is None, the first version in `supported` is tried first, followed
    by the others, newest first. `machine` is the architecture as Python spells it. A candidate that
    has an answer in `answers` is not run. The answers of other candidates are added to `answers`.
    Raise `ToolError` if no interpreter is suitable. The error lists the interpreters that were
    found, and why each of them was rejected.
    """
    known = Answers() if answers is None else answers
    search = _Search(_spelled(machine), runner, environ, known)
    versions = [version] if version else _order(supported)
    for look in (search.installed, search.managed):
        for release in versions:
            if interpreter := look(release):
                return interpreter
    raise ToolError(
        f"no Python {' or '.join(versions)} for {machine} was found{search.rejections()}",
        f"Run `python -m uv python install {versions[0]}` to install one with uv, or set python:"
        " in envbuilder.yaml to another version.",
    )


def _order(supported: Sequence[str]) -> list[str]:
    first = supported[0]
    others = sorted({*supported} - {first}, key=lambda v: int(v.rpartition(".")[2]), reverse=True)
    return [first, *others]


class _Search(Struct):
    """A search for an interpreter.

    The search remembers the result for each candidate, since several names can refer to the same
    file.
    """

    _machine: str
    _runner: Runner
    _environ: Mapping[str, str]
    _answers: Answers
    _judged: dict[Path, Interpreter | str] = {}

    def installed(self, version: str) -> Interpreter | None:
        """Return the first usable interpreter of the given version on this machine, or None."""
        return self._first(self._candidates(version), version)

    def managed(self, version: str) -> Interpreter | None:
        """Return the interpreter of the given version that uv has installed, or None.

        This method is tried last, because it runs uv.
        """
        path = self._answers.managed(version) or self._located(version)
        if path is None:
            return None
        interpreter = self._first([path], version)
        if interpreter is not None:
            self._answers.add_managed(version, path)
        return interpreter

    def _located(self, version: str) -> Path | None:
        """Return the path that uv reports for an interpreter that uv has installed.

        Return None if uv fails or reports no path.
        """
        options = "--managed-python --no-python-downloads --offline --no-project --no-config"
        try:
            done = process.run_uv(
                [process.uv_path(), "python", "find", *options.split(), version],
                runner=self._runner,
                timeout=SECONDS,
            )
        except (ToolError, OSError):
            return None
        line = done.stdout.strip()
        return Path(line) if done.returncode == 0 and line else None

    def rejections(self) -> str:
        """Return the rejected candidates and the reasons, formatted for an error message.

        The result is empty if no candidate was rejected.
        """
        texts = [
            f"{path} ({answer if isinstance(answer, str) else 'Python ' + answer.version})"
            for path, answer in self._judged.items()
        ]
        if texts:
            return f" (found, but unusable: {first(texts, _MOST_REJECTED)})"
        return ""

    def _candidates(self, version: str) -> Iterator[Path]:
        if sys.executable:
            yield Path(sys.executable)
        folders = list(filter(None, self._environ.get("PATH", "").split(os.pathsep)))
        for name in (f"python{version}", "python3"):
            for folder in folders:
                yield Path(folder, name)
        home = self._environ.get("HOME")
        roots = [self._environ.get("PYENV_ROOT"), f"{home}/.pyenv" if home else None]
        for root in dict.fromkeys(filter(None, roots)):
            installed = Path(root).glob(f"versions/*/bin/python{version}")
            yield from sorted(installed, key=_patch, reverse=True)

    def _first(self, candidates: Iterator[Path] | list[Path], version: str) -> Interpreter | None:
        for path in candidates:
            if path.is_file() and os.access(path, os.X_OK):
                found = self._judgement(path)
                if not isinstance(found, str) and found.version.rpartition(".")[0] == version:
                    return found
        return None

    def _judgement(self, path: Path) -> Interpreter | str:
        # Resolve the folder, not the file: a venv's python is a link to its base.
        key = path.parent.resolve() / path.name
        if key not in self._judged:
            try:
                self._judged[key] = self._identified(path)
            except _RejectedError as error:
                self._judged[key] = str(error)
        return self._judged[key]

    def _identified(self, path: Path) -> Interpreter:
        """Identify an interpreter or, if it is in a venv, the venv's base interpreter.

        Raise `_RejectedError` if the interpreter cannot be used.
        """
        answer = self._answer(path)
        if answer.prefix != answer.base_prefix:
            answer = self._base(answer)
        if answer.implementation != "cpython":
            raise _RejectedError(f"is {answer.implementation}, not CPython")
        if answer.free_threaded:
            raise _RejectedError(f"is a free-threaded build of {answer.version}")
        if not answer.final:
            raise _RejectedError(f"is a pre-release of {answer.version}")
        if answer.bits != 64 or _spelled(answer.machine) != self._machine:
            raise _RejectedError(f"is {answer.version} for {answer.machine} ({answer.bits}-bit)")
        return Interpreter(
            path=Path(answer.executable),
            version=answer.version,
        )

    def _base(self, inside: Answer) -> Answer:
        minor = ".".join(inside.version.split(".")[:2])
        folder = Path(inside.base_prefix) / "bin"
        known = [Path(inside.base_executable)] if inside.base_executable else []
        for path in (*known, folder / f"python{minor}", folder / "python3"):
            if path.is_relative_to(inside.prefix) or not path.is_file():
                continue
            try:
                answer = self._answer(path)
            except _RejectedError:
                continue
            if answer.prefix == answer.base_prefix and answer.version == inside.version:
                return answer
        raise _RejectedError(
            f"is in a venv whose base Python, in {inside.base_prefix}, cannot be run"
        )

    def _answer(self, path: Path) -> Answer:
        answer = self._answers.get(path)
        if answer is None:
            answer = self._ask(path)
            self._answers.add(path, answer)
        return answer

    def _ask(self, path: Path) -> Answer:
        try:
            done = self._runner([str(path), "-I", "-c", _QUESTION], timeout=SECONDS)
        except (ToolError, OSError) as error:
            raise _RejectedError(f"cannot be run: {error}") from error
        if done.timed_out:
            raise _RejectedError(f"did not answer within {SECONDS:.0f} s")
        if done.returncode != 0:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            said = f": {words[0][:100]}" if words else ""
            raise _RejectedError(f"failed with exit status {done.returncode}{said}")
        try:
            return decoding.from_json(done.stdout, Answer)
        except ValueError as error:
            raise _RejectedError("is not a Python interpreter") from error


def _patch(installed: Path) -> tuple[int, ...]:
    """Return the version numbers in the folder name of a pyenv installation."""
    return tuple(map(int, re.findall(r"[0-9]{1,9}", installed.parts[-3])))


def _spelled(machine: str) -> str:
    """Return the normalized name of an architecture, for comparisons.

    macOS uses arm64 for what Linux calls aarch64, and some systems use AMD64 instead of x86_64.
    """
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine.lower())
