"""Put msgspec's validation errors into words: no type of Python, no regular expression."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from envbuilder.core import types
from envbuilder.core.strict_yaml import shown

_KINDS = {
    "array": "a list",
    "object": "a mapping of keys",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}
_EXPECTED = re.compile(
    r"Expected `([^`]+)`(?:, got `([^`]+)`)?(?: matching regex (.+)| (.+))?\Z", re.DOTALL
)
_MISSING = re.compile(r"Object missing required field `(.+)`\Z")
_ENUM = re.compile(r"Invalid enum value (.+)\Z", re.DOTALL)


def worded(message: str, kind: Any, path: list[str], value: Any = None) -> str:
    """Return what a validation error says as words.

    `kind` is the type that was expected at the top, `path` the keys that lead to the value, and
    `value` is what stands there, if that is known.
    """
    if match := _MISSING.match(message):
        return f"the key '{match[1]}' is missing"
    if _ENUM.match(message):
        possible = ", ".join(map(str, _values(_at(kind, path))))
        return (
            f"{_shown_value(value)} is not one of {possible}"
            if possible
            else f"{_shown_value(value)} is not a valid value"
        )
    match = _EXPECTED.match(message)
    if match is None:
        return message[:1].lower() + message[1:]
    expected = " or ".join(_KINDS.get(name.strip(), name.strip()) for name in match[1].split("|"))
    if match[2]:
        return f"expected {expected}, found {_KINDS.get(match[2], match[2])}"
    if match[3]:
        expected = _descriptions().get(match[3], "text in another format")
        is_one = isinstance(value, str | int | float)
        return f"expected {expected}{f', found {_shown_value(value)}' if is_one else ''}"
    return f"expected {expected} {match[4] or ''}".rstrip()


def _shown_value(value: Any) -> str:
    return shown(str(value)) if value is not None else "the value"


@cache
def _descriptions() -> dict[str, str]:
    """Return what each pattern of `core.types` describes, by the pattern as msgspec prints it."""
    descriptions = {}
    for alias in vars(types).values():
        for meta in getattr(alias, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.pattern and meta.description:
                descriptions[repr(meta.pattern)] = meta.description
    return descriptions


def _at(kind: Any, path: list[str]) -> Any:
    """Return the type that a key path leads to; None if it leads nowhere."""
    for part in path:
        kind = _below(kind, part)
    return kind


def _below(kind: Any, part: str) -> Any:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
        return fields.get(part)
    arguments = get_args(kind)
    if get_origin(kind) is dict:
        return arguments[1]
    if get_origin(kind) in {tuple, list, frozenset}:
        return arguments[0]
    return next((found for a in arguments if (found := _below(a, part)) is not None), None)


def _values(kind: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, also inside a union."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(value for argument in get_args(kind) for value in _values(argument))
