"""Search a repository's files and its README without running anything in the repository.

All content is untrusted. Links that lead out of the repository are not followed, and the number and
the size of the files that are read are limited.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import shlex
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.publishable import git
from envbuilder.core.settings import ProjectPath
from envbuilder.core.types import canonical
from envbuilder.project import code, notebooks, package
from envbuilder.project.forms import form_of
from envbuilder.project.lines import exists, is_valid, read_text
from envbuilder.project.names import distribution_of
from envbuilder.project.requirements_txt import logical

_MOST_ENTRIES = 200_000
_DEEPEST = 6
_MOST_TEXTS = 8
_MOST_COMMANDS = 2000
_LONGEST_LINE = 4000
"""Limits on reading an untrusted repository.

These are the maximum number of entries and levels in its tree, of text files of each kind, of
commands in a text file, and of characters in a line.
"""
_KEPT = re.compile(r".+\.(py|ipynb|sh|md|rst)|(?i:readme.*|.*dockerfile.*)")
"""Pattern of the code and documentation files that are read in addition to requirement files."""
_SKIPPED = re.compile(r"\..*|.*\.egg-info|node_modules|__pycache__|site-packages|envbuilder\.lock")
_README = re.compile(r"(?i)(readme(\.(md|rst|txt))?|install(ation)?\.(md|rst|txt))")
_DOCKERFILE = re.compile(r"(?i)(.*\.)?dockerfile(\..*)?")
_SCRIPT = re.compile(r"(?i)(install|setup)[\w-]*\.sh|.*\.ipynb")


def files(folder: Path) -> Iterator[str]:
    """Yield the relevant files of a repository, the top level first, sorted by name.

    Hidden folders, virtual environments, links to folders, and names that are not allowed in a
    project file are skipped.
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
                if not _SKIPPED.fullmatch(entry.name):
                    entries.append(entry)
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = f"{above}/{entry.name}" if above else entry.name
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEEPEST:
                    folders.append((path, depth + 1))
            elif (
                (_KEPT.fullmatch(entry.name) or form_of(entry.name))
                and is_valid(path, ProjectPath)
                and _is_file(entry)
            ):
                yield path


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def last_commit(folder: Path) -> date | None:
    """Return the date of a clone's last commit, or None if there is no clone or git fails.

    `git cat-file` does not run any hook, pager or program from the repository's configuration.
    """
    printed = git(folder, "--no-replace-objects", "cat-file", "commit", "HEAD") or ""
    committer = re.search(r"^committer .*> ([0-9]{1,12}) ", printed, re.MULTILINE)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(int(committer[1]), UTC).date() if committer else None
    return None


# Commands that a README, a Dockerfile or a script shows


class InstallHints(Struct, kw_only=True):
    """The packages that a repository's documentation and scripts say to install.

    The packages are in the order of the commands that install them, each with the place of its
    command. The commands may never have been tested.
    """

    files: dict[str, str] = {}
    """Files that the commands install from, each with the place that names the file."""
    itself: str = ""
    """The place of the command that installs the repository itself; empty if there is none."""
    chosen: dict[str, str] = {}
    """Extras and groups that the README installs with the repository, each with its place.

    Instead of names, there may be an option that selects all extras or groups.
    """
    recipe: dict[str, str] = {}
    """Other packages in the README's own recipe, each with its place.

    They are lines for pip, or conda packages with the prefix `CONDA`.
    """
    names: set[str] = set()
    """The normalized names of the repository. One of them is empty if its origin is unknown."""
    requirements: dict[str, str] = {}
    """Requirements that commands in any text file install, each with its place."""
    system: dict[str, str] = {}
    """Debian packages, each with its place."""
    programs: list[tuple[str, ...]] = []
    """Programs that the commands run with Python, each as the arguments of `python`."""

    @property
    def by_readme(self) -> bool:
        """Whether the command that installs the repository itself is in a README.

        This is false if only another file, such as a Dockerfile, contains the command.
        """
        return bool(_README.fullmatch(PurePosixPath(self.itself.partition(":")[0]).name))


CONDA = "conda::"
BASE = "'s base image"
"""Suffix of the place of a requirement that comes from the tag of a base image.

A framework release in such a tag is only a hint and cannot replace a list of requirements.
"""
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
    "python": re.compile(
        r"(?:python[\d.]*|(?:torchrun|accelerate\s+launch|deepspeed|uv\s+run)(?:\s+\S+)*?)\s+"
        r"(?=-m\s+\w|(?!setup\.py)[\w./-]+\.py\b)"
    ),
    "script": re.compile(r"(?:(?:source|bash|sh|\.)\s+(?:-\w+\s+)*|(?=\./))(?=\S+\.sh\b)"),
    "cd": re.compile(r"cd\s+(?=[\w.])"),
    "clone": re.compile(r"git\s+clone\s+(?=.*\S)"),
}
_WITH_VALUE = (
    r"-[ifcntprbPC]|--((extra-|default-)?index(-url)?|find-links|channel|name|target|prefix|root"
    r"|python|(constraint|override)s?|exclude-newer|requirement|file|only|without|no-group|no-extra)"
)
_SETTING = (
    r"--(resolution|prerelease|(no|only)-binary|cache-dir|timeout|retries|proxy|cert"
    r"|[a-z-]+-(action|backend|bar|host|mode|package|provider|settings?|strategy|version))"
)
"""Pattern of the options of pip, uv and conda that are followed by a value."""
_OPTION = re.compile(
    rf"(?<!\S)(?:(?:{_WITH_VALUE}|{_SETTING})[ =]\s*\S+|-(?!-all-(?:extras|groups))\S*)"
)
_CHOOSING = re.compile(r"(?<!\S)--(extra|group)[ =]\s*\S+")
_ENVIRONMENT = re.compile(r"(?<!\S)(?:-n|--name)[ =]\s*(\S+)")
_FILE = re.compile(r"(?<!\S)(?:-r|--requirement|--file|-f(?=\s+\S+\.ya?ml\b))[ =]?\s*(\S+)")
_PROSE = frozenset({"the", "required", "packages", "dependencies", "requirements", "it", "all"})
_CONDA = re.compile(r"(?:[\w/-]+::)?([A-Za-z][\w.-]*)(?:[=<>]{1,2}([0-9][\w.*,<>]*)(?:=.*)?)?")
_PACKAGE = {
    "pip": re.compile(
        r"([\w.-]+(\[.*\])? *@ *)?git\+\S+|https?://\S+\.(whl|zip|tar\.gz)"
        r"|[A-Za-z][A-Za-z0-9._-]*(\[[\w, .-]*\])?([=<>!~]=?=?[\w.*+,<>=!~]+)?"
    ),
    "own": re.compile(r"(?!)"),
    "apt": re.compile(r"[a-z0-9][a-z0-9+.-]+"),
    "env": _CONDA,
    "conda": _CONDA,
    "base": re.compile(
        r".*\b(pytorch|tensorflow)(?::|\S*?[:_-](?:pth|pytorch_))([0-9]\.[0-9]+(\.[0-9]+)?)(?![0-9.]).*"
    ),
}
"""Pattern of a package for each kind of command.

For base images, the pattern only matches tags that contain a framework's release, such as those of
NVIDIA's images.
"""
_CLONED = re.compile(
    r"((?:https?://|ssh://|git@)\S+?/([^/\s]+?)(?:\.git)?/?)(?:\s+(\w\S*))?(?:\s|\Z)"
)
_HEADING = re.compile(r"\s?(#{1,6})\s(.*)")
_INSTALLING = re.compile(
    r"(?i)install|set-?up\b|environment|requirement|dependenc|prerequisite|preparation"
    r"|(getting started|quick[ -]?start)[^\n]*\Z"
)
_ASIDE = re.compile(
    r"(?im)^ *#\s*(?:bash|sh|source)\s|\b(optional|experimental)|\balternativ|\boption [b-z2-9]\b"
    r"|^\W*or\b|\bor\W*\n"
)
_OTHER_PART = re.compile(
    r"(?i)contribut|\bdevelop(er|ment)|\btest(s|ing)?\b|troubleshoot|\bfaq\b|docker|windows|\bdocs?\b"
)
_ON_CONDITION = re.compile(r"(?i)\b(if|in case) (you|your|there|it)\b")
"""Patterns that distinguish the recipe from other commands.

They match headings of the recipe's section (`_INSTALLING`), words in headings and lines that do not
apply to every user (`_ASIDE`), headings of other sections (`_OTHER_PART`), and words in lines about
packages that only some users need (`_ON_CONDITION`).
"""


def install_hints(folder: Path, files: Collection[str]) -> InstallHints:
    """Return what a repository's READMEs, Dockerfiles, scripts and notebooks install."""
    taker = _Taker(folder)
    own = code.without_projects(files, ())
    upper = sorted((f.count("/"), f) for f in own if f.count("/") < 2)
    for kind in (_README, _DOCKERFILE, _SCRIPT):
        texts = [file for _, file in upper if kind.fullmatch(PurePosixPath(file).name)]
        for file in texts[:_MOST_TEXTS]:
            read = notebooks.code if file.endswith(".ipynb") else read_text
            with contextlib.suppress(InvalidError):
                commands = [*islice(_commands(read(folder, file), file), _MOST_COMMANDS)]
                recipe = [c for c in commands if _INSTALLING.search(c.section)] or commands
                is_main = kind is _README and "/" not in file.removeprefix("docs/")
                for command in commands:
                    taker.take(command, is_recipe=is_main and command in recipe)
    return taker.hints


class _Command(NamedTuple):
    """A command in a text file that installs or runs something."""

    kind: str
    arguments: str
    where: str
    section: str
    """The headings above the command, one per line."""
    beside: str
    """The line that contains the command, and the text above it."""


def _commands(text: str, file: str) -> Iterator[_Command]:
    titles = [file]
    is_code = False
    above = ""
    for number, whole in logical(text):
        line = whole[:_LONGEST_LINE]
        if file.endswith(".sh"):
            line = re.sub(r"\A\s*#.*", "", line)
        heading = _HEADING.match(line)
        if line.strip().startswith(("```", "~~~")):
            is_code = not is_code
        elif heading and not is_code:
            level = len(heading[1])
            titles[level:] = [""] * (level - len(titles))
            titles.append(heading[2] if above else "")  # the first is the repository's name
            above = "."
        else:
            beside = f"{above}\n{line}"
            above = line if line.strip() else above
            for start in _START.finditer(line):
                for kind, pattern in _KINDS.items():
                    if command := pattern.match(line, start.end()):
                        rest = re.split(r"`|&&|\|\||[;|]|\s#", line[command.end() :])[0]
                        where = file if file.endswith(".ipynb") else f"{file}:{number}"
                        yield _Command(kind, rest, where, "\n".join(titles), beside)
                        above = above if "`" in line else beside.partition("\n")[0]
                        break


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.replace('"', " ").replace("'", " ").split()


class _Taker:
    """Collector of the packages that commands install. It processes one command at a time."""

    def __init__(self, folder: Path) -> None:
        self.hints = InstallHints()
        self._folder = folder
        origin = git(folder, "config", "--get", "remote.origin.url") or ""
        names = [folder.resolve().name, PurePosixPath(origin.strip()).stem]
        with contextlib.suppress(InvalidError):
            names.append(package.read(folder).name)
        self.hints.names.update(map(canonical, names))
        self._clones: dict[str, str] = {}
        """URLs of other repositories that commands clone, by the folder of the clone."""
        self._inside = "."
        """The folder in which the commands currently run."""
        self._command = _Command("", "", "", "", "")
        self._is_recipe = False
        """Whether the current command is part of the README's recipe."""
        self._installs_itself = False
        """Whether a command of the recipe has installed the repository itself."""
        self._environments = set[str]()
        """Names of the recipe's conda environments. A second one belongs to another recipe."""

    def take(self, command: _Command, *, is_recipe: bool) -> None:
        """Process a command.

        `is_recipe` says whether the command is part of a README's installation instructions.
        """
        kind, arguments, _, section, beside = command
        if section != self._command.section:
            self._inside = "."
        self._command = command
        around = f"{section}\n{beside.replace(arguments, '')}"  # where extras have any name
        is_aside = _OTHER_PART.search(section) or _ASIDE.search(around)
        is_recipe = is_recipe and not is_aside
        if kind == "env" and is_recipe:
            self._environments.update(_ENVIRONMENT.findall(arguments))
        self._is_recipe = is_recipe and len(self._environments) < 2
        text = arguments if kind == "own" else _CHOOSING.sub(" ", arguments)
        words = _words(_OPTION.sub(" ", text))
        if kind == "clone":
            self._clone(arguments)
        elif kind == "cd":
            is_itself = canonical(posixpath.normpath(words[0])) in self.hints.names
            self._inside = "." if is_itself else self._path(words[0])
        elif kind == "python":
            program = arguments.split()
            program[0] = self._path(program[0])
            self.hints.programs.append(tuple(program[: 1 + program[0].count("-m")]))
        elif kind == "script":
            self._follow(self._path(words[0]))
        elif _PROSE.isdisjoint(words):
            self._install(kind, arguments, words)

    def _follow(self, script: str) -> None:
        """Process the commands in a script, except those that run other scripts.

        Do nothing if the command that runs the script is not part of the recipe.
        """
        section = self._command.section
        if not self._is_recipe:
            return
        self.hints.names.discard("")
        with contextlib.suppress(InvalidError):
            text = read_text(self._folder, script)
            for command in islice(_commands(text, script), _MOST_COMMANDS):
                if command.kind != "script":
                    self.take(command._replace(section=section), is_recipe=True)

    def _clone(self, text: str) -> None:
        """Record that a command clones another repository.

        If the origin of this repository is unknown, the first clone is assumed to be this
        repository.
        """
        if url := _CLONED.search(text):
            is_own = not self.hints.names.isdisjoint(("", canonical(url[2])))
            self.hints.names.discard("")
            branch = re.findall(r"(?:-b|--branch)[ =](\S+)", text)
            if not is_own:
                path = posixpath.normpath(posixpath.join(self._inside, url[3] or url[2]))
                self._clones[path] = "@".join([f"git+{url[1]}", *branch])

    def _clone_of(self, path: str) -> str:
        """Return the folder of the clone that contains a path, or an empty string if none does."""
        return next((clone for clone in self._clones if f"{path}/".startswith(f"{clone}/")), "")

    def _path(self, text: str) -> str:
        """Convert a path in a command's arguments to a path relative to the repository.

        The path is first looked up in the folder in which the command runs, then at the top level.
        """
        path = posixpath.normpath(posixpath.join(self._inside, text))
        is_there = self._clone_of(path) or exists(self._folder, path)
        is_inside = not path.startswith(("..", "/"))
        return path if is_there and is_inside else posixpath.normpath(text)

    def _install(self, kind: str, arguments: str, words: Iterable[str]) -> None:
        hints = self.hints
        where = self._command.where
        if kind == "own":
            words = [f".[{','.join(words)}]"]
        for file in _FILE.findall(arguments):
            path = self._path(file)
            if not self._clone_of(path):
                hints.files.setdefault(path, where)
                self._note(f"-r {path}")
        for word in words:
            package = _PACKAGE[kind].fullmatch(word)
            if re.match(r"(?!.*path/to/)(\.|[\w.-]+/)", word) and kind in {"pip", "own"}:
                self._take_folder(word)
            elif package and kind == "apt":
                hints.system.setdefault(word, where)
            elif kind == "pip" and canonical(re.split(r"[\[=<>!~]", word)[0]) in hints.names:
                self._take_itself(word.partition("[")[2])
            elif package:
                self._take_package(kind, package)
            elif "/" not in word:
                break  # prose

    def _take_package(self, kind: str, package: re.Match[str]) -> None:
        text = package[0]
        where = self._command.where
        if kind == "base":
            where = f"{where.partition(':')[0]}{BASE}"
        else:
            self._note(text if kind == "pip" else f"{CONDA}{text}")
        if kind != "pip":
            name = distribution_of(package[1].lower())
            text = f"{name}=={package[2]}" if name and package[2] else name
        if text:
            self.hints.requirements.setdefault(text, where)

    def _take_folder(self, text: str) -> None:
        """Record that a command installs the package in a folder.

        The folder may be the repository itself. Extras in brackets may follow the path in `text`.
        """
        folder, bracket, extras = text.partition("[")
        path = self._path(folder)
        if clone := self._clone_of(path):
            inside = path[len(clone) + 1 :]
            self._note("#subdirectory=".join(filter(None, [self._clones[clone], inside])))
        elif path != ".":
            self._note(f"./{path}{bracket}{extras}")
        else:
            self._take_itself(extras)

    def _take_itself(self, extras: str) -> None:
        """Record that a command installs the repository itself, by its folder or by its name."""
        self.hints.itself = self.hints.itself or self._command.where
        # What comes later is an alternative, or for some.
        if self._is_recipe and not self._installs_itself:
            self._installs_itself = True
            for name in re.findall(r"[\w.-]+", extras.partition("]")[0]):
                self.hints.chosen[name] = self._command.where

    def _note(self, text: str) -> None:
        """Add a line to the recipe if the current command is part of the recipe for all users."""
        if self._is_recipe and not _ON_CONDITION.search(self._command.beside):
            self.hints.recipe.setdefault(text, self._command.where)
