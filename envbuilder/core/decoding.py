"""Decode JSON and YAML into types. Decoding is thread-safe, and strict for untrusted text.

Error messages contain the file, the line and the key, and suggest what to write instead.

When a Struct type is first used, msgspec (0.22.0) builds its description of that type. It does so
in Python code, without a lock, and other threads can see the description before it is complete. If
two threads decode into a new type at the same time, the process may crash with SIGSEGV. In this
module, a lock protects the first use of a type, which also builds the descriptions of the types of
all its fields. Later uses take no lock. Encoding does not build descriptions.
`tests/integration/test_decoding.py` fails once msgspec no longer needs this lock.

If a key occurs twice, common parsers keep the last value. A reviewer or tool that checks the first
value then sees a different value from the one that is used, so `strict_json` rejects duplicate
keys.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from threading import Lock
from types import MappingProxyType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

import msgspec

from envbuilder.core.errors import SHOWN, Hint, InvalidError, escaped, shown
from envbuilder.core.text import binary_size

Hints = Mapping[type[msgspec.Struct], Mapping[str, str]]
_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)
_describing = Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
"""Decoders by type. Only types that appear in the code are decoded, so there are never many."""
LINES: dict[str, Mapping[tuple[str, ...], int]] = {}
"""For each YAML text whose parsed data came from a cache, the lines of its keys and items."""
LARGEST = 16 << 20
"""Maximum size in bytes of a document from an index, a repository or another user."""
MOST_VALUES = 1_000_000
"""Maximum number of values in a document from an index, a repository or another user.

A conda lock with 12 targets has 100,000.
"""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escaped surrogate.

A surrogate that is not part of a pair cannot be encoded in files or output.
"""
_PART = re.compile(r"\.([\w-]+)|\[(\d+|\.\.\.)\]")
_ANY_KEY = "..."
"""Placeholder that msgspec writes in place of a key in a mapping that allows any keys."""
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
    ("str", "object"): "Write text, in quotes if it contains a colon.",
}
"""Pairs of the expected kind and the kind found → advice on what to write."""
_SHORT_ITEMS = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .,_/=<>~-]{0,40}\Z")
_EXPECTED = re.compile(
    r"Expected `([^`]+)`(?:, got `([^`]+)`)?(?: matching regex (.+)| (.+))?\Z", re.DOTALL
)
_NOT_EMPTY = "of length >= 1"
_MISSING = re.compile(r"Object missing required field `(.+)`\Z")
_ENUM = re.compile(r"Invalid enum value (.+)\Z", re.DOTALL)
_LONGEST_MESSAGE = 200
"""Maximum number of characters in an error message that repeats keys from the user's file."""


@overload
def from_json(content: bytes | str, kind: type[_T]) -> _T: ...
@overload
def from_json(content: bytes | str, kind: Any) -> Any: ...
def from_json(content: bytes | str, kind: Any) -> Any:
    """Decode the JSON document `content` as the type `kind`.

    Raise the same errors as `msgspec.json.decode`.
    """
    return _decoder(kind).decode(content)


@overload
def convert(data: Any, kind: type[_T]) -> _T: ...
@overload
def convert(data: Any, kind: Any) -> Any: ...
def convert(data: Any, kind: Any) -> Any:
    """Convert plain `data` to the type `kind`. Raise the same errors as `msgspec.convert`."""
    _decoder(kind)
    return msgspec.convert(data, kind)


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder for a type. Creating the decoder also prepares the type for `convert`."""
    try:
        decoder = _decoders.get(kind)
    except TypeError:  # unhashable, such as Annotated with a dictionary
        with _describing:
            return msgspec.json.Decoder(kind)
    if decoder is None:
        with _describing:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


def strict_json(content: bytes) -> Any:
    """Parse a JSON document. Raise `ValueError` with a short reason if it is invalid."""
    if len(content) > LARGEST:
        raise ValueError(f"larger than {LARGEST >> 20} MiB")
    require_few_values(content)
    try:
        text = content.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("it contains a lone surrogate (half of an escaped character)") from error
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8 text") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} in line {error.lineno}") from error
    return value


def require_few_values(content: bytes) -> None:
    """Raise `ValueError` if a document may contain more than `MOST_VALUES` values.

    An empty list takes 3 bytes of text but 80 bytes of memory.
    """
    # At least as many as there are, since text may contain these characters, too.
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES} values")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {shown(twice)} appears twice")
    return mapping


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Parse a YAML mapping and return it. `where` is the file name to show in errors.

    Raise `InvalidError` if the text is not valid YAML or does not contain a mapping.
    """
    from envbuilder.core import yaml_files  # PyYAML takes as long as Python's own start

    try:
        data = yaml_files.load(text)
    except yaml_files.StrictYamlError as error:
        raise InvalidError(
            f"{where}:{error.line}: not valid YAML: {error.problem}", error.hint
        ) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidError(
            f"{where}:1: expected a mapping of keys, found {kind_of(data)}",
            "Begin with a key and a colon.",
        )
    return data


def decode(
    data: dict[str, Any],
    kind: type[_T],
    where: str,
    text: str = "",
    hints: Hints = MappingProxyType({}),
) -> _T:
    """Convert `data` to the type `kind`. Raise `InvalidError` for unknown keys and wrong types.

    For each struct, `hints` maps common wrong keys to advice on what to write instead of them.
    """
    try:
        return convert(data, kind)
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
    """Return an `InvalidError` that explains a validation error from msgspec.

    The message of the new error contains the path of the key and, if known, the line of the key.
    The hint suggests what to write instead.
    """
    message, _, location = str(error).partition(" - at ")
    spot = locate(location, kind, data)
    unknown = re.search(r"unknown field `(.+)`", message, re.DOTALL)
    path = list(spot.path)
    below = [] if spot.key is None else [spot.key]
    hint = ""
    if unknown:
        hint = _instead(unknown[1], path, kind, hints)
        path.append(unknown[1])
        message = "unknown key"
    else:
        if text:
            from envbuilder.core import yaml_files

            # The value of a free key may be a secret.
            written = yaml_files.load(text, scalars_as_text=True)
            source = None if spot.value is None else reduce(item, path, written)
            hint = advice(message, spot, source if isinstance(source, str) else None)
        message = worded(message, spot)
        message = f"of a key, {message}" if below else message
        message = escaped(message, _LONGEST_MESSAGE)
    spot_line = place(where, text, [*path, *below])
    return InvalidError(f"{spot_line}: {dotted(path)}{message}", hint)


def place(where: str, text: str, path: Sequence[str]) -> str:
    """Return the location to show in an error: the file and, if known, the line of the key."""
    numbers = lines(text)
    for depth in range(len(path), 0, -1):
        if line := numbers.get(tuple(path[:depth])):
            return f"{where}:{line}"
    return where


def lines(text: str) -> Mapping[tuple[str, ...], int]:
    """Return the line of each key and item in a YAML text.

    The result maps the path of each key or item to its line. Indexes in a path are strings.
    """
    if text in LINES:
        return LINES[text]
    from envbuilder.core import yaml_files

    return yaml_files.lines(text)


def error_at(
    where: str, text: str, path: Sequence[str], problem: str, hint: str = ""
) -> InvalidError:
    """Return an `InvalidError` about a key in a file.

    The error contains the location of the key, the problem and a hint.
    """
    return InvalidError(f"{place(where, text, path)}: {dotted(path)}{problem}", hint)


def dotted(path: Iterable[str]) -> str:
    """Return a key path as the start of a message, such as `environments.train.python: `."""
    keys = ".".join(escaped(key, SHOWN) for key in path)
    return f"{keys}: " if keys else ""


def _instead(key: str, above: list[str], kind: Any, hints: Hints) -> str:
    """Return a hint on what to write instead of an unknown key.

    Prefer the same key at another level of the file, then a similar key at this level, then a
    similar key at another level.
    """
    from difflib import get_close_matches

    level: dict[str, str] = {}
    for struct in structs([reduce(below, above, kind)]):
        level |= {name: f"Did you mean '{name}'?" for name, _ in fields(struct)}
        level |= hints.get(struct, {})
    if key in level:
        return level[key]
    top: set[str] = set()
    for struct in structs([kind]):
        top |= {name for name, _ in fields(struct)}
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
    """Return hints for all keys inside a type. Each hint suggests the full path of a key.

    The result maps each key that may appear at any level to its hint.
    """
    hints: dict[str, str] = {}
    for struct in structs([kind]):
        for name, inner in fields(struct):
            hints.setdefault(name, f"Did you mean '{prefix}{name}'?")
            for key, hint in _below(inner, f"{prefix}{name}.").items():
                hints.setdefault(key, hint)
    return hints


def kind_of(value: Any) -> str:
    """Return the kind of a YAML or JSON value in words, such as "a list"."""
    kinds = {list: "array", dict: "object", type(None): "null"}
    name = kinds.get(type(value), type(value).__name__)
    return _KINDS.get(name, name)


def worded(message: str, spot: Spot) -> str:
    """Rephrase msgspec's message about an invalid value in plain words."""
    if match := _MISSING.match(message):
        return f"the key '{match[1]}' is missing"
    value = spot.value if spot.key is None else spot.key
    if _ENUM.match(message):
        possible = ", ".join(map(str, _values(spot.kind)))
        expected = f"one of {possible}" if possible else "a valid value"
        shown_value = shown(str(value)) if value is not None else "the value"
        return f"{shown_value} is not {expected}"
    match = _EXPECTED.match(message)
    if match is None:
        return message[:1].lower() + message[1:]
    expected = " or ".join(_KINDS.get(name, name) for name in _names(match))
    if match[2]:
        return f"expected {expected}, found {_KINDS.get(match[2], match[2])}"
    if match[3]:  # a pattern, as msgspec prints it
        described = (m.description for m in metas(spot.kind) if repr(m.pattern) == match[3])
        expected = f"expected {next(described, None) or 'text in another format'}"
        is_scalar = isinstance(value, str | int | float)
        return f"{expected}, found {shown(str(value))}" if is_scalar else expected
    limit = "that is not empty" if match[4] == _NOT_EMPTY else match[4] or ""
    return f"expected {expected} {limit}".rstrip()


def advice(message: str, spot: Spot, source: str | None = None) -> str:
    """Return advice on what to write in YAML instead of an invalid value, or "" if there is none.

    `source` is the text of a number, a date or another scalar as it is written in the file.
    """
    match = _EXPECTED.match(message)
    if match is None:
        return ""
    names = _names(match)
    actual = match[2]
    if actual == "null" or match[4] == _NOT_EMPTY:
        return "Write a value, or remove the key."
    if actual in {"int", "float", "bool"} and "str" in names:
        return f'Put it in quotes: "{source}"' if _is_short(source) else "Put it in quotes."
    extras = [meta.extra for meta in metas(spot.kind) if meta.extra]
    if actual == "str" and "array" in names and _is_short(spot.value):
        are_words = any("words" in extra for extra in extras)
        return f"Write a list: [{', '.join(spot.value.split()) if are_words else spot.value}]"
    for name in names:
        if (name, actual) in _INSTEAD:
            return _INSTEAD[name, actual]
    return next((str(extra["hint"]) for extra in extras if "hint" in extra), "")


def _names(match: re.Match[str]) -> list[str]:
    """Return the names of the types that msgspec expected. Omit null unless it is the only one.

    If null were included, a hint could suggest leaving out a value.
    """
    names = [name.strip() for name in match[1].split("|")]
    return [name for name in names if name != "null"] or names


def _is_short(text: Any) -> bool:
    return isinstance(text, str) and _SHORT_ITEMS.match(text) is not None


def _values(kind: Any) -> tuple[Any, ...]:
    """Return the values of a Literal type, or of all Literal types in a union."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(value for argument in get_args(kind) for value in _values(argument))


class Spot(NamedTuple):
    """The location in the data to which a validation error refers."""

    path: tuple[str, ...]
    """Keys and indexes that lead to this place."""
    kind: Any
    """The expected type, or None if no type is known for this path."""
    value: Any
    """The invalid value.

    None if the value is unknown. Also None if the user chose its key freely, since the value may
    then be a secret.
    """
    key: str | None = None
    """The wrong key, or None if the key is right and the value at the path is wrong."""


def locate(location: str, kind: Any, data: Any) -> Spot:
    """Return the location in the data to which the path in a msgspec error refers.

    Such paths have the form `$.a[0].b` or `$.a[...]`.
    """
    path: list[str] = []
    is_public = True
    for name, index in _PART.findall(location):
        part = name or index
        if part == _ANY_KEY:
            part = _first_invalid(_pairs(data), below(kind, part))
        is_public = index != _ANY_KEY
        kind = below(kind, part or _ANY_KEY)
        data = item(data, part) if part is not None else None
        path += [part] if part is not None else []
    if location.startswith("`key`"):
        kind = next((get_args(k)[0] for k in _members(kind) if get_origin(k) is dict), None)
        keys = ((key, key) for key, _ in _pairs(data))
        return Spot(tuple(path), kind, None, _first_invalid(keys, kind))
    return Spot(tuple(path), kind, data if is_public else None)


def below(kind: Any, key: str) -> Any:
    """Return the type of the value at `key` within a value of the type `kind`.

    `kind` is a struct, a mapping or a list. Return None if the type is unknown.
    """
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return dict(fields(kind)).get(key)
    arguments = get_args(kind)
    if get_origin(kind) is dict:
        return arguments[1]
    if get_origin(kind) in {tuple, list, frozenset}:
        return arguments[0]
    return next((found for a in arguments if (found := below(a, key)) is not None), None)


def structs(kinds: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yield all structs among these types, including those within unions and collections."""
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield kind
        else:
            yield from structs(getattr(kind, "__args__", ()))


def fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a struct, as they are written in files, and their types."""
    return ((f.encode_name, f.type) for f in msgspec.structs.fields(struct))


def metas(kind: Any) -> Iterator[msgspec.Meta]:
    """Yield the `Meta` annotations of a type or, for a union, of each of its members."""
    for member in _members(kind):
        for meta in getattr(member, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta):
                yield meta


def _members(kind: Any) -> Sequence[Any]:
    """Return the members of a union, or a tuple of only the type itself if it is not a union."""
    if get_origin(kind) in {Union, UnionType}:
        return get_args(kind)
    return (kind,)


def item(data: Any, key: str) -> Any:
    """Return the item of a mapping or list at this key or index, or None if there is none."""
    try:
        if isinstance(data, list | tuple):
            return data[int(key)]
        return data[key]
    except (LookupError, TypeError, ValueError):
        return None


def _pairs(data: Any) -> Iterable[tuple[Any, Any]]:
    return data.items() if isinstance(data, dict) else ()


def _first_invalid(pairs: Iterable[tuple[Any, Any]], kind: Any) -> str | None:
    """Return the first key whose value does not have the type `kind`, or None if all values do."""
    for key, value in pairs:
        if not _fits(value, kind):
            return str(key)
    return None


def _fits(value: Any, kind: Any) -> bool:
    if kind is None:  # unknown; to msgspec, the type of nothing
        return True
    try:
        convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def decode_lock(
    content: bytes,
    path: Path,
    kind: type[_S],
    schema: int,
    check: Callable[[_S, Path], None],
    name: str,
    command: tuple[str, ...],
) -> _S:
    """Decode the content of a lock file, and return it as the type `kind`.

    Raise `InvalidError` if the lock is damaged or has an unknown schema. `check` raises
    `InvalidError` for errors that the types cannot express. `name` is the name of the lock in
    messages. `command` is the command that creates a new lock.
    """
    again = Hint("Restore the file, or make a new one", command)
    if len(content) > LARGEST:
        raise InvalidError(f"{path}: not a lock: larger than {binary_size(LARGEST)}", again)
    try:
        data = strict_json(content)
    except ValueError as error:
        raise InvalidError(f"{path}: not a lock: {error}", again) from error
    number = data.get("schema") if isinstance(data, dict) else None
    if number != schema:
        raise InvalidError(
            f"{path}: {name} schema {str(number)[:20]} is not supported (supported: {schema})",
            Hint("Use a newer envbuilder, or make a new lock", command),
        )
    # PROFILE.json, or in a project ENVIRONMENT.PROFILE.json.
    if data.get("profile") not in path.name.split(".")[:2]:
        raise InvalidError(
            f"{path}: profile: this {name} is for another profile,"
            f" {shown(str(data.get('profile')))}",
            again,
        )
    try:
        lock = convert(data, kind)
        check(lock, path)
    except msgspec.ValidationError as error:
        raise InvalidError(explain(error, kind, str(path), "").message, again) from error
    except InvalidError as error:
        raise InvalidError(error.message, again) from error
    return lock
