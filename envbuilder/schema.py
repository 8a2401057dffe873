"""Strict reading of YAML into typed data; errors name file, line, key and a suggestion."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import yaml

from envbuilder.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 32
_SHORT = 8192
"""Characters: text up to here cannot be nested deeply enough to matter, and most profiles are."""


class _Loader(_Base):  # type: ignore[misc]
    """Safe YAML without duplicate keys: PyYAML would silently keep the last one."""


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is not text", key_node.start_mark
            )
        if key in result:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} appears twice", key_node.start_mark
            )
        result[key] = loader.construct_object(value_node, deep=True)
    return result


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_text(path: Path) -> str:
    """The UTF-8 text of a file; `InvalidError` when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"{path}: cannot be read: {error}") from error


def require_shallow(text: str) -> None:
    """`ValueError` for YAML that is nested more than 32 deep.

    The C loader follows nested collections by recursion: a file of 200,000 times "[" ends the
    process (tried with PyYAML 6.0.3). Events are read without recursion.
    """
    depth = 0
    for event in yaml.parse(text, _Base):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """One YAML mapping from `text`; `where` names the file in errors."""
    try:
        if len(text) > _SHORT:
            require_shallow(text)
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 (_Loader is a safe loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error) or type(error).__name__
        raise InvalidError(f"{where}{line}: not valid YAML: {problem}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidError(f"{where}: expected a mapping of keys, found {type(data).__name__}")
    return data


def decode(
    data: dict[str, Any],
    kind: type[T],
    where: str,
    text: str = "",
    hints: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """`data` as `kind`; unknown keys and wrong types become `InvalidError`.

    `hints`: what to do instead of a key that people write at the top, but that is none.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise explain(error, kind, where, text, hints) from error


def explain(
    error: msgspec.ValidationError,
    kind: type[Any],
    where: str,
    text: str,
    hints: Mapping[str, str] = MappingProxyType({}),
) -> InvalidError:
    """The `InvalidError` for a validation error: key path, line where known, "did you mean"."""
    message, _, raw_path = str(error).partition(" - at ")
    path = re.findall(r"[\w-]+", raw_path.strip("`").removeprefix("$"))
    unknown = re.search(r"unknown field `(.+)`", message)
    hint = ""
    if unknown:
        hint = _instead(unknown[1], path, kind, {} if path else hints)
        path.append(unknown[1])
        message = "unknown key"
    else:
        message = message[:1].lower() + message[1:]
    dotted = ".".join(path)
    return InvalidError(
        f"{place(where, text, path)}: {dotted + ': ' if dotted else ''}{message}", hint
    )


def _instead(key: str, above: list[str], kind: Any, hints: Mapping[str, str]) -> str:
    """What to write instead of an unknown key: one that may stand there, else one from below."""
    from difflib import get_close_matches

    level = [kind]
    for part in above:
        level = [t for struct in _structs(level) for n, t in _fields(struct) if n == part] or level
    there = {
        name: f"Did you mean '{name}'?" for struct in _structs(level) for name, _ in _fields(struct)
    }
    below = _below(kind)
    exactly = hints.get(key) or below.get(key)
    if exactly:
        return exactly
    for known in ({**there, **hints}, below):
        close = get_close_matches(key, sorted(known), n=1)
        if close:
            return known[close[0]]
    return "Remove the key."


def _below(kind: Any, prefix: str = "") -> dict[str, str]:
    """Keys that may appear anywhere below a type → the hint that says where."""
    found: dict[str, str] = {}
    for struct in _structs([kind]):
        for name, inner in _fields(struct):
            found.setdefault(name, f"Did you mean '{prefix}{name}'?")
            for key, hint in _below(inner, f"{prefix}{name}.").items():
                found.setdefault(key, hint)
    return found


def _structs(kinds: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """The structures that values of these types are, or hold without another in between."""
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield kind
        else:
            yield from _structs(getattr(kind, "__args__", ()))


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    return ((f.encode_name, f.type) for f in msgspec.structs.fields(struct))


def place(where: str, text: str, path: list[str]) -> str:
    """A file, and the line of a key path where its text says so, as errors name them."""
    line = _line_of(text, path)
    return f"{where}:{line}" if line else where


def _line_of(text: str, path: list[str]) -> int | None:
    """1-based line of a key path in YAML text, as deep as the path can be followed."""
    if not text:
        return None
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = None
    for part in path:
        step = None
        if isinstance(node, yaml.MappingNode):
            step = next(((k, v) for k, v in node.value if k.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and part.isdigit():
            item = node.value[int(part)]
            step = (item, item)
        if step is None:
            break
        line, node = step[0].start_mark.line + 1, step[1]
    return line
