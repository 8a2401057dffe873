"""Say in one sentence why uv finds no solution, and what to do about it. Pure.

uv explains each step of its proof. The steps that name a package and a limit tell enough.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from envbuilder.profiles.frameworks import of_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONGEST = 400
_PACKAGE = r"(?<![^\s`])`?([A-Za-z0-9][A-Za-z0-9._-]*(?:\[[^\]]*\])?)((?:[<>=!~][^\s`]*)?)`?"
_DEPENDS = re.compile(rf"{_PACKAGE} depends? on {_PACKAGE}")
_REQUIRES = re.compile(r"you require (.+?)(?:, we can|\. And| we can|$)")
_UNKNOWN = re.compile(rf"{_PACKAGE} was not found in the package registry")
_NO_WHEEL = re.compile(rf"{_PACKAGE} ha(?:s|ve) no usable wheels")
_NO_WHEEL_FOR = re.compile(rf"{_PACKAGE} has no wheels with a matching (platform|Python)")
_TOO_NEW = re.compile(rf"only (\S+) (?:is|are) available and you require {_PACKAGE}")


def explained(stderr: str, version: str = "") -> str:
    """Return the sentence for what uv printed, without URLs; uv's own words if they are new.

    `version`: of the package without a wheel, the newest version that has one.
    """
    proof = _proof(stderr)
    return next(_sentences(proof, version), proof[:_LONGEST].strip())


def without_wheel(stderr: str) -> str:
    """Return the package that has no wheel in the versions that are required; else empty."""
    match = _NO_WHEEL.search(_proof(stderr))
    return match[1] if match else ""


def holder(stderr: str, name: str) -> str:
    """Return which package excludes a version of another one (normalised name); empty if unknown.

    That is one which limits it, or one that the version itself requires.
    """
    proof = _proof(stderr)
    steps = [match for match in _DEPENDS.finditer(proof) if match[4]]
    for match in steps:
        if match[3] == name:
            return f"held by {match[1]}, which requires {name}{match[4].rstrip(',.')}"
    for match in steps:
        if match[1].partition("[")[0] == name:
            lacking = any(match[3] == other[1] for other in _NO_WHEEL.finditer(proof))
            why = ", which has no wheel" if lacking else ""
            return f"a newer one requires {match[3]}{match[4].rstrip(',.')}{why}"
    return ""


def _proof(stderr: str) -> str:
    text = stderr.partition("No solution found")[2] or stderr
    text = re.split(r"╰─▶|cause:", text, maxsplit=1)[-1].partition("hint:")[0]
    # Markers in braces are left out: "numpy{python_full_version < '3.12'}>=1".
    return " ".join(re.sub(r"\{[^{}]*\}", "", text).split())


def _sentences(proof: str, version: str) -> Iterator[str]:
    """Yield what the proof can be put into, the most telling first."""
    required = [*_required(proof)]
    if match := _UNKNOWN.search(proof):
        yield f"no package index has {match[1]}: check its spelling"
    if match := _NO_WHEEL.search(proof):
        yield _no_wheel(proof, match[1], required, version)
    if match := _NO_WHEEL_FOR.search(proof):
        yield (
            f"{match[1]}{match[2]} has no wheel for this {match[3]}: require a version that has"
            ' one, or another Python (python: "X.Y")'
        )
    if match := _TOO_NEW.search(proof):
        yield f"{match[2]}{match[3].rstrip(',')} is required, but only {match[1]} is available"
    for match in _DEPENDS.finditer(proof):
        pinned = (limit for name, limit in required if name == match[3] and of_name(name))
        if limit := next(pinned, ""):
            yield (
                f"{_needs(match)}, but this profile has {match[3]}{limit}: require another version"
                f" of {match[1]}, or leave the profile out (profiles: in envbuilder.yaml)"
            )
        for name, limit in required:
            if name == match[3] and limit != match[4]:
                yield f"{_needs(match)}, but {name}{limit} is required: change one of the two"
    for name, limit in required:
        for other, another in required:
            if name == other and limit != another:
                yield f"{name}{limit} and {name}{another} are both required: keep one of them"


def _no_wheel(proof: str, name: str, required: Iterable[tuple[str, str]], version: str) -> str:
    """Return the sentence for a package that has no wheel, whoever requires it."""
    needs = next((match for match in _DEPENDS.finditer(proof) if match[3] == name), None)
    stated = next((f"{n}{limit}" for n, limit in required if n == name), name)
    if needs:
        stated = f"{needs[3]}{needs[4]}"
        exists = f" ({version} has one)" if version else ""
        problem = f"{_needs(needs)}, which has no wheel{exists}"
        other = f"require another version of {needs[1]}"
    else:
        problem = f"{stated} has no wheel"
        other = f"require a version that has one, such as {version}" if version else "leave it out"
    return (
        f"{problem}, and nothing is built from source: {other}, or build the wheel"
        f" (pip wheel --no-deps --wheel-dir wheels {shlex.quote(stated)}) and set"
        " PIP_FIND_LINKS=$PWD/wheels to lock and to build"
    )


def _required(proof: str) -> Iterator[tuple[str, str]]:
    """Yield the packages that the project itself requires, with their limits."""
    for stated in dict.fromkeys(_REQUIRES.findall(proof)):
        for text in stated.split(" and "):
            if match := re.fullmatch(_PACKAGE, text.rstrip(",.")):
                yield match[1], match[2]


def _needs(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]} needs {match[3]}{match[4]}"
