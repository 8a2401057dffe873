"""Look through a repository without running anything of it: its files, and what its README says.

All of it is somebody else's: links are not followed out of it, and everything has a limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError
from envbuilder.core.publishable import git
from envbuilder.core.settings import ProjectPath
from envbuilder.core.types import DebianPackage
from envbuilder.project import notebooks
from envbuilder.project.forms import form_of
from envbuilder.project.lines import read_text
from envbuilder.project.names import distribution_of

_MOST_ENTRIES = 200_000
_DEEPEST = 6
_MOST_TEXTS = 8
_MOST_COMMANDS = 2000
_LONGEST_LINE = 4000
"""What is read of a repository, whose authors wrote it: entries and levels of its tree, texts of
each kind, commands in them, characters of a line."""
_KEPT = re.compile(r".+\.(py|ipynb|sh|md|rst)|(?i:readme.*|.*dockerfile.*)")
"""Code and texts, in addition to what requirements are read from."""
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "envbuilder.lock"})
_README = re.compile(r"(?i)(readme(\.(md|rst|txt))?|install(ation)?\.(md|rst|txt))")
_DOCKERFILE = re.compile(r"(?i)(.*\.)?dockerfile(\..*)?")
_SCRIPT = re.compile(r"(?i)(install|setup)[\w-]*\.sh|.*\.ipynb")


def files(folder: Path) -> Iterator[str]:
    """Yield the files of a repository that may say something, the upper ones first, by name.

    Not those in hidden folders, environments and links to folders; none whose name a project's file
    could not hold.
    """
    folders = deque([("", 0)])
    seen = 0
    while folders and seen < _MOST_ENTRIES:
        above, depth = folders.popleft()
        entries: list[os.DirEntry[str]] = []
        with contextlib.suppress(OSError), os.scandir(folder / above) as found:
            for entry in found:
                seen += 1
                if seen >= _MOST_ENTRIES:
                    break
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    entries.append(entry)
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = f"{above}/{entry.name}" if above else entry.name
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEEPEST:
                    folders.append((path, depth + 1))
            elif _says_something(entry.name) and _is_valid(path, ProjectPath) and _is_file(entry):
                yield path


def _says_something(name: str) -> bool:
    return bool(_KEPT.fullmatch(name) or form_of(name))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_valid(value: object, kind: object) -> bool:
    try:
        decoding.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def last_commit(folder: Path) -> date | None:
    """Return the day of the last commit of a clone; None if there is none, or git cannot say.

    `git cat-file` runs no hook, pager or program of a repository's own configuration.
    """
    printed = git(folder, "--no-replace-objects", "cat-file", "commit", "HEAD") or ""
    committer = re.search(r"^committer .*> ([0-9]{1,12}) ", printed, re.MULTILINE)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(int(committer[1]), UTC).date() if committer else None
    return None


# Commands that a README, a Dockerfile or a script shows


class InstallHints(Struct, kw_only=True):
    """What commands in texts install, in order. Suggestions: nobody may ever have run them."""

    files: dict[str, str] = {}
    """Files that they install from → the text that names them."""
    itself: str = ""
    """The text that installs the repository itself; empty if none does."""
    requirements: dict[str, str] = {}
    """Requirements → the text that names them."""
    system: dict[str, str] = {}
    """Debian packages → the text that names them."""
    programs: list[tuple[str, ...]] = []
    """What they start with Python."""


BASE = "'s base image"
"""What the place of the framework's release in a base image ends with: a hint, no list."""
_START = re.compile(
    r"(?:^[\s$>#!%*+.)\-\d]*(?:RUN\s+)?|`+\s*|&&\s*|;\s*|\|\|\s*)(?:sudo\s+|-\S+\s+|[A-Z_]+=\S+\s+)*"
)
_PIP = re.compile(
    r"(?:(?:python[\d.]*|py|\{sys\.executable\})\s+-m\s+)?(?:uv\s+)?pip[\d.]*\s+install\s+"
)
_KINDS = {
    "pip": _PIP,
    "env": re.compile(r"(?:conda|mamba|micromamba)\s+(?:env\s+)?(?:create|update)\s+"),
    "conda": re.compile(r"(?:conda|mamba|micromamba)\s+install\s+"),
    "own": re.compile(
        r"(?:python[\d.]*\s+setup\.py\s+(?:install|develop)|(?:poetry|pdm)\s+install|uv\s+sync)\b"
    ),
    "base": re.compile(r"FROM\s+(?=\S)"),
    "apt": re.compile(r"apt(?:-get)?\s+(?:-\S+\s+)*install\s+"),
    "python": re.compile(r"python[\d.]*\s+(?=-m\s+\w|(?!setup\.py)[\w./-]+\.py\b)"),
}
_WITH_VALUE = re.compile(
    r"-[ifcntpbPC]|--((extra-|default-)?index(-url)?|find-links|channel|name|target|prefix|root|python"
    r"|(constraint|override)s?|exclude-newer|extra|group)"
)
_SETTING = re.compile(
    r"--(resolution|prerelease|(no|only)-binary|cache-dir|timeout|retries|proxy|cert"
    r"|[a-z-]+-(action|backend|bar|host|mode|package|provider|settings?|strategy|version))"
)
"""Options of pip, uv and conda whose value is the next word."""
_REQUIREMENT = re.compile(
    r"([\w.-]+(\[.*\])? *@ *)?git\+\S+"
    r"|[A-Za-z][A-Za-z0-9._-]*(\[[\w, .-]*\])?([=<>!~]=?=?[\w.*+,<>=!~]+)?"
)
_SPECS = {
    "conda": re.compile(r"(?:[\w-]+::)?([A-Za-z][A-Za-z0-9._-]*)(?:=([0-9][\w.]*)(?:=.*)?)?"),
    "base": re.compile(
        r".*\b(pytorch|tensorflow)(?::|\S*?[:_-](?:pth|pytorch_))([0-9]\.[0-9]+(\.[0-9]+)?)(?![0-9.]).*"
    ),
}
"""A package of conda, or a base image whose tag states a framework's release: NVIDIA's do not."""


def install_hints(folder: Path, files: Iterable[str]) -> InstallHints:
    """Return what the README, Dockerfiles, scripts and notebooks of a repository install."""
    result = InstallHints()
    upper = sorted((f.count("/"), f) for f in files if f.count("/") < 2)
    for kind in (_README, _DOCKERFILE, _SCRIPT):
        texts = [file for _, file in upper if kind.fullmatch(PurePosixPath(file).name)]
        for file in texts[:_MOST_TEXTS]:
            read = notebooks.code if file.endswith(".ipynb") else read_text
            with contextlib.suppress(InvalidError):
                for command, words in _commands(read(folder, file)):
                    _take(result, command, words, file)
    return result


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands in a text that install or start something, each with its words."""
    count = 0
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        for start in _START.finditer(line[:_LONGEST_LINE]):
            for kind, pattern in _KINDS.items():
                if command := pattern.match(line, start.end()):
                    count += 1
                    if count > _MOST_COMMANDS:
                        return
                    rest = re.split(r"`|&&|\|\||[;|]|\s#", line[command.end() : _LONGEST_LINE])[0]
                    yield kind, _words(rest)
                    break


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.replace('"', " ").replace("'", " ").split()


def _take(hints: InstallHints, kind: str, words: list[str], where: str) -> None:
    """Take what a command installs."""
    if kind == "python":
        program = ("-m", words[1]) if words[0] == "-m" else (words[0],)
        hints.programs.append(program)
        return
    if kind == "own":
        hints.itself = hints.itself or where
        return
    given = iter(words)
    for word in given:
        option, _, value = word.partition("=")
        if option in {"-r", "--requirement", "--file"} or (option == "-f" and kind == "env"):
            hints.files.setdefault(_path(value or next(given, "")), where)
        elif re.match(r"-r.", word):
            hints.files.setdefault(_path(word[2:]), where)
        elif _WITH_VALUE.fullmatch(option) or _SETTING.fullmatch(option):
            value or next(given, None)
        elif kind == "pip" and re.fullmatch(r"\.(/)?(\[.*\])?", word):
            hints.itself = hints.itself or where
        elif kind == "apt" and _is_valid(word, DebianPackage):
            hints.system.setdefault(word, where)
        elif kind == "pip" and _REQUIREMENT.fullmatch(word):
            hints.requirements.setdefault(word, where)
        elif kind in _SPECS and (spec := _SPECS[kind].fullmatch(word)):
            _take_conda(hints, spec[1], spec[2], f"{where}{BASE}" if kind == "base" else where)
        elif not word.startswith("-") and "/" not in word:
            return  # prose


def _take_conda(hints: InstallHints, name: str, version: str | None, where: str) -> None:
    """Take a conda package by its name on the index; nothing, if no table says that it has one."""
    if distribution := distribution_of(name.lower()):
        text = f"{distribution}=={version}" if version else distribution
        hints.requirements.setdefault(text, where)


def _path(text: str) -> str:
    return str(PurePosixPath(text)) if text else ""
