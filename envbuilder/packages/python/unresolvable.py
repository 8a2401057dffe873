"""Say in one sentence why uv finds no solution, and what to do about it. Pure.

uv explains each step of its proof. The steps that name a package and a limit tell enough.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST = 400
_PACKAGE = r"`?([A-Za-z0-9][A-Za-z0-9._-]*(?:\[[^\]]*\])?)((?:[<>=!~][^\s`]*)?)`?"
_DEPENDS = re.compile(rf"{_PACKAGE} depends? on {_PACKAGE}")
_REQUIRES = re.compile(r"you require (.+?)(?:, we can|\. And| we can|$)")
_UNKNOWN = re.compile(rf"{_PACKAGE} was not found in the package registry")
_NO_WHEEL = re.compile(rf"{_PACKAGE} ha(?:s|ve) no usable wheels")
_NO_WHEEL_FOR = re.compile(rf"{_PACKAGE} has no wheels with a matching (platform|Python)")
_TOO_NEW = re.compile(rf"only (\S+) (?:is|are) available and you require {_PACKAGE}")


def explained(stderr: str) -> str:
    """Return the sentence for what uv printed, without URLs; uv's own words if they are new."""
    proof = _proof(stderr)
    return next(_sentences(proof), proof[:_LONGEST].strip())


def holder(stderr: str, name: str) -> str:
    """Return which package limits another one (normalised name); empty if none is named."""
    for match in _DEPENDS.finditer(_proof(stderr)):
        if match[3] == name and match[4]:
            return f"held by {match[1]}, which requires {name}{match[4].rstrip(',')}"
    return ""


def _proof(stderr: str) -> str:
    text = stderr.partition("No solution found")[2] or stderr
    text = re.split(r"╰─▶|cause:", text, maxsplit=1)[-1].partition("hint:")[0]
    return " ".join(text.split())


def _sentences(proof: str) -> Iterator[str]:
    """Yield what the proof can be put into, the most telling first."""
    required = [*_required(proof)]
    if match := _UNKNOWN.search(proof):
        yield f"no package index has {match[1]}: check its spelling"
    if match := _NO_WHEEL.search(proof):
        name = match[1]
        stated = next((f"{n}{limit}" for n, limit in required if n == name), name)
        needed = next((f"{_needs(m)}, which" for m in _DEPENDS.finditer(proof) if m[3] == name), "")
        yield (
            f"{needed or stated} has no wheel, and packages are never built"
            " from their source: require a version that has one, or put a wheel that you built"
            " into a find-links folder"
        )
    if match := _NO_WHEEL_FOR.search(proof):
        yield (
            f"{match[1]}{match[2]} has no wheel for this {match[3]}: require a version that has"
            ' one, or another Python (python: "X.Y")'
        )
    if match := _TOO_NEW.search(proof):
        yield f"{match[2]}{match[3].rstrip(',')} is required, but only {match[1]} is available"
    for match in _DEPENDS.finditer(proof):
        if match[3] == "torch" and any(name == "torch" for name, _ in required):
            yield (
                f"{_needs(match)}, and this profile has another PyTorch: require another version of"
                f" {match[1]}, or leave the profile out of profiles:"
            )
        for name, limit in required:
            if name == match[3] and limit != match[4]:
                yield f"{_needs(match)}, but {name}{limit} is required: change one of the two"
    for name, limit in required:
        for other, another in required:
            if name == other and limit != another:
                yield f"{name}{limit} and {name}{another} are both required: keep one of them"


def _required(proof: str) -> Iterator[tuple[str, str]]:
    """Yield the packages that the project itself requires, with their limits."""
    for stated in dict.fromkeys(_REQUIRES.findall(proof)):
        for text in stated.split(" and "):
            if match := re.fullmatch(_PACKAGE, text.rstrip(",.")):
                yield match[1], match[2]


def _needs(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]} needs {match[3]}{match[4]}"
