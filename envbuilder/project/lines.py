"""A common representation of requirements from all kinds of files, with their file and line.

All readers share this module. It reads text files, parses requirements (PEP 508), and handles the
sources of packages that are not taken from an index. The module is long because a requirement can
have many forms, and a reader of any kind of file may encounter any of them.
"""

from __future__ import annotations

import posixpath
import re
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import decoding, files, types
from envbuilder.core.errors import InvalidError, escaped
from envbuilder.profiles import frameworks, requirements
from envbuilder.profiles.requirements import distribution
from envbuilder.project.names import alias_of, distribution_of, needed_where

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from packaging.markers import Marker
    from packaging.requirements import Requirement

    from envbuilder.profiles.profile import Profile


LARGEST = 1 << 20
"""Maximum size in bytes of a handwritten file."""
LONGEST = 20_000
"""Maximum number of characters in a requirement or marker. Those in locks are long."""
SHOWN = 120
"""Maximum number of characters of a requirement to show in a message."""
MOST = 20_000
"""Maximum number of requirements in a file, including those in the files that it includes."""


class Line(Struct, frozen=True):
    """A requirement, and the file and line that list it."""

    text: str
    """The requirement in the form of PEP 508, with normalized names.

    For a conda package, this is a spec in the form of a profile's `conda.packages`.
    """
    where: str
    """The place that lists the requirement, as shown in messages, such as "requirements.txt:3"."""
    source: str = ""
    """The package's source, as in `profile.Source`. Empty if the package comes from an index."""
    locked: bool = False
    """Whether the line comes from a lock, so that it is not a requirement of the project itself."""

    @property
    def name(self) -> str:
        """The normalized name of the package."""
        return distribution(self.text)


class Dropped(str):
    """A note that an entry in a file is ignored.

    Notes that are neither `Dropped` nor `Needed` describe changes.
    """

    __slots__ = ()


class Needed(str):
    """A note about something that the user still has to decide or write."""

    __slots__ = ()


class Listed(Struct, frozen=True, kw_only=True):
    """The requirements in a file, and any other information in the file about an environment."""

    requirements: tuple[Line, ...] = ()
    constraints: tuple[Line, ...] = ()
    """Versions that packages must have if they are installed.

    These are the exact versions in a lock (`name==version`, optionally with a marker), or the
    limits in a constraints file.
    """
    overrides: tuple[Line, ...] = ()
    """Requirements that replace all other requirements for the same package."""
    pythons: tuple[Line, ...] = ()
    """Specifiers of the Python versions that the file allows (`>=3.10`). All of them must hold.

    They may name patch releases. Therefore, to check a version such as 3.12, try all of its patch
    releases.
    """
    conda: tuple[Line, ...] = ()
    """Packages from conda channels, except Python itself."""
    channels: tuple[str, ...] = ()
    """The channels that the packages in `conda` come from, in order of priority."""
    system: tuple[str, ...] = ()
    """Debian packages, for `system_packages`, that provide programs and libraries the file
    lists."""
    itself: tuple[str, ...] | None = None
    """The extras of the project itself if a line installs the project (`-e .[dev]`); otherwise
    None."""
    read_from: tuple[str, ...] = ()
    """Paths of the project files from which these requirements were read."""
    notes: tuple[str, ...] = ()
    """Notes for the user, each of them `Dropped`, `Needed`, or plain text about a change."""


def joined(parts: Iterable[Listed]) -> Listed:
    """Merge the requirements from several files in the given order."""
    values: dict[str, Any] = {}
    for item in parts:
        for field, value in msgspec.structs.asdict(item).items():
            before = values.get(field)
            values[field] = value if before is None else (*before, *(value or ()))
    return Listed(**values)


def read_text(project: Path, file: str, limit: int = LARGEST, where: str = "") -> str:
    """Read a text file in UTF-8, or in UTF-16 as written by PowerShell's `>` operator.

    `file` is a path relative to the project. `where` is the place that refers to the file, for use
    in messages. Raise `InvalidError` if the file cannot be read.
    """
    content = read_bytes(project, file, limit, where)
    is_utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidError(
            f"{escaped(file)}:{line}: not UTF-8 text", "Save it as UTF-8."
        ) from error


def read_bytes(project: Path, file: str, limit: int, where: str = "") -> bytes:
    """Read a file as bytes. The arguments are the same as for `read_text`.

    Raise `InvalidError` if the file cannot be read, is outside the project, or can be written to by
    other users.
    """
    name = f"{where}: {escaped(file)}" if where else escaped(file)
    try:
        path = (project / file).resolve(strict=True)
        inside = path.is_relative_to(project.resolve())
        files.require_own(project / file)
        content = files.read(path, limit) if inside else b""
    except FileNotFoundError as error:
        hint = "Write the path relative to the file that names it."
        raise InvalidError(f"{name}: no such file", hint) from error
    except OSError as error:
        raise InvalidError(f"{name}: cannot be read: {error.strerror or error}") from error
    except (RuntimeError, ValueError) as error:  # a circle of links; a path with a NUL
        raise InvalidError(f"{name}: cannot be read: not a valid path") from error
    if not inside:
        raise InvalidError(
            f"{name} is outside the project", "Copy the file into the project, and name the copy."
        )
    _READ.get(set()).add(posixpath.normpath(file))
    return content


_READ: ContextVar[set[str]] = ContextVar("_READ")


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Yield a set that collects the paths of all project files read within the `with` block."""
    files: set[str] = set()
    token = _READ.set(files)
    try:
        yield files
    finally:
        _READ.reset(token)


def exists(project: Path, path: str) -> bool:
    """Return whether a file or folder exists in a project; False if the path is invalid."""
    try:
        return (project / path).exists()
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        return False


def is_valid(value: object, kind: object) -> bool:
    """Return whether an untrusted value is valid for a type such as `ProjectPath`."""
    try:
        decoding.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


# One requirement (PEP 508)

# Patterns are texts: `re` compiles them at the first use and keeps them, no start waits for them.
# All that names, versions and markers need. A line reaches files that other programs read.
_SAFE = r"[A-Za-z0-9][A-Za-z0-9 \[\],.;:_*+!~<>=()\"'#@/-]*\Z"
_VCS = r"(?i)(git|hg|svn|bzr)\+"
_URL = r"(?i)[a-z][a-z0-9+.-]*:/"
_ARCHIVE = r"(?i)\.(whl|zip|tar\.(gz|bz2|xz)|tgz)\Z"
_DIRECT = r"(?s)([A-Za-z0-9._-]+)\s*(\[[^\]]*\])?\s*@(.*)"
_MARKER = r"\s+;|;\s+"
_BUILD = r"(?<=[0-9])\+[a-z0-9.]*(cpu|cu[0-9]|cuda|rocm|xpu|pt[0-9]|torch[0-9])[a-z0-9.]*"
"""Pattern of the part of a version that names a build for certain hardware, such as `+cu124`.

Only separate indexes offer such builds.
"""


def parse(text: str, where: str) -> Requirement:
    """Parse a requirement that names a package from an index.

    Raise `InvalidError` with advice for anything else, such as a URL or a path.
    """
    direct = re.match(_DIRECT, text)
    location = direct[3].strip() if direct else text.strip()
    if direct or is_location(location):
        _refuse_location(location, text, where)
    try:
        return copy(_requirement(text))
    except ValueError as error:
        raise InvalidError(
            f"{where}: {escaped(text, SHOWN)}: not a requirement: {escaped(str(error), SHOWN)}",
            "Write a name and optional versions, such as rich>=13 (PEP 508).",
        ) from error


@lru_cache(maxsize=1 << 13)
def _requirement(text: str) -> Requirement:
    """Parse a requirement; raise `ValueError` with the reason if it is invalid.

    Results are cached, because every profile parses all lines again and the markers in locks are
    long.
    """
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
    if not re.match(_SAFE, _normalised(requirement)):
        raise ValueError("it contains a character that is not allowed in requirements")
    return requirement


def line(requirement: Requirement, where: str) -> Line:
    """Return a requirement as a `Line`, in normalized form."""
    return Line(_normalised(requirement), where)


def _normalised(requirement: Requirement) -> str:
    from packaging.utils import canonicalize_name

    extras = ",".join(sorted({*map(canonicalize_name, requirement.extras)}))
    name: str = canonicalize_name(requirement.name)
    if extras:
        name = f"{name}[{extras}]"
    return with_marker(f"{name}{requirement.specifier}", requirement.marker)


def with_marker(requirement: str, marker: Marker | str | None) -> str:
    """Return a requirement with the given marker appended, if there is a marker."""
    return f"{requirement}; {marker}" if marker else requirement


def narrowed(requirement: str, marker: str) -> str:
    """Add a marker to a requirement. If the requirement already has a marker, both must hold."""
    before_marker, _, before = requirement.partition(";")
    before = before.strip()
    if before and marker:
        marker = f"({before}) and ({marker})"
    return with_marker(before_marker.strip(), marker or before)


def is_location(text: str) -> bool:
    """Return whether a line refers to a repository, a URL or a path instead of a package."""
    if re.match(_DIRECT, text) and not text.startswith("git@"):
        return False
    word = re.split(r"[ \t]|;", text.strip(), maxsplit=1)[0]
    is_path = word.startswith((".", "/", "~", "\\")) or bool(re.search(_ARCHIVE, word))
    is_path = is_path or ("/" in word and not word.startswith("-"))
    return is_path or bool(re.match(_VCS, word) or re.match(_URL, word))


def _refuse_location(location: str, text: str, where: str) -> NoReturn:
    """Raise `InvalidError` for a requirement that refers to a repository, a URL or a path."""
    kind = "a local path"
    if re.match(_URL, location) and not location.lower().startswith("file:"):
        kind = "a version control repository" if re.match(_VCS, location) else "a URL"
    raise InvalidError(
        f"{where}: {escaped(text, SHOWN)}: {kind}, but only packages from an index may be listed"
        " here",
        "Name a released version instead, or move the line to a requirements.txt, and list that"
        " file under requirements_from:.",
    )


def profile_decides(framework: frameworks.Framework) -> str:
    """Return a message saying that the profile, not a file, determines a framework's source."""
    return f"the profile decides where {framework.title} comes from"


def of_host(location: str) -> frameworks.Framework | None:
    """Return the framework whose package host a URL points to, or None if there is none."""
    try:
        host = urlsplit(location.strip("\"'")).hostname or ""
    except ValueError:
        return None
    for row in frameworks.FRAMEWORKS.values():
        if any(host == known or host.endswith(f".{known}") for known in row.index_hosts):
            return row
    return None


# One requirement as it stands in a file

_QUOTED = r"\A([\"'])(.*)\1\Z"
_OF_CONDA = r"([A-Za-z0-9._-]+) *= *([0-9][0-9.]*)(=[A-Za-z0-9_.]+)?\Z"
_ANY_PATCH = r"([<>]=? *[0-9][0-9.]*)\.\*"
"""Pattern of a version bound that ends in `.*`, which setuptools accepted until 2022."""


def parse_lenient(text: str, where: str) -> tuple[Line, str]:
    """Parse a requirement; return it with a note on any part that was changed or ignored.

    The requirement may have a direct source (`name @ git+https://…`). The note is empty if the
    requirement is used as written. Raise `InvalidError` if the requirement is invalid.
    """
    if direct := re.match(_DIRECT, text):
        location, marker = split_marker(direct[3])
        return sourced(f"{direct[1]}{direct[2] or ''}{marker}", location, text, where)
    shown = f"{where}: {escaped(text, SHOWN)}"
    notes = []
    plain = re.sub(_BUILD, "", unquoted(text))
    if of_conda := re.match(_OF_CONDA, plain):
        known = _distribution_of_conda(of_conda[1], shown)
        plain = f"{known}=={of_conda[2]}{'' if of_conda[3] else '.*'}"
        notes.append(f"{shown}: conda's spelling: taken as {plain}.")
    elif (bounded := re.sub(_ANY_PATCH, r"\1", plain)) != plain:
        notes.append(f"{shown}: taken as {bounded}, since only == and != allow a star.")
        plain = bounded
    parsed = parse(plain, where)
    if build := re.search(_BUILD, text):
        notes.append(
            f"{shown}: only the version is used, since the hardware determines the build"
            f" {build[0][1:]}."
        )
    notes += rename(parsed, shown)
    return line(parsed, where), " ".join(notes)


def unquoted(text: str) -> str:
    """Remove quotes and a trailing comma from a requirement that is written like a list item."""
    return re.sub(_QUOTED, r"\2", text.strip().rstrip(","))


def rename(requirement: Requirement, shown: str) -> list[str]:
    """Replace a misleading package name in a requirement, which is modified in place.

    If only some targets need the package, a marker is added. Return a list of notes, one for each
    change. Each note begins with the text in `shown`.
    """
    from packaging.markers import Marker

    notes = []
    name = types.canonical(requirement.name)
    if (other := alias_of(name)) != name:
        any_version = ""
        if other != "torch" and requirement.specifier:
            # That of a stub, not of what is meant.
            requirement.specifier = type(requirement.specifier)()
            any_version = " in any version"
        requirement.name = other
        notes.append(f"{shown}: taken as {other}{any_version}.")
    marker, reason = needed_where(name)
    if marker and requirement.marker is None:
        requirement.marker = Marker(marker)
        notes.append(f"{shown}: {reason}.")
    return notes


def _distribution_of_conda(name: str, shown: str) -> str:
    """Return a conda package's name on the package index.

    Raise `InvalidError` if no such name is known.
    """
    known = "python" if name.lower() == "python" else distribution_of(name.lower())
    if known:
        return known
    raise InvalidError(
        f"{shown}: uses conda's syntax, but no package on the index is known to match"
        f" conda's {escaped(name, SHOWN)}, and one with the same name may be unrelated",
        f"If you mean the package on the index, write {name}==VERSION. List conda programs in an"
        " environment.yml.",
    )


def split_marker(text: str) -> tuple[str, str]:
    """Split the text after `@` in a requirement into the location and the marker.

    The marker keeps its semicolon. If there is no marker, the second string is empty.
    """
    location, *markers = re.split(_MARKER, text.strip(), maxsplit=1)
    return location.strip().strip("\"'"), with_marker("", "".join(markers).strip())


def sourced(
    requirement: str, location: str, text: str, where: str, folder: str = ""
) -> tuple[Line, str]:
    """Return a package from a location as a line, and a note if a different source is used.

    `requirement` is the name of the package, optionally followed by extras and a marker. `text` is
    the original line, for use in messages. Relative paths in `location` are relative to `folder`.
    Credentials in a git URL are removed. Raise `InvalidError` for a location that cannot be locked.
    """
    require_public(location, where)
    required = line(parse(requirement, where), where)
    framework = of_host(location) or frameworks.of_build(required.name)
    bare = re.sub(_LOGIN, r"\1", location)
    text = re.sub(_LOGIN, r"\1", text)
    if not framework and not re.match(_ELSEWHERE, location):
        source = _source(bare, f"{where}: {escaped(text, SHOWN)}", folder)
        if not source:
            required = line(parse(narrowed(requirement, NOWHERE), where), where)
            return required, Needed(
                f"{where}: {escaped(text, SHOWN)}: {escaped(bare, SHOWN)} is outside the project,"
                f" so {required.name} is left out. Copy the folder into the project."
            )
        required = replace(required, source=source)
        if bare == location:
            return required, ""
        return required, (
            f"{where}: {required.name}: the login in its URL is left out, since git asks its"
            " credential helper for one."
        )
    reason = profile_decides(framework) if framework else "its location belongs to another machine"
    if version := of_file(location)[1]:
        name, _, marker = required.text.partition(";")
        exact = re.sub(_BUILD, "", f"{name}=={version}")
        required = line(parse(with_marker(exact, marker), where), where)
    return required, f"{where}: {escaped(text, SHOWN)}: taken as {required.text}, since {reason}."


def location_of(table: Mapping[str, Any]) -> str:
    """Return the URL or path of the package that another tool's requirement table specifies.

    The result is an empty string if the table specifies neither.
    """
    git = table.get("git")
    if not isinstance(git, str):
        return _first_text(table, ("url", "path", "file", "directory", "editable", "virtual"))
    reference = _first_text(table, ("rev", "ref", "tag", "branch"))
    folder = _first_text(table, ["subdirectory"])
    at = f"@{reference}" if reference else ""
    end = f"#subdirectory={folder}" if folder else ""
    return f"git+{git.removeprefix('git+')}{at}{end}"


def _first_text(table: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return the first value under one of these keys that is a string; empty if there is none."""
    return next((table[key] for key in keys if isinstance(table.get(key), str)), "")


NOWHERE = 'python_version < "3"'
"""A marker that is never true, for a package that is skipped although a file requires it."""
_ELSEWHERE = r"(?i)file:|[/~\\]|[A-Za-z]:[/\\]"
"""Pattern of the start of a path that cannot be in any project."""


_LOGIN = r"(?i)(git\+https?://)[^/]*@"


def require_public(location: str, where: str) -> None:
    """Raise `InvalidError` if a URL contains credentials.

    Credentials in git URLs are accepted, because they are removed later.
    """
    if re.search(r"://(?!git@)[^/]*@", re.sub(_LOGIN, r"\1", location)):
        raise InvalidError(
            f"{where}: a project's files must not contain URLs with credentials",
            "Remove the user name and password from the URL, and configure them on each machine.",
        )


def url_path(location: str) -> str:
    """Return the decoded path of a URL, or a plain path unchanged; empty if the URL is invalid."""
    try:
        return unquote(urlsplit(location).path)
    except ValueError:
        return ""


def of_file(location: str) -> tuple[str, str]:
    """Return the package name and version contained in the file name of a location.

    Both are empty if the file is not a wheel or source archive with a valid name.
    """
    from packaging.utils import (
        InvalidSdistFilename,
        InvalidWheelFilename,
        parse_sdist_filename,
        parse_wheel_filename,
    )

    file = posixpath.basename(url_path(location).replace("\\", "/"))
    try:
        is_wheel = file.lower().endswith(".whl")
        name, version = (parse_wheel_filename if is_wheel else parse_sdist_filename)(file)[:2]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return "", ""
    return name, str(version)


def _source(location: str, shown: str, folder: str) -> str:
    """Convert a location to the form that `profile.Source` describes.

    The result is empty for a folder outside the project. Raise `InvalidError` if the location is
    not supported.
    """
    address, _, fragment = location.partition("#")
    inside = re.findall(r"(?:\A|&)((?:subdirectory|sha256)=[^&]+)", fragment)
    end = f"#{'&'.join(inside)}" if inside else ""
    if re.match(_VCS, address):
        if not address.lower().startswith("git+"):
            raise InvalidError(
                f"{shown}: only git repositories can be locked", "Name a released version instead."
            )
        if not re.match(r"git\+(https?|file):", address):
            # Of git@HOST:PATH and ssh://HOST/PATH; git://HOST/PATH is not encrypted.
            address = re.sub(r"\Agit\+(ssh://)?(?=git@)", "git+ssh://", address)
            address = re.sub(r"\Agit\+git://(git@)?", "git+https://", address)
            address = re.sub(r"(\Agit\+ssh://[^/:]+):(?![0-9]+/)", r"\1/", address)
    elif not re.match(_URL, address):
        path = posixpath.normpath(posixpath.join(folder, address))
        if path == ".." or path.startswith(("../", "/")):
            return ""
        address = f"./{path}"
        end = ""
    elif not re.match(r"https?:", address, re.IGNORECASE):
        raise InvalidError(f"{shown}: not an https URL", "Name a released version instead.")
    try:
        return decoding.convert(address + end, types.SourceLocation)
    except msgspec.ValidationError as error:
        raise InvalidError(
            f"{shown}: this location cannot be locked",
            "Write the location as git+https://HOST/PATH@REF.",
        ) from error


def python_versions(specifier: str, file: str) -> tuple[Line, ...]:
    """Parse the value of `requires-python`, which may be an empty string.

    Return the range of versions as a single line, or no line if the value is empty. Raise
    `InvalidError` if the value is not a range of versions.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return (Line(str(SpecifierSet(specifier)), escaped(file)),) if specifier else ()
    except InvalidSpecifier as error:
        raise InvalidError(
            f"{escaped(file)}: requires-python: {escaped(specifier, SHOWN)!r} is not a range of"
            " versions",
            "Write, for example, >=3.10",
        ) from error


def of_uv(kind: str, texts: Iterable[str], file: str) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """Parse uv's constraints or overrides; return the usable lines and a note about the others.

    `kind` is `constraint` or `override`. Lines about the framework are ignored without a note,
    because the profile decides which build and release are used.
    """
    lines = []
    left = []
    for text in texts:
        try:
            need = parse(text, escaped(file))
        except InvalidError:
            left.append(text)
            continue
        if need.extras or (need.marker and kind == "override"):
            left.append(text)
        elif not frameworks.of_build(types.canonical(need.name)):
            lines.append(Line(str(need), escaped(file)))
    note = (
        f"{escaped(file)}: tool.uv.{kind}-dependencies is not used:"
        f" {escaped(', '.join(left), SHOWN)}."
    )
    return tuple(lines), (note,) if left else ()


def on_hardware(lines: Iterable[Line], profile: Profile) -> tuple[tuple[Line, ...], list[str]]:
    """Replace or remove packages that are made for hardware other than the profile's.

    Return the remaining lines, and a note about each package that was replaced or removed. The
    pinned release may not exist for the replacement package, so its line also allows later
    releases.
    """
    result = []
    notes = []
    for line in lines:
        name = instead_of(line.name, profile)
        if name == line.name:
            result.append(line)
            continue
        notes.append(f"{line.where}: {line.name} is for other hardware, here {name or 'left out'}")
        if name:
            versions, *marker = line.text[len(line.name) :].partition(";")
            later = re.sub(r"===?([^,*]+?)(\.\*)?(?=,|\s*\Z)", r">=\1", versions)
            result.append(replace(line, text=f"{name}{later}{''.join(marker)}"))
    return tuple(result), notes


def instead_of(name: str, profile: Profile) -> str:
    """Return the package that replaces the package `name` on a profile's hardware.

    Return `name` itself if it needs no replacement, and an empty string if the package is left out
    on this hardware.
    """
    if frameworks.FRAMEWORKS[profile.framework].is_library(name):
        return name
    return requirements.on_hardware(name, profile.accelerator)
