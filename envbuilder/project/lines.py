"""Read what a file requires: requirements in one form, each with its file and line.

Holds what all kinds of files share (their text, the form of a requirement, PEP 508), and the reader
of requirements.txt. There, only requirements and constraints count. Options that choose where
packages come from are refused, since the lock states that; hashes are dropped, since the lock has
its own.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import files, ownership
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped
from envbuilder.profiles import frameworks
from envbuilder.profiles.requirements import distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from packaging.requirements import Requirement


LARGEST = 1 << 20
"""Maximum size in bytes of a file that is written by hand."""
LONGEST = 20_000
"""Maximum length of a requirement or marker; those of locks are long."""
SHOWN = 120
"""Maximum number of characters of a requirement that a message repeats."""
MOST = 20_000
"""Maximum number of requirements that are read from a file and those that it includes."""


class Line(Struct, frozen=True):
    """A requirement, and where it stands."""

    text: str
    """As PEP 508 has it, with normalised names; of conda packages, a spec as in a profile's
    `conda.packages`."""
    where: str
    """For messages, such as "requirements.txt:3"."""
    source: str = ""
    """Where its source is, if it comes from no index, as in `Resolution.sources`."""
    locked: bool = False
    """Whether it is a version that a lock chose, which the project itself does not require."""

    @property
    def name(self) -> str:
        """The normalised name of the package."""
        return distribution(self.text)


class Listed(Struct, frozen=True, kw_only=True):
    """The requirements of a file."""

    requirements: tuple[Line, ...] = ()
    constraints: tuple[Line, ...] = ()
    """The versions that packages may have if they are installed, whoever requires them: exact ones
    of a lock (`name==version`, perhaps with a marker), and those of a constraints file."""
    pythons: tuple[Line, ...] = ()
    """The Python versions that it allows, as specifiers (`>=3.10`), all of which hold.

    They may name patch releases: to check a version such as 3.12, try all of them.
    """
    conda: tuple[Line, ...] = ()
    """Packages from conda channels, without Python itself."""
    channels: tuple[str, ...] = ()
    """The channels that they come from, in order."""
    read_from: tuple[str, ...] = ()
    """Other files of the project that were read with it, since it names them."""
    notes: tuple[str, ...] = ()
    """Sentences for the user: what was left out, and why."""


def read_text(project: Path, file: str, limit: int = LARGEST, where: str = "") -> str:
    """Return the UTF-8 text of a file; `file` is its path in the project.

    `where` is the line that names the file, for messages. Raises `InvalidError`, of a file that
    does not exist with an `OSError` as its cause.
    """
    content = read_bytes(project, file, limit, where)
    name, hint = escaped(file), "Save it as UTF-8."
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InvalidError(f"{name}:1: UTF-16 text, as PowerShell's > writes it", hint)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidError(f"{name}:{line}: not UTF-8 text", hint) from error


def read_bytes(project: Path, file: str, limit: int, where: str = "") -> bytes:
    """Return the content of a file, as `read_text` does.

    Never reads a file outside of the project, or one that other users can write.
    """
    name = f"{where}: {escaped(file)}" if where else escaped(file)
    try:
        path = (project / file).resolve(strict=True)
        inside = path.is_relative_to(project.resolve())
        ownership.require_own(project / file)
        content = files.read(path, limit) if inside else b""
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        problem = "no such file" if missing else f"cannot be read: {error.strerror or error}"
        raise InvalidError(f"{name}: {problem}") from error
    except (RuntimeError, ValueError) as error:  # a circle of links; a path with a NUL
        raise InvalidError(f"{name}: cannot be read: not a valid path") from error
    if not inside:
        raise InvalidError(
            f"{name}: leads out of the project", "Copy the file into the project and name the copy."
        )
    return content


# One requirement (PEP 508)

# All that names, versions and markers need. A line reaches files that other programs read.
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 \[\],.;:_*+!~<>=()\"'#@/-]*\Z")
_VCS = re.compile(r"(git|hg|svn|bzr)\+", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(whl|zip|tar\.(gz|bz2|xz)|tgz)\Z", re.IGNORECASE)
_DIRECT = re.compile(r"[A-Za-z0-9._-]+\s*(\[[^\]]*\]\s*)?@(.*)", re.DOTALL)


def parse(text: str, where: str) -> Requirement:
    """Return a requirement by name. Raises `InvalidError` for all else, with what to do."""
    direct = _DIRECT.match(text)
    location = direct[2].strip() if direct else text.strip()
    if direct or _is_location(location.partition(" ")[0]):
        refuse_location(location, text, where)
    try:
        return _requirement(text)
    except ValueError as error:
        raise InvalidError(
            f"{where}: {escaped(text, SHOWN)}: not a requirement: {escaped(str(error), SHOWN)}",
            "Write a name and perhaps versions, such as rich>=13 (PEP 508).",
        ) from error


def _requirement(text: str) -> Requirement:
    """Return a requirement; raise `ValueError` with the reason if it is none."""
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement

    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    try:
        requirement = Requirement(text)
        _ = requirement.marker and requirement.marker.evaluate()
    except InvalidRequirement as error:
        raise ValueError(str(error).partition("\n")[0]) from error
    except (UndefinedComparison, UndefinedEnvironmentName) as error:
        raise ValueError("its marker cannot be evaluated") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not _SAFE.match(_normalised(requirement)):
        raise ValueError("it contains a character that requirements do not have")
    return requirement


def line(requirement: Requirement, where: str) -> Line:
    """Return a requirement in its normalised form."""
    return Line(_normalised(requirement), where)


def _normalised(requirement: Requirement) -> str:
    from packaging.utils import canonicalize_name

    extras = ",".join(sorted({canonicalize_name(extra) for extra in requirement.extras}))
    marker = f"; {requirement.marker}" if requirement.marker else ""
    name = canonicalize_name(requirement.name)
    return f"{name}{f'[{extras}]' if extras else ''}{requirement.specifier}{marker}"


def _is_location(word: str) -> bool:
    is_path = word.startswith((".", "/", "~", "\\")) or bool(_ARCHIVE.search(word))
    return is_path or bool(_VCS.match(word) or _URL.match(word))


def refuse_location(location: str, text: str, where: str) -> NoReturn:
    """Raise `InvalidError` for a requirement that names a repository, a URL or a path."""
    shown = f"{where}: {escaped(text, SHOWN)}"
    if framework := _of_host(location) or frameworks.of_build(distribution(text)):
        raise InvalidError(
            f"{shown}: a build of {framework.title} by its location, but"
            f" {profile_decides(framework)}",
            "Name the package and its version only, or delete the line.",
        )
    if _VCS.match(location):
        raise InvalidError(
            f"{shown}: a version control repository; only packages from an index can be locked",
            "Name a released version instead, or copy the code into the project and list what it"
            " requires.",
        )
    if _URL.match(location) and not location.lower().startswith("file:"):
        raise InvalidError(
            f"{shown}: a URL; only packages from an index can be locked",
            "Name the package and its version instead, such as name==1.0.",
        )
    if re.match(r"\.?/?(\[[^\]]*\])?\Z", location) and location:
        raise InvalidError(
            f"{shown}: the project itself, which needs no installation to be run in its folder",
            "Delete the line; for what the project requires, list its pyproject.toml under"
            " requirements_from.",
        )
    raise InvalidError(
        f"{shown}: a local path; only packages from an index can be locked",
        "Name a released version instead, or list what the code at that path requires.",
    )


def profile_decides(framework: frameworks.Framework) -> str:
    """Return why no line of a file decides on a build."""
    return f"the profile decides where {framework.title} comes from"


def _of_host(location: str) -> frameworks.Framework | None:
    """Return the framework to whose own host a URL leads."""
    try:
        host = urlsplit(location.strip("\"'")).hostname or ""
    except ValueError:
        return None
    return frameworks.of_index(host)


# requirements.txt

DEEPEST = 10
"""Maximum depth of files that include others."""
_COMMENT = re.compile(r"(^|\s)#.*\Z")
_VARIABLE = re.compile(r"\$\{[A-Za-z0-9_]+\}")
_INCLUDE = re.compile(r"(-[rc]|--(?:requirement|constraint)(?=[=\s]|\Z))\s*=?\s*(.*)\Z")
_OPTION = re.compile(r"(-[eif]|--?[A-Za-z][A-Za-z0-9-]*|)[\s=]*(.*)\Z", re.DOTALL)
_HASH = re.compile(r"\s--hash[=\s]\s*\S+")
_LATER_OPTION = re.compile(r"\s(--?[A-Za-z][A-Za-z0-9-]*)")
_WITHOUT_EFFECT = "--require-hashes"
"""The option that holds for every lock."""
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


def read_requirements_txt(project: Path, file: str) -> Listed:
    """Return what a file lists; `file` is its path in the project. Raises `InvalidError`."""
    reader = _Reader(project)
    reader.include(file, "", constrains=False)
    listed = reader.listed()
    return replace(listed, read_from=tuple(name for name in listed.read_from if name != file))


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
            read_from=tuple(sorted({file for file, _ in self._finished})),
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
        text = read_text(self._project, file, where=where)
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
                    f"{where}: {escaped(line, SHOWN)}: variables are not expanded: a lock must not"
                    " depend on the machine that wrote it",
                    "Write the value out.",
                )
            if included := _INCLUDE.match(line):
                below = constrains or included[1] in {"-c", "--constraint"}
                self.include(_beside(file, included[2], where), where, constrains=below)
            elif line.startswith("-"):
                _refuse_option(line, where)
            else:
                self._add(line, where, constrains=constrains)

    def _add(self, text: str, where: str, *, constrains: bool) -> None:
        text = _HASH.sub("", f"{text} ").strip()
        if later := _LATER_OPTION.search(text):
            raise InvalidError(
                f"{where}: {escaped(text, SHOWN)}: the option {later[1]} is not supported",
                "Delete the option.",
            )
        parsed = parse(text, where)
        if len(self._requirements) + len(self._constraints) >= MOST:
            raise InvalidError(f"{where}: more than {MOST} requirements")
        if constrains:
            parsed.extras = set()  # a constraint is about versions only
        (self._constraints if constrains else self._requirements).append(line(parsed, where))


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
            f"{where}: {escaped(target, SHOWN) or 'nothing'}: expected the path of one file",
            "Name the file: -r other.txt",
        )
    if "://" in words[0]:
        raise InvalidError(
            f"{where}: {escaped(words[0], SHOWN)}: a URL; only files of the project are read",
            "Save the file in the project and name it here.",
        )
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), words[0]))


def _refuse_option(text: str, where: str) -> None:
    """Raise `InvalidError` for a line that is an option, unless every lock fulfils it anyway."""
    match = _OPTION.match(text)
    option, value = (match[1], match[2]) if match and match[1] else (text, "")
    shown = f"{where}: {escaped(text, SHOWN)}"
    if option == _WITHOUT_EFFECT:
        return
    if option in _EDITABLE:
        refuse_location(value, text, where)
    if option not in _INDEXES:
        raise InvalidError(
            f"{shown}: the option {escaped(option, 40)} is not supported",
            _HINTS.get(option, "Delete the line."),
        )
    if framework := _of_host(value):
        raise InvalidError(
            f"{shown}: an index of {framework.title}'s, but {profile_decides(framework)}",
            "Delete the line.",
        )
    raise InvalidError(
        f"{shown}: where packages come from is not the project's to say",
        "Delete the line, and set the index up for pip or uv on each machine, for example with"
        " pip config set global.index-url URL.",
    )
