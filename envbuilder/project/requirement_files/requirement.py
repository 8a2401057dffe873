"""Read one requirement (PEP 508), and say what to do about the forms that are not supported."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped
from envbuilder.profiles import frameworks
from envbuilder.project.requirement_files.listed import Line

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from envbuilder.profiles.frameworks import Framework

LONGEST = 20_000
"""Maximum length of a requirement; markers of locks make them long."""
SHOWN = 120
"""Maximum number of characters of a requirement that a message repeats."""
MOST = 20_000
"""Maximum number of requirements that are read from a file and those that it includes."""

# All that names, versions and markers need. A line reaches files that other programs read.
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 \[\],.;:_*+!~<>=()\"'#@/-]*\Z")
_VCS = re.compile(r"(git|hg|svn|bzr)\+", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(whl|zip|tar\.(gz|bz2|xz)|tgz)\Z", re.IGNORECASE)
_DIRECT = re.compile(r"[A-Za-z0-9._-]+\s*(\[[^\]]*\]\s*)?@(.*)", re.DOTALL)


def parse(text: str, where: str) -> Requirement:
    """Return a requirement by name. Raises `InvalidError` for all else, with what to do."""
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement

    direct = _DIRECT.match(text)
    location = direct[2].strip() if direct else text.strip()
    if direct or _is_location(location):
        refuse_location(location, text, where)
    if len(text) > LONGEST:
        _refuse(text, where, f"longer than {LONGEST} characters")
    try:
        requirement = Requirement(text)
        _ = requirement.marker and requirement.marker.evaluate()
    except InvalidRequirement as error:
        _refuse(text, where, str(error).partition("\n")[0], error)
    except (UndefinedComparison, UndefinedEnvironmentName) as error:
        _refuse(text, where, "its marker cannot be evaluated", error)
    except RecursionError as error:
        _refuse(text, where, "nested too deeply", error)
    if not _SAFE.match(_text(requirement)):
        _refuse(text, where, "it contains a character that requirements do not have")
    return requirement


def _refuse(text: str, where: str, reason: str, cause: Exception | None = None) -> NoReturn:
    raise InvalidError(
        f"{where}: {escaped(text, SHOWN)}: not a requirement: {escaped(reason, SHOWN)}",
        "Write a name and perhaps versions, such as rich>=13 (PEP 508).",
    ) from cause


def line(requirement: Requirement, where: str) -> Line:
    """Return a requirement in its normalised form."""
    return Line(_text(requirement), where)


def name(line: Line) -> str:
    """Return the normalised name of the package that a line requires."""
    match = re.match(r"[A-Za-z0-9._-]*", line.text)
    return match[0] if match else ""


def _text(requirement: Requirement) -> str:
    from packaging.utils import canonicalize_name

    extras = ",".join(sorted({canonicalize_name(extra) for extra in requirement.extras}))
    marker = f"; {requirement.marker}" if requirement.marker else ""
    name = canonicalize_name(requirement.name)
    return f"{name}{f'[{extras}]' if extras else ''}{requirement.specifier}{marker}"


def _is_location(text: str) -> bool:
    word = text.partition(" ")[0]
    is_path = word.startswith((".", "/", "~", "\\")) or bool(_ARCHIVE.search(word))
    return is_path or bool(_VCS.match(word) or _URL.match(word))


def refuse_location(location: str, text: str, where: str) -> NoReturn:
    """Raise `InvalidError` for a requirement that names a repository, a URL or a path."""
    from packaging.utils import canonicalize_name

    shown = f"{where}: {escaped(text, SHOWN)}"
    name = re.match(r"[A-Za-z0-9._-]*", text)
    of_name = frameworks.of_build(canonicalize_name(name[0])) if name else None
    if framework := of_host(location) or of_name:
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


def profile_decides(framework: Framework) -> str:
    """Return why no line of a file decides on a build."""
    return f"the profile decides where {framework.title} comes from"


def of_host(location: str) -> Framework | None:
    """Return the framework to whose own host a URL leads."""
    try:
        host = urlsplit(location.strip("\"'")).hostname or ""
    except ValueError:
        return None
    return frameworks.of_index(host)
