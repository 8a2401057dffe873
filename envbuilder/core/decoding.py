"""Decode JSON and convert data into types, in any number of threads.

At the first use of a Struct type, msgspec (0.22.0) builds its description of that type: in Python
code, without a lock, and visible to other threads before it is complete. Two threads that decode
into a new type at once may end the process with SIGSEGV. Here one lock covers that first use, which
describes the types of all fields, too; later uses take no lock. Encoding describes nothing.
`tests/integration/test_decoding.py` fails once msgspec no longer needs this.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar, overload

import msgspec

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
