"""Put msgspec's validation errors into words: no type of Python, no regular expression."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from envbuilder.core import type_paths
from envbuilder.core.text import shown

if TYPE_CHECKING:
    from envbuilder.core.type_paths import Spot

_KINDS = {
    "array": "a list",
    "object": "a mapping of keys",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}
_A_LIST = "Write a list: in brackets, or one item a line, each after a hyphen."
_INSTEAD = {
    ("array", "str"): _A_LIST,
    **dict.fromkeys((("array", "bool"), ("array", "int"), ("array", "float")), _A_LIST),
    ("array", "object"): "Write a list: one item a line, each after a hyphen, without a colon.",
    ("object", "array"): "Write keys instead of items: a name and a colon, without a hyphen.",
    ("object", "str"): "Write keys below it, indented, each with a colon.",
    ("str", "array"): "Write text instead of a list.",
    ("str", "object"): "Write text; put it in quotes if it contains a colon.",
}
"""Pairs of an expected kind and another one in its place → what to write."""
_SHORT_ITEMS = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .,_/=<>~-]{0,40}\Z")
_EXPECTED = re.compile(
    r"Expected `([^`]+)`(?:, got `([^`]+)`)?(?: matching regex (.+)| (.+))?\Z", re.DOTALL
)
_NOT_EMPTY = "of length >= 1"
_MISSING = re.compile(r"Object missing required field `(.+)`\Z")
_ENUM = re.compile(r"Invalid enum value (.+)\Z", re.DOTALL)


def kind_of(value: Any) -> str:
    """Return what kind of value YAML or JSON data is, in words."""
    kinds = {list: "array", dict: "object", type(None): "null"}
    name = kinds.get(type(value), type(value).__name__)
    return _KINDS.get(name, name)


def worded(message: str, spot: Spot) -> str:
    """Return what a validation error says as words."""
    if match := _MISSING.match(message):
        return f"the key '{match[1]}' is missing"
    value = spot.value if spot.key is None else spot.key
    if _ENUM.match(message):
        possible = ", ".join(map(str, _values(spot.kind)))
        return (
            f"{_shown_value(value)} is not {f'one of {possible}' if possible else 'a valid value'}"
        )
    match = _EXPECTED.match(message)
    if match is None:
        return message[:1].lower() + message[1:]
    names = _names(match)
    expected = " or ".join(_KINDS.get(name, name) for name in names)
    if match[2]:
        return f"expected {expected}, found {_KINDS.get(match[2], match[2])}"
    if match[3]:
        expected = _descriptions(spot.kind).get(match[3], "text in another format")
        is_scalar = isinstance(value, str | int | float)
        return f"expected {expected}{f', found {_shown_value(value)}' if is_scalar else ''}"
    limit = "that is not empty" if match[4] == _NOT_EMPTY else match[4] or ""
    return f"expected {expected} {limit}".rstrip()


def advice(message: str, spot: Spot, source: str | None = None) -> str:
    """Return what to write in YAML instead of what a validation error is about; perhaps nothing.

    `source`: how a number, a date or another scalar is written in the file.
    """
    match = _EXPECTED.match(message)
    if match is None:
        return ""
    names, actual = _names(match), match[2]
    if actual == "null" or match[4] == _NOT_EMPTY:
        return "Write a value, or remove the key."
    if actual in {"int", "float", "bool"} and "str" in names:
        return f'Put it in quotes: "{source}"' if _is_short(source) else "Put it in quotes."
    extras = [meta.extra for meta in type_paths.metas(spot.kind) if meta.extra]
    if actual == "str" and "array" in names and _is_short(spot.value):
        are_words = any("words" in extra for extra in extras)
        return f"Write a list: [{', '.join(spot.value.split()) if are_words else spot.value}]"
    if match[3] and (similar := _similar(spot, match[3])):
        return f"Did you mean '{similar}'?"
    pairs = (_INSTEAD[name, actual] for name in names if actual and (name, actual) in _INSTEAD)
    hints = (extra["hint"] for extra in extras if "hint" in extra)
    return str(next(chain(pairs, hints), ""))


def _similar(spot: Spot, pattern: str) -> str | None:
    """Return a text in lower case and with hyphens if that has the pattern and is another one."""
    text = spot.value if spot.key is None else spot.key
    if not isinstance(text, str):
        return None
    plain = text.lower().replace("_", "-").replace(" ", "-")
    patterns = (m.pattern for m in type_paths.metas(spot.kind) if repr(m.pattern) == pattern)
    fits = _is_short(plain) and any(re.search(p, plain) for p in patterns if p)
    return plain if fits and plain != text else None


def _names(match: re.Match[str]) -> list[str]:
    """Return the kinds that were expected; leaving a value out is not one to write."""
    names = [name.strip() for name in match[1].split("|")]
    return [name for name in names if name != "null"] or names


def _is_short(text: Any) -> bool:
    return isinstance(text, str) and _SHORT_ITEMS.match(text) is not None


def _shown_value(value: Any) -> str:
    return shown(str(value)) if value is not None else "the value"


def _descriptions(kind: Any) -> dict[str, str]:
    """Return what each pattern of a type describes, by the pattern as msgspec prints it."""
    return {
        repr(meta.pattern): meta.description
        for meta in type_paths.metas(kind)
        if meta.pattern and meta.description
    }


def _values(kind: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, also inside a union."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(value for argument in get_args(kind) for value in _values(argument))
