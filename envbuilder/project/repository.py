"""Look through a repository without running anything of it: its files, and what its README says.

All of it is somebody else's: links are not followed out of it, and everything has a limit.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import sys
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError
from envbuilder.core.publishable import git
from envbuilder.core.settings import ProjectPath
from envbuilder.core.types import DebianPackage
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
_KEPT = re.compile(r".+\.(py|sh|md|rst)|(?i:readme.*|.*dockerfile.*)")
"""Code and texts, in addition to what requirements are read from."""
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "envbuilder.lock"})
_README = re.compile(r"(?i)(readme(\.(md|rst|txt))?|install(ation)?\.(md|rst|txt))")
_DOCKERFILE = re.compile(r"(?i)(.*\.)?dockerfile(\..*)?")
_SCRIPT = re.compile(r"(?i)(install|setup)[\w-]*\.sh")


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


_START = re.compile(
    r"(?:^[\s$>#!%*+.)\-\d]*(?:RUN\s+)?|`+\s*|&&\s*|;\s*|\|\|\s*)(?:sudo\s+|-\S+\s+|[A-Z_]+=\S+\s+)*"
)
_PIP = re.compile(r"(?:(?:python[\d.]*|py)\s+-m\s+)?(?:uv\s+)?pip[\d.]*\s+install\s+")
_KINDS = {
    "pip": _PIP,
    "env": re.compile(r"(?:conda|mamba|micromamba)\s+(?:env\s+)?(?:create|update)\s+"),
    "conda": re.compile(r"(?:conda|mamba|micromamba)\s+install\s+"),
    "own": re.compile(
        r"(?:python[\d.]*\s+setup\.py\s+(?:install|develop)|(?:poetry|pdm)\s+install|uv\s+sync)\b"
    ),
    "apt": re.compile(r"apt(?:-get)?\s+(?:-\S+\s+)*install\s+"),
    "python": re.compile(r"python[\d.]*\s+(?=-m\s+\w|[\w./-]+\.py\b)"),
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
_REQUIREMENT = re.compile(r"[A-Za-z][A-Za-z0-9._-]*(\[[\w, .-]*\])?([=<>!~]=?=?[\w.*+,<>=!~]+)?")
_CONDA = re.compile(r"(?:[\w-]+::)?([A-Za-z][A-Za-z0-9._-]*)(?:=([0-9][\w.]*)(?:=.*)?)?")


def install_hints(folder: Path, files: Iterable[str]) -> InstallHints:
    """Return what the README, Dockerfiles and scripts of a repository install."""
    result = InstallHints()
    upper = sorted((f.count("/"), f) for f in files if f.count("/") < 2)
    for kind in (_README, _DOCKERFILE, _SCRIPT):
        texts = [file for _, file in upper if kind.fullmatch(PurePosixPath(file).name)]
        for file in texts[:_MOST_TEXTS]:
            with contextlib.suppress(InvalidError):
                for command, words in _commands(read_text(folder, file)):
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
        elif kind == "conda" and (spec := _CONDA.fullmatch(word)):
            _take_conda(hints, spec[1], spec[2], where)
        elif not word.startswith("-") and "/" not in word:
            return  # prose


def _take_conda(hints: InstallHints, name: str, version: str | None, where: str) -> None:
    """Take a conda package by its name on the index; nothing, if no table says that it has one."""
    if distribution := distribution_of(name.lower()):
        text = f"{distribution}=={version}" if version else distribution
        hints.requirements.setdefault(text, where)


def _path(text: str) -> str:
    return str(PurePosixPath(text)) if text else ""


# Its own Python code: what it imports, and its program


_MOST_FILES = 400
_LARGEST_FILE = 1 << 18
_MOST_BYTES = 8 << 20
"""What is read of the code, which the repository's authors wrote: files, bytes of each, of all."""


def imports(folder: Path, files: Sequence[str]) -> tuple[str, ...]:
    """Return the modules of others that a repository's code imports, the most frequent first.

    Neither the standard library's nor its own: a module or folder of that name somewhere in it.
    """
    code = [file for file in files if file.endswith(".py")]
    local_names = {part.removesuffix(".py") for file in code for part in PurePosixPath(file).parts}
    counts = Counter[str]()
    left = _MOST_BYTES
    for file in islice(code, _MOST_FILES):
        if left > 0 and not _is_aside(PurePosixPath(file)):
            try:
                text = read_text(folder, file, _LARGEST_FILE)
            except InvalidError:
                continue
            left -= len(text)
            counts.update({*_imported(text)})
    return tuple(name for name, _ in counts.most_common() if name not in local_names)


def _imported(text: str) -> Iterator[str]:
    """Yield the top-level names of modules that a file imports, none of the standard library."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        names = list[str]()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for module in names:
            name = module.partition(".")[0]
            if name not in sys.stdlib_module_names and name.isascii() and not name.startswith("_"):
                yield name


# The program of a folder

_GUARD = re.compile(r"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)
_NEVER = re.compile(
    r"(__.*|setup|conftest|noxfile|tasks|hubconf|config|utils|models?|datasets?)\.py|(.*_)?tests?(_.*)?\.py"
    r"|(download|convert|prepare|preprocess|export|install|get|make|create|build|plot)_?.*\.py"
)
_USUAL = ("train.py", "main.py", "run.py", "training.py", "app.py")
_MOST_SCRIPTS = 200
"""Scripts at the top, written by the repository's authors, that are looked into."""


def program_arguments(
    folder: Path, files: Sequence[str], programs: Sequence[Sequence[str]] = ()
) -> tuple[str, ...]:
    """Return what follows `python` to run the program of a repository; empty if it is unclear.

    `train.py` and the like come first, then the `programs` that its texts show, then the only one
    that is meant to be run.
    """
    top = [file for file in files if "/" not in file and file.endswith(".py")]
    scripts = [file for file in top if not _NEVER.fullmatch(file)]
    for usual in _USUAL:
        if usual in scripts:
            return (usual,)
    present = {*files}
    for words in programs:
        module = words[-1].replace(".", "/")
        path = str(PurePosixPath(words[0]))
        if words[0] == "-m" and {f"{module}.py", f"{module}/__main__.py"} & present:
            return tuple(words)
        if path in present and not _NEVER.fullmatch(PurePosixPath(path).name):
            return (path,)
    packages = [file for file in files if re.fullmatch(r"[^\W\d]\w*/__main__\.py", file)]
    guarded = [file for file in scripts[:_MOST_SCRIPTS] if _is_program(folder, file)]
    candidates = [*packages, *guarded] or scripts
    if len(candidates) != 1:
        return ()
    if packages:
        return ("-m", packages[0].removesuffix("/__main__.py"))
    return (candidates[0],)


def _is_aside(path: PurePosixPath) -> bool:
    return path.name in {"setup.py", "conftest.py"} or any(
        re.fullmatch(r"docs?|tests?", part) for part in path.parts[:-1]
    )


def _is_program(folder: Path, file: str) -> bool:
    try:
        return _GUARD.search(read_text(folder, file, _LARGEST_FILE)) is not None
    except InvalidError:
        return False
