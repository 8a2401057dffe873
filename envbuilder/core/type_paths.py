"""Follow the key path of a validation error through the expected type and the data."""

from __future__ import annotations

import re
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec

from envbuilder.core import decoding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_PART = re.compile(r"\.([\w-]+)|\[(\d+|\.\.\.)\]")
_ANY_KEY = "..."
"""Stands for the key in msgspec's paths through mappings with free keys."""


class Spot(NamedTuple):
    """The place of a validation error."""

    path: tuple[str, ...]
    """Keys and indexes that lead to it."""
    kind: Any
    """The expected type; None if the path leads to no type."""
    value: Any
    """The data; None if it is unknown, or the value of a free key, which may be a secret."""
    key: str | None = None
    """The wrong key, if a key is wrong instead of the value at the path."""


def locate(stated: str, kind: Any, data: Any) -> Spot:
    """Return the spot that a path of msgspec's (`$.a[0].b`, `$.a[...]`) means."""
    path: list[str] = []
    is_public = True
    for name, index in _PART.findall(stated):
        part = name or index
        if part == _ANY_KEY:
            part = _first_invalid(data, below(kind, part))
        is_public = index != _ANY_KEY
        kind = below(kind, part or _ANY_KEY)
        data = item(data, part) if part is not None else None
        path += [part] if part is not None else []
    if stated.startswith("`key`"):
        kind = next((get_args(k)[0] for k in _members(kind) if get_origin(k) is dict), None)
        return Spot(tuple(path), kind, None, _first_invalid_key(data, kind))
    return Spot(tuple(path), kind, data if is_public else None)


def at(kind: Any, path: Iterable[str]) -> Any:
    """Return the type that a key path leads to; None if it leads nowhere."""
    for part in path:
        kind = below(kind, part)
    return kind


def below(kind: Any, part: str) -> Any:
    """Return the type of a struct's field, or of the values of a mapping or a list."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return dict(fields(kind)).get(part)
    arguments = get_args(kind)
    if get_origin(kind) is dict:
        return arguments[1]
    if get_origin(kind) in {tuple, list, frozenset}:
        return arguments[0]
    return next((found for a in arguments if (found := below(a, part)) is not None), None)


def structs(kinds: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs that values of these types are, or contain directly."""
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield kind
        else:
            yield from structs(getattr(kind, "__args__", ()))


def fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a struct and their types."""
    return ((f.encode_name, f.type) for f in msgspec.structs.fields(struct))


def metas(kind: Any) -> Iterator[msgspec.Meta]:
    """Yield the annotations of a type, and of each member if it is a union."""
    for member in _members(kind):
        for meta in getattr(member, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta):
                yield meta


def _members(kind: Any) -> Sequence[Any]:
    """Return the members of a union; of any other type, itself."""
    return get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)


def item(data: Any, part: str) -> Any:
    """Return an item of a mapping or a list; None if there is none."""
    try:
        return data[int(part)] if isinstance(data, list | tuple) else data[part]
    except (LookupError, TypeError, ValueError):
        return None


def _first_invalid(data: Any, kind: Any) -> str | None:
    """Return the first key whose value does not have the type; None if there is none."""
    items = data.items() if isinstance(data, dict) else ()
    return next((str(key) for key, value in items if not _fits(value, kind)), None)


def _first_invalid_key(data: Any, kind: Any) -> str | None:
    """Return the first key that does not have the type; None if there is none."""
    keys = data if isinstance(data, dict) else ()
    return next((str(key) for key in keys if not _fits(key, kind)), None)


def _fits(value: Any, kind: Any) -> bool:
    if kind is None:  # unknown; to msgspec, the type of nothing
        return True
    try:
        decoding.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True
