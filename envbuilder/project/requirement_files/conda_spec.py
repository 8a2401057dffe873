"""Parse conda's package specs as environment.yml has them: `numpy=1.26`, `channel::numpy>=1.26`."""

from __future__ import annotations

import re

from msgspec import Struct

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped

LONGEST = 500
"""Maximum length of a spec."""

_SPEC = re.compile(
    r"(?:(?P<channel>[A-Za-z0-9_./:-]+)::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)"
    r"(?P<rest>(?:[ =<>!~].*)?)\Z"
)
_VERSION = r"(?:==|!=|<=|>=|~=|=|<|>)?[0-9][A-Za-z0-9.*!]*"
_VERSIONS = re.compile(rf"{_VERSION}(?:[,|]{_VERSION})*\Z")
_CLAUSE = re.compile(r"(==|!=|<=|>=|~=|=|<|>)?([0-9][A-Za-z0-9.]*?)(\.?\*)?\Z")


class Spec(Struct, frozen=True):
    """A conda package and its versions."""

    name: str
    versions: str = ""
    """As in a `CondaSpec`, without blanks: `1.26.*`, `==1.26.4`, `>=1.26,<2`; empty for any."""
    channel: str = ""
    build: str = ""
    """The build, if it is stated exactly."""

    def text(self) -> str:
        """Return the spec as profiles have it."""
        return f"{self.name} {self.versions}".rstrip()

    def specifier(self) -> str | None:
        """Return the versions as Python's packages have them (PEP 440); None if they cannot."""
        if not self.versions:
            return ""
        clauses = [_CLAUSE.match(clause) for clause in self.versions.split(",")]
        if not all(clauses):
            return None
        return ",".join(_python_clause(*match.groups()) for match in clauses if match)


def _python_clause(operator: str | None, version: str, star: str | None) -> str:
    if operator in {None, "=", "==", "!="}:
        equal = "!=" if operator == "!=" else "=="
        return f"{equal}{version}{'.*' if star or operator == '=' else ''}"
    return f"{operator}{version}"


def parse(text: str, where: str) -> Spec:
    """Return a spec. Raises `InvalidError` for forms that are not supported."""
    shown = f"{where}: {escaped(text, 100)}"
    match = _SPEC.match(text.strip())
    if match is None or len(text) > LONGEST:
        raise InvalidError(
            f"{shown}: not a conda package",
            "Write a name and perhaps versions, such as numpy=1.26 or numpy>=1.26,<2.",
        )
    versions, build = _versions_and_build(match["rest"], shown)
    if "*" in build:
        raise InvalidError(
            f"{shown}: a build by a pattern is not supported",
            "Delete the part after the version; what depends on the hardware is for the profile to"
            " choose.",
        )
    return Spec(match["name"].lower(), versions, match["channel"] or "", build)


def _versions_and_build(rest: str, shown: str) -> tuple[str, str]:
    """Return versions and build of what follows a name, such as `=1.26`, ` >=1.26, <2`."""
    rest = re.sub(r"\s*([,|=<>!~])\s*", r"\1", rest.strip())
    # A single = matches all versions that begin so, unless a build follows: numpy=1.26.4=py312_0.
    parts = re.match(r"(?:=(?!=))?([A-Za-z0-9.*]+)(?:=(?!=)|\s+)([A-Za-z0-9_.*]+)\Z", rest)
    if parts:
        versions, build = parts[1], parts[2]
        exact = "" if versions.strip("*.") == "" else f"{'' if '*' in versions else '=='}{versions}"
        return exact, "" if build.strip("*") == "" else build
    if re.match(r"=(?!=)[^=<>!~,|]+\Z", rest):
        version = rest[1:].removesuffix("*").removesuffix(".")
        versions = f"{version}.*" if version else ""
    else:
        versions = "" if rest == "*" else re.sub(r"==(?=[^,|]*\*)", "", rest)
    is_valid = not versions or _VERSIONS.match(versions)
    if not is_valid:
        raise InvalidError(
            f"{shown}: not a range of versions",
            "Write it like this: numpy=1.26, numpy==1.26.4, numpy>=1.26,<2.",
        )
    return versions, ""
