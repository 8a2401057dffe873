"""Read requirements.txt and the files that it includes, in the form that pip reads.

Only requirements and constraints count. Options that choose where packages come from are refused,
since the lock states that; hashes are dropped, since the lock has hashes of its own.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped
from envbuilder.project.requirement_files import requirement, text_file
from envbuilder.project.requirement_files.listed import Line, Listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

DEEPEST = 10
"""Maximum depth of files that include others."""

_COMMENT = re.compile(r"(^|\s)#.*\Z")
_VARIABLE = re.compile(r"\$\{[A-Za-z0-9_]+\}")
_INCLUDE = re.compile(r"(-[rc]|--(?:requirement|constraint)(?=[=\s]|\Z))\s*=?\s*(.*)\Z")
_OPTION = re.compile(r"(--?[A-Za-z][A-Za-z0-9-]*)\s*=?\s*(.*)\Z", re.DOTALL)
_HASH = re.compile(r"\s--hash[=\s]\s*\S+")
_LATER_OPTION = re.compile(r"\s(--?[A-Za-z][A-Za-z0-9-]*)")
_WITHOUT_EFFECT = frozenset({"--require-hashes"})
"""Options that hold for every lock."""
_EDITABLE = frozenset({"-e", "--editable"})
_INDEXES = frozenset(
    {"-i", "--index-url", "--pypi-url", "--extra-index-url", "-f", "--find-links", "--no-index"}
)
_HINTS = {
    "--pre": "Delete the line, and name a pre-release where one is needed: name>=2.0rc1.",
    "--no-binary": "Delete the line: packages are installed from wheels.",
    "--only-binary": "Delete the line: packages are installed from wheels anyway.",
    "--prefer-binary": "Delete the line: packages are installed from wheels anyway.",
    "--trusted-host": "Delete the line, and set the host up for pip or uv on each machine.",
}


def read(project: Path, file: str) -> Listed:
    """Return what a file lists; `file` is its path in the project. Raises `InvalidError`."""
    reader = _Reader(project)
    reader.include(file, "", constrains=False)
    listed = reader.listed()
    return replace(listed, included=tuple(name for name in listed.included if name != file))


def read_lines(project: Path, file: str, lines: Iterable[tuple[str, str]]) -> Listed:
    """Return what lines list that stand in another file: pairs of place and line."""
    reader = _Reader(project)
    reader.take(file, lines, constrains=False)
    return reader.listed()


class _Reader:
    """Collects lines, each file once."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._open: list[str] = []
        self._finished: set[tuple[str, bool]] = set()
        self._requirements: list[Line] = []
        self._constraints: list[Line] = []

    def listed(self) -> Listed:
        return Listed(
            requirements=tuple(self._requirements),
            constraints=tuple(self._constraints),
            included=tuple(sorted({file for file, _ in self._finished})),
        )

    def include(self, file: str, where: str, *, constrains: bool) -> None:
        if file in self._open:
            raise InvalidError(
                f"{where}: {escaped(file)} includes itself: "
                f"{escaped(' → '.join([*self._open, file]))}",
                "Delete one of these lines.",
            )
        if len(self._open) >= DEEPEST:
            raise InvalidError(
                f"{where}: {escaped(file)}: files include each other more than {DEEPEST} deep",
                "List the files directly.",
            )
        if (file, constrains) in self._finished:
            return
        text = text_file.read_text(self._project, file, where=where)
        self._open.append(file)
        numbered = ((f"{escaped(file)}:{number}", line) for number, line in _logical(text))
        self.take(file, numbered, constrains=constrains)
        self._open.pop()
        self._finished.add((file, constrains))

    def take(self, file: str, lines: Iterable[tuple[str, str]], *, constrains: bool) -> None:
        for where, raw in lines:
            line = _COMMENT.sub("", raw).strip()
            if not line:
                continue
            if _VARIABLE.search(line):
                raise InvalidError(
                    f"{where}: {escaped(line, requirement.SHOWN)}: variables are not expanded:"
                    " a lock must not depend on the machine that wrote it",
                    "Write the value out.",
                )
            if included := _INCLUDE.match(line):
                kind, target = included[1], included[2]
                self.include(
                    _beside(file, target, where),
                    where,
                    constrains=constrains or kind in {"-c", "--constraint"},
                )
            elif line.startswith("-"):
                _require_no_effect(line, where)
            else:
                self._add(line, where, constrains=constrains)

    def _add(self, line: str, where: str, *, constrains: bool) -> None:
        text = _HASH.sub("", f"{line} ").strip()
        later = _LATER_OPTION.search(text)
        if later:
            raise InvalidError(
                f"{where}: {escaped(text, requirement.SHOWN)}: the option {later[1]} is not"
                " supported",
                "Delete the option.",
            )
        parsed = requirement.parse(text, where)
        if len(self._requirements) + len(self._constraints) >= requirement.MOST:
            raise InvalidError(f"{where}: more than {requirement.MOST} requirements")
        if constrains:
            parsed.extras = set()  # a constraint is about versions only
            self._constraints.append(requirement.line(parsed, where))
        else:
            self._requirements.append(requirement.line(parsed, where))


def _logical(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield lines with their numbers; one that ends in `\` goes on in the next, as in pip."""
    parts: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if parts else number
        is_comment = bool(_COMMENT.match(line))
        if line.endswith("\\") and not is_comment:
            parts.append(line[:-1])
            continue
        yield first, "".join((*parts, " " if is_comment else "", line))
        parts = []
    if parts:
        yield first, "".join(parts)


def _beside(file: str, target: str, where: str) -> str:
    """Return the path in the project of a file that another one names."""
    try:
        words = shlex.split(target)
    except ValueError:
        words = []
    if len(words) != 1:
        raise InvalidError(
            f"{where}: {escaped(target, requirement.SHOWN) or 'nothing'}: expected the path of one"
            " file",
            "Name the file: -r other.txt",
        )
    if "://" in words[0]:
        raise InvalidError(
            f"{where}: {escaped(words[0], requirement.SHOWN)}: a URL; only files of the project"
            " are read",
            "Save the file in the project and name it here.",
        )
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), words[0]))


def _require_no_effect(line: str, where: str) -> None:
    """Raise `InvalidError` for an option, unless every lock fulfils it anyway."""
    match = _OPTION.match(line)
    option, value = (match[1], match[2]) if match else (line, "")
    short = re.match(r"-[eif]", line)
    if short and not line.startswith("--"):
        option, value = short[0], line[2:].lstrip("= ")
    if option in _WITHOUT_EFFECT:
        return
    if option in _EDITABLE:
        requirement.refuse_location(value, line, where)
    _refuse(option, value, f"{where}: {escaped(line, requirement.SHOWN)}")


def _refuse(option: str, value: str, shown: str) -> NoReturn:
    if option in _INDEXES:
        if framework := requirement.of_host(value):
            raise InvalidError(
                f"{shown}: an index of {framework.title}'s, but"
                f" {requirement.profile_decides(framework)}",
                "Delete the line.",
            )
        raise InvalidError(
            f"{shown}: where packages come from is not the project's to say",
            "Delete the line, and set the index up for pip or uv on each machine, for example with"
            " pip config set global.index-url URL.",
        )
    raise InvalidError(
        f"{shown}: the option {escaped(option, 40)} is not supported",
        _HINTS.get(option, "Delete the line."),
    )
