"""Decode JSON: into types, in any number of threads, and strictly if it is from outside.

At the first use of a Struct type, msgspec (0.22.0) builds its description of that type: in Python
code, without a lock, and visible to other threads before it is complete. Two threads that decode
into a new type at once may end the process with SIGSEGV. Here one lock covers that first use, which
describes the types of all fields, too; later uses take no lock. Encoding describes nothing.
`tests/integration/test_decoding.py` fails once msgspec no longer needs this.

Common parsers keep the last of two equal keys, so that a reviewer or tool that checks the first one
sees a different value from the one that is used: `strict_json` refuses them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from threading import Lock
from typing import Any, NoReturn, TypeVar, overload

import msgspec

from envbuilder.core.text import shown

_T = TypeVar("_T")
_describing = Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
"""By type. Types are those that the code names, so there are never many."""


@overload
def from_json(content: bytes | str, kind: type[_T]) -> _T: ...
@overload
def from_json(content: bytes | str, kind: Any) -> Any: ...
def from_json(content: bytes | str, kind: Any) -> Any:
    """Return the JSON `content` as `kind`; raise like `msgspec.json.decode`."""
    return _decoder(kind).decode(content)


@overload
def convert(data: Any, kind: type[_T]) -> _T: ...
@overload
def convert(data: Any, kind: Any) -> Any: ...
def convert(data: Any, kind: Any) -> Any:
    """Return `data` as `kind`; raise like `msgspec.convert`."""
    _decoder(kind)
    return msgspec.convert(data, kind)


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type, with which msgspec describes the type for `convert`, too."""
    try:
        decoder = _decoders.get(kind)
    except TypeError:  # unhashable, such as Annotated with a dictionary
        with _describing:
            return msgspec.json.Decoder(kind)
    if decoder is None:
        with _describing:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


LARGEST = 16 << 20
"""Maximum size of a document in bytes."""
MOST_VALUES = 1_000_000
"""Maximum number of values in a document; a conda lock of 12 targets has 100,000."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escaped surrogate; without its other half, it cannot be encoded in a file or output."""


def strict_json(content: bytes) -> Any:
    """Return the value of a document. Raises `ValueError` with a short reason if it is invalid."""
    if len(content) > LARGEST:
        raise ValueError(f"larger than {LARGEST >> 20} MiB")
    require_few_values(content)
    try:
        text = content.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("it escapes half a character (a lone surrogate)") from error
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8 text") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} in line {error.lineno}") from error
    return value


def require_few_values(content: bytes) -> None:
    """Raise `ValueError` if a document may have more than `MOST_VALUES` values.

    An empty list takes 3 bytes of text and 80 of memory.
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
