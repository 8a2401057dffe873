"""Read requirements.txt in pip's format, and lines in that format in other files.

Only requirements and constraints are used. Options for package sources are ignored with a note,
since profiles and the machine determine the sources. Hashes are dropped, since the lock has its own
hashes.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from envbuilder.core import decoding, types
from envbuilder.core.errors import InvalidError, escaped
from envbuilder.project.lines import (
    MOST,
    SHOWN,
    Dropped,
    Line,
    Listed,
    Needed,
    exists,
    is_location,
    joined,
    line,
    of_file,
    of_host,
    parse,
    parse_lenient,
    profile_decides,
    python_versions,
    read_text,
    require_public,
    sourced,
    split_marker,
    url_path,
)
from envbuilder.project.tables import mapping, parse_toml, texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

DEEPEST = 10
"""Maximum depth of files that include other files."""
_COMMENT = r"(^|\s)#.*\Z"
_COMMAND = r"(?:python[\d.]*\s+-m\s+)?pip3?\s+install\s+(?:(?:-[UIq]|--upgrade)\s+)*"
_VARIABLE = r"\$\{[A-Za-z0-9_]+\}"
_INCLUDE = r"(-[rc]|--(?:requirement|constraint)(?=[=\s]|\Z))\s*=?\s*(.*)\Z"
_OPTION = re.compile(r"(-[eif]|--?[A-Za-z][A-Za-z0-9-]*|-)[\s=]*(.*)\Z", re.DOTALL)
_HASH = r"\s--hash[=\s]\s*\S+"
_LATER_OPTION = r"\s(--?[A-Za-z][A-Za-z0-9-]*)"
_EDITABLE = frozenset({"-e", "--editable"})
_INDEXES = frozenset(
    {"-i", "--index-url", "--pypi-url", "--extra-index-url", "-f", "--find-links", "--no-index"}
)
_PUBLIC = r"https://pypi(\.python)?\.org(/simple)?/?\Z"
"""Pattern of the URL of the public index, which is the default for every list."""
_WITHOUT_EFFECT = {
    "--require-hashes": "",
    "--pre": "a pre-release is used if a line names one, such as name>=2.0rc1",
    "--prefer-binary": "packages are installed from wheels anyway",
    "--only-binary": "packages are installed from wheels anyway",
    "--no-binary": "packages are installed from wheels, unless build_from_source: lists them",
    "--trusted-host": "each machine's settings of pip or uv say which hosts it trusts",
    "--use-feature": "it only concerns pip",
    "--use-pep517": "it only concerns pip",
}
"""The reason why each of these options is ignored.

It is empty for options that apply to every lock anyway.
"""
_EGG_VERSION = r"-[0-9]+\.[0-9][\w.]*\Z"
"""Pattern of a version suffix that old versions of pip required, as in egg=shapely-1.7.1dev."""


def read_requirements_txt(project: Path, file: str) -> Listed:
    """Read the requirements in a file in pip's format.

    `file` is a path relative to the project. Raise `InvalidError` if the file is invalid.
    """
    reader = _Reader(project)
    reader.include(file, "", constrains=False)
    return reader.listed()


def read_lines(project: Path, file: str, lines: Iterable[tuple[str, str]]) -> Listed:
    """Read requirements from lines in pip's format that another kind of file contains.

    Each item of `lines` is a pair of the line's place, for use in messages, and the line's text.
    """
    reader = _Reader(project)
    reader.take(file, lines, constrains=False)
    return reader.listed()


def read_cog(project: Path, file: str) -> Listed:
    """Read the requirements in a cog.yaml; raise `InvalidError` if the file is invalid."""
    where = escaped(file)
    text = read_text(project, file)
    build = mapping(decoding.parse_yaml(text, where).get("build"))
    pairs = [
        (decoding.place(where, text, ["build", "python_packages", str(number)]), package)
        for number, package in enumerate(texts_of(build.get("python_packages")))
    ]
    if isinstance(included := build.get("python_requirements"), str):
        place = decoding.place(where, text, ["build", "python_requirements"])
        pairs.append((place, f"-r {shlex.quote(included)}"))
    notes = []
    for key in ("run", "pre_install"):
        if build.get(key):
            place = decoding.place(where, text, ["build", key])
            notes.append(Dropped(f"{place}: {key}: left out, since nothing is run."))
    version = build.get("python_version")
    about = Listed(
        pythons=python_versions(f"=={version}.*" if version else "", where),
        system=tuple(texts_of(build.get("system_packages"))),
        notes=tuple(notes),
    )
    return joined([about, read_lines(project, file, pairs)])


class _Reader:
    """Collector of requirements from lines. It reads each included file only once."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._open: list[str] = []
        self._finished: set[tuple[str, bool]] = set()
        self._requirements: list[Line] = []
        self._constraints: list[Line] = []
        self._pythons: list[Line] = []
        self._notes: list[str] = []
        self._itself: list[str] | None = None

    def listed(self) -> Listed:
        return Listed(
            requirements=tuple(self._requirements),
            constraints=tuple(self._constraints),
            pythons=tuple(self._pythons),
            itself=None if self._itself is None else tuple(dict.fromkeys(self._itself)),
            notes=tuple(filter(None, self._notes)),
        )

    def include(self, file: str, where: str, *, constrains: bool) -> None:
        if file in self._open:
            raise InvalidError(
                f"{where}: {escaped(file)} includes itself: "
                f"{escaped(' → '.join([*self._open, file]))}",
                "Delete one of the lines that include these files.",
            )
        if len(self._open) >= DEEPEST:
            raise InvalidError(
                f"{where}: {escaped(file)}: files include other files to a depth of more than"
                f" {DEEPEST}",
                "List the files directly.",
            )
        if (file, constrains) in self._finished:
            return
        text = read_text(self._project, file, where=where)
        self._open.append(file)
        numbered = ((f"{escaped(file)}:{number}", line) for number, line in logical(text))
        self.take(file, numbered, constrains=constrains)
        self._open.pop()
        self._finished.add((file, constrains))

    def take(self, file: str, lines: Iterable[tuple[str, str]], *, constrains: bool) -> None:
        for where, raw in lines:
            text = re.sub(_COMMENT, "", raw).strip().removesuffix(";").rstrip()
            if not text:
                continue
            if re.search(_VARIABLE, text):
                raise InvalidError(
                    f"{where}: {escaped(text, SHOWN)}: variables are not expanded, since a lock"
                    " must not depend on the machine that made it",
                    "Write the value instead of the variable.",
                )
            if command := re.match(_COMMAND, text):
                parts = re.split(r"(?<!-r)\s+(?!-|\S+://)", text[command.end() :])
                self.take(file, ((where, part) for part in parts), constrains=constrains)
            elif included := re.match(_INCLUDE, text):
                below = constrains or included[1] in {"-c", "--constraint"}
                self.include(_beside(file, included[2], where), where, constrains=below)
            elif option := _OPTION.match(text):
                if option[1] in _EDITABLE and option[2]:
                    self._add(file, option[2], where, constrains=constrains, located=True)
                else:
                    self._notes.append(_of_option(option[1], option[2], text, where))
            else:
                self._add(file, text, where, constrains=constrains, located=is_location(text))

    def _add(self, file: str, text: str, where: str, *, constrains: bool, located: bool) -> None:
        text = re.sub(_HASH, "", f"{text} ").strip()
        if later := re.search(_LATER_OPTION, text):
            note = f"{where}: {escaped(text, SHOWN)}: the option {later[1]} is left out."
            text = text[: later.start()].rstrip()
            self._notes.append(Dropped(note))
        if len(self._requirements) + len(self._constraints) >= MOST:
            raise InvalidError(f"{where}: more than {MOST} requirements")
        if constrains:
            parsed = parse(text, where)
            parsed.extras = set()  # a constraint is about versions only
            self._constraints.append(line(parsed, where))
            return
        required, note = self._located(file, text, where) if located else parse_lenient(text, where)
        self._notes.append(note)
        if required and required.name == "python" and not required.source:
            version = required.text.removeprefix("python").partition(";")[0]
            self._pythons += python_versions(version, where)
            self._notes.append(f"{where}: {required.text}: taken as the required Python.")
        elif required:
            self._requirements.append(required)

    def _located(self, file: str, text: str, where: str) -> tuple[Line | None, str]:
        """Parse a requirement that is only a location, such as a URL or path.

        Return the requirement and a note, which may be empty. The requirement is None if the
        location is the project itself. Raise `InvalidError` if no package name can be determined
        from the location.
        """
        location, marker = split_marker(text)
        location = re.sub(r"\A(git\+)?git@", "git+ssh://git@", location)
        location = re.sub(r"\Afile:(?!/)", "", location)
        require_public(location, where)
        path, _, fragment = location.partition("#")
        path, brackets = re.findall(r"\A(.*?)(\[[^\]]*\])?\Z", path, re.DOTALL)[0]
        name = of_file(path)[0]
        if egg := re.search(r"(?:\A|&)egg=([A-Za-z0-9._-]+)(\[[^\]&]*\])?", fragment):
            brackets = egg[2] or brackets
            name = re.sub(_EGG_VERSION, "", egg[1])
        note = ""
        if not re.match(r"[a-z+]+:/|git\+|[/~\\]", path, re.IGNORECASE):
            location = self._existing(file, path)
            if location == ".":
                extras = map(str.strip, brackets[1:-1].split(","))
                self._itself = [*(self._itself or ()), *filter(None, extras)]
                return None, (
                    f"{where}: {escaped(text, SHOWN)}: the project itself, whose requirements are"
                    " used. To make it importable everywhere, write install_project: true."
                )
            if not (name or any(exists(self._project, f"{location}/{each}") for each in _STATED)):
                note = Needed(
                    f"{where}: {escaped(text, SHOWN)}: this folder contains no package. If it is"
                    " a submodule, run git submodule update --init --recursive"
                )
            name_of_folder = self._name(location)  # always: a bundle then has a file there, too
            name = name or name_of_folder
        elif not name and (name := _repository(path)):
            note = f"{where}: {escaped(text, SHOWN)}: taken as {name}, by its location."
        if not name:
            raise InvalidError(
                f"{where}: {escaped(text, SHOWN)}: the location does not name a package",
                "Write name @ URL, or a released version.",
            )
        required, other = sourced(f"{name}{brackets}{marker}", location, text, where)
        return required, other or note

    def _existing(self, file: str, path: str) -> str:
        """Convert a local path that `file` contains to a path relative to the project.

        pip resolves such a path relative to the current folder, and uv relative to the folder of
        the file. Return the first of these paths that exists in the project. If neither exists,
        return the path as pip resolves it.
        """
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        for candidate in (posixpath.normpath(path), beside):
            is_inside = candidate != ".." and not candidate.startswith("../")
            if is_inside and exists(self._project, candidate):
                return candidate
        return posixpath.normpath(path)

    def _name(self, path: str) -> str:
        """Return the package name specified in a folder's files, or else the folder's name."""
        for name, pattern in _STATED.items():
            try:
                text = read_text(self._project, f"{path}/{name}")
                if name == "pyproject.toml":
                    project = mapping(parse_toml(text, name).get("project"))
                    text = f"name={project.get('name', '')}"
                elif constant := re.search(r"\bsetup\(\s*name\s*=\s*([A-Za-z_]\w*)", text):
                    text = text.replace(constant[1], "name")
                elif name == "setup.py":
                    text = text[text.rfind("setup(") :]
            except InvalidError:
                continue
            if matched := pattern.search(text):
                return matched[1]
        return types.canonical(posixpath.basename(path))


_STATED = {
    "pyproject.toml": re.compile(r"name=([A-Za-z0-9][\w.-]*)\Z"),
    "setup.cfg": re.compile(r"^name\s*=\s*([A-Za-z0-9][\w.-]*)\s*$", re.MULTILINE),
    "setup.py": re.compile(r"\bname\s*=\s*[\"']([A-Za-z0-9][\w.-]*)[\"']"),
}
"""Pattern of the package's name in each kind of file that defines a package."""


def _repository(location: str) -> str:
    """Return the name of the repository or archive in a URL.

    Return an empty string if the URL contains neither.
    """
    path = url_path(location)
    if archive := re.match(r"/[^/]+/([^/]+)/(archive|tarball|zipball)/", path):
        return types.canonical(archive[1])
    if not location.lower().startswith("git+"):
        return ""
    last = posixpath.basename(re.sub(r"@[^@]*\Z", "", path).rstrip("/")).removesuffix(".git")
    return types.canonical(last) if re.match(r"[A-Za-z0-9][\w.-]*\Z", last) else ""


def logical(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield numbered lines, joining a line that ends in `\` with the next line, as pip does."""
    start = ""
    first = 0
    for number, content in enumerate(text.splitlines(), 1):
        first = first if start else number
        is_comment = re.match(_COMMENT, content)
        if content.endswith("\\") and not is_comment:
            start += content[:-1]
            continue
        yield first, f"{start}{' ' if is_comment else ''}{content}"
        start = ""
    if start:
        yield first, start


def _beside(file: str, target: str, where: str) -> str:
    """Return the path, relative to the project, of a file that another file includes.

    Raise `InvalidError` if the path is not valid.
    """
    words = []
    with suppress(ValueError):
        words = shlex.split(target)
    if len(words) != 1:
        raise InvalidError(
            f"{where}: {escaped(target, SHOWN) or 'nothing'}: expected the path of one file",
            "Write, for example, -r other.txt",
        )
    if "://" in words[0]:
        raise InvalidError(
            f"{where}: {escaped(words[0], SHOWN)} is a URL, but only files in the project are read",
            "Save the file in the project, and name it here.",
        )
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), words[0]))


def _of_option(option: str, value: str, text: str, where: str) -> str:
    """Return the note on a line that contains an option, or an empty string if none is needed.

    Raise `InvalidError` if the option is unknown.
    """
    shown = f"{where}: {escaped(text, SHOWN)}"
    if option in _WITHOUT_EFFECT:
        reason = _WITHOUT_EFFECT[option]
        return Dropped(f"{shown}: left out: {reason}.") if reason else ""
    if option not in _INDEXES:
        raise InvalidError(
            f"{shown}: the option {escaped(option, 40)} is not supported", "Delete the line."
        )
    require_public(value, where)
    if framework := of_host(value):
        return Dropped(f"{shown}: left out, since {profile_decides(framework)}.")
    if re.match(_PUBLIC, value):
        return ""  # what pip and uv are set up with is that one, or stands for it
    return Dropped(
        f"{shown}: left out, since each machine's settings of pip or uv say where packages come"
        " from, for example pip config set global.index-url URL."
    )
