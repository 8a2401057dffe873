"""Strict decoding of YAML into typed data; errors name file, line, key and a suggestion."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from envbuilder.core import decoding, files, strict_yaml, type_paths, wording
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import SHOWN, escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    Hints = Mapping[type[msgspec.Struct], Mapping[str, str]]

T = TypeVar("T")
_LONGEST_MESSAGE = 200


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a file of limited size. Raises `InvalidError` if that fails."""
    try:
        content = files.read(path, strict_yaml.LARGEST_FILE)
    except OSError as error:
        raise InvalidError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidError(f"{path}:{line}: not UTF-8 text", "Save it as UTF-8.") from error


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Return the YAML mapping in `text`; `where` names the file in errors."""
    try:
        data = strict_yaml.load(text)
    except strict_yaml.StrictYamlError as error:
        message = f"{where}:{error.line}: not valid YAML: {error.problem}"
        raise InvalidError(message, error.hint) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidError(
            f"{where}:1: expected a mapping of keys, found {wording.kind_of(data)}",
            "Begin with a key and a colon.",
        )
    return data


def decode(
    data: dict[str, Any],
    kind: type[T],
    where: str,
    text: str = "",
    hints: Hints = MappingProxyType({}),
) -> T:
    """Return `data` as `kind`; unknown keys and wrong types raise `InvalidError`.

    `hints`: for a struct, common wrong keys → what to do instead.
    """
    try:
        return decoding.convert(data, kind)
    except msgspec.ValidationError as error:
        raise explain(error, kind, where, text, hints, data) from error


def explain(
    error: msgspec.ValidationError,
    kind: type[Any],
    where: str,
    text: str,
    hints: Hints = MappingProxyType({}),
    data: Any = None,
) -> InvalidError:
    """Return the `InvalidError` for a validation error: key path, line if known, suggestion."""
    message, _, stated = str(error).partition(" - at ")
    spot = type_paths.locate(stated, kind, data)
    unknown = re.search(r"unknown field `(.+)`", message, re.DOTALL)
    path, below = list(spot.path), [] if spot.key is None else [spot.key]
    hint = ""
    if unknown:
        hint = _instead(unknown[1], path, kind, hints)
        path.append(unknown[1])
        message = "unknown key"
    else:
        if text:
            # The value of a free key may be a secret.
            source = None if spot.value is None else _source(text, path)
            hint = wording.advice(message, spot, source)
        message = wording.worded(message, spot)
        message = f"of a key, {message}" if below else message
        message = escaped(message, _LONGEST_MESSAGE)
    return InvalidError(f"{place(where, text, [*path, *below])}: {dotted(path)}{message}", hint)


def dotted(path: Iterable[str]) -> str:
    """Return a key path as the start of a message: `environments.train.python: `."""
    keys = ".".join(escaped(part, SHOWN) for part in path)
    return f"{keys}: " if keys else ""


def _source(text: str, path: Iterable[str]) -> str | None:
    """Return how a scalar is written in a file; None if the path leads to none."""
    data = strict_yaml.load(text, scalars_as_text=True)
    for part in path:
        data = type_paths.item(data, part)
    return data if isinstance(data, str) else None


def _instead(key: str, above: list[str], kind: Any, hints: Hints) -> str:
    """Return the hint for an unknown key.

    The same key in another place comes first, then a similar key in this place, then one elsewhere.
    """
    from difflib import get_close_matches

    level: dict[str, str] = {}
    for struct in type_paths.structs([type_paths.at(kind, above)]):
        level |= {name: f"Did you mean '{name}'?" for name, _ in type_paths.fields(struct)}
        level |= hints.get(struct, {})
    if key in level:
        return level[key]
    top = {name for struct in type_paths.structs([kind]) for name, _ in type_paths.fields(struct)}
    if key in top:
        return f"'{key}' belongs at the top level."
    elsewhere = _below(kind)
    if key in elsewhere:
        return elsewhere[key]
    for candidates in (level, elsewhere):
        close = get_close_matches(key[:SHOWN], sorted(candidates), n=1)
        if close:
            return candidates[close[0]]
    return "Remove the key."


def _below(kind: Any, prefix: str = "") -> dict[str, str]:
    """Return the keys that may appear anywhere below a type → the hint that says where."""
    hints: dict[str, str] = {}
    for struct in type_paths.structs([kind]):
        for name, inner in type_paths.fields(struct):
            hints.setdefault(name, f"Did you mean '{prefix}{name}'?")
            for key, hint in _below(inner, f"{prefix}{name}.").items():
                hints.setdefault(key, hint)
    return hints


def place(where: str, text: str, path: Sequence[str]) -> str:
    """Return the location for an error: the file, and the line of a key path if it is known."""
    line = _line_of(text, path)
    return f"{where}:{line}" if line else where


def _line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the 1-based line of a key path in YAML text, or of its deepest part that is found."""
    known = strict_yaml.lines(text) if text else {}
    deepest = (known.get(tuple(path[:depth])) for depth in range(len(path), 0, -1))
    return next(filter(None, deepest), None)
