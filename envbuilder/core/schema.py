"""Strict decoding of YAML into typed data; errors name file, line, key and a suggestion."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from envbuilder.core import bounded, strict_yaml, wording
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")
_LONGEST_MESSAGE = 200


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a file of limited size. Raises `InvalidError` if that fails."""
    try:
        content = bounded.read(path, strict_yaml.LARGEST_FILE)
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
        raise InvalidError(f"{where}:{error.line}: not valid YAML: {error.problem}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidError(f"{where}:1: expected a mapping of keys, found {type(data).__name__}")
    return data


def decode(
    data: dict[str, Any],
    kind: type[T],
    where: str,
    text: str = "",
    hints: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Return `data` as `kind`; unknown keys and wrong types raise `InvalidError`.

    `hints`: common wrong top-level keys → what to do instead.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise explain(error, kind, where, text, hints, data) from error


def explain(
    error: msgspec.ValidationError,
    kind: type[Any],
    where: str,
    text: str,
    hints: Mapping[str, str] = MappingProxyType({}),
    data: Any = None,
) -> InvalidError:
    """Return the `InvalidError` for a validation error: key path, line if known, suggestion."""
    message, _, raw_path = str(error).partition(" - at ")
    of_key = raw_path.startswith("`key` in ")
    path = re.findall(r"[\w-]+", raw_path.removeprefix("`key` in ").strip("`").removeprefix("$"))
    unknown = re.search(r"unknown field `(.+)`", message, re.DOTALL)
    hint = ""
    if unknown:
        hint = _instead(unknown[1], path, kind, {} if path else hints)
        path.append(unknown[1])
        message = "unknown key"
    else:
        found = None if of_key else _at(data, path)
        message = wording.worded(message, kind, path, found)
        message = escaped(f"of a key, {message}" if of_key else message, _LONGEST_MESSAGE)
    dotted = ".".join(escaped(part, strict_yaml.SHOWN) for part in path)
    return InvalidError(
        f"{place(where, text, path)}: {dotted + ': ' if dotted else ''}{message}", hint
    )


def _at(data: Any, path: list[str]) -> Any:
    """Return the value that a key path leads to; None if it leads nowhere."""
    for part in path:
        try:
            data = data[int(part)] if isinstance(data, list | tuple) else data[part]
        except (LookupError, TypeError, ValueError):
            return None
    return data


def _instead(key: str, above: list[str], kind: Any, hints: Mapping[str, str]) -> str:
    """Return the hint for an unknown key.

    The same key in another place comes first, then a similar key in this place, then one elsewhere.
    """
    from difflib import get_close_matches

    level = [kind]
    for part in above:
        level = [t for struct in _structs(level) for n, t in _fields(struct) if n == part] or level
    level_hints = {
        name: f"Did you mean '{name}'?" for struct in _structs(level) for name, _ in _fields(struct)
    }
    below = _below(kind)
    exactly = hints.get(key) or below.get(key)
    if exactly:
        return exactly
    for candidates in ({**level_hints, **hints}, below):
        close = get_close_matches(key[: strict_yaml.SHOWN], sorted(candidates), n=1)
        if close:
            return candidates[close[0]]
    return "Remove the key."


def _below(kind: Any, prefix: str = "") -> dict[str, str]:
    """Return the keys that may appear anywhere below a type → the hint that says where."""
    hints: dict[str, str] = {}
    for struct in _structs([kind]):
        for name, inner in _fields(struct):
            hints.setdefault(name, f"Did you mean '{prefix}{name}'?")
            for key, hint in _below(inner, f"{prefix}{name}.").items():
                hints.setdefault(key, hint)
    return hints


def _structs(kinds: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs that values of these types are, or contain directly."""
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield kind
        else:
            yield from _structs(getattr(kind, "__args__", ()))


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    return ((f.encode_name, f.type) for f in msgspec.structs.fields(struct))


def place(where: str, text: str, path: list[str]) -> str:
    """Return the location for an error: the file, and the line of a key path if it is known."""
    line = _line_of(text, path)
    return f"{where}:{line}" if line else where


def _line_of(text: str, path: list[str]) -> int | None:
    """Return the 1-based line of a key path in YAML text, or of its deepest part that is found."""
    known = strict_yaml.lines(text) if text else {}
    deepest = (known.get(tuple(path[:depth])) for depth in range(len(path), 0, -1))
    return next(filter(None, deepest), None)
