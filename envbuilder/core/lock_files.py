"""Decode the files of locks, of wheels or of conda packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from envbuilder.core import decoding
from envbuilder.core.errors import Hint, InvalidError, shown
from envbuilder.core.text import binary_size

_T = TypeVar("_T", bound=msgspec.Struct)


def decoded(
    content: bytes,
    path: Path,
    kind: type[_T],
    schema: int,
    check: Callable[[_T, Path], None],
    name: str,
    command: tuple[str, ...],
) -> _T:
    """Return a lock of any kind. Raises `InvalidError` if it is damaged or of an unknown schema.

    `check` raises `InvalidError` for what types cannot express. `name` stands for the lock in
    messages, `command` makes it anew.
    """
    again = Hint("Restore it, or make it anew", command)
    if len(content) > decoding.LARGEST:
        raise InvalidError(
            f"{path}: not a lock: larger than {binary_size(decoding.LARGEST)}", again
        )
    try:
        data = decoding.strict_json(content)
    except ValueError as error:
        raise InvalidError(f"{path}: not a lock: {error}", again) from error
    number = data.get("schema") if isinstance(data, dict) else None
    if number != schema:
        raise InvalidError(
            f"{path}: {name} schema {str(number)[:20]} is unknown to this envbuilder (it reads"
            f" {schema})",
            Hint("Use a newer envbuilder, or make it anew", command),
        )
    # PROFILE.json, or in a project ENVIRONMENT.PROFILE.json.
    if data.get("profile") not in path.name.split(".")[:2]:
        raise InvalidError(
            f"{path}: profile: is {shown(str(data.get('profile')))}: this is another profile's"
            f" {name}",
            again,
        )
    try:
        lock = decoding.convert(data, kind)
        check(lock, path)
    except msgspec.ValidationError as error:
        raise InvalidError(decoding.explain(error, kind, str(path), "").message, again) from error
    except InvalidError as error:
        raise InvalidError(error.message, again) from error
    return lock
