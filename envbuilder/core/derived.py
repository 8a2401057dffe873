"""Remember what was derived from other data, in files that carry a hash of their own."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, TypeVar

import msgspec

from envbuilder.core import decoding, files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_T = TypeVar("_T")
_LARGEST = 64 << 20


def remembered(entry: Path, kind: type[_T], make: Callable[[], _T]) -> _T:
    """Return the value in the file `entry`, or that of `make`, which is then written there.

    A file that is damaged or holds a value of another type counts as missing. A value that cannot
    be written, on a full disk or below a folder that may not be changed, is made each time.
    """
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        digest, _, content = files.read(entry, _LARGEST).partition(b"\n")
        if _digest(content) == digest:
            return decoding.from_json(content, kind)
    value = make()
    content = msgspec.json.encode(value)
    with contextlib.suppress(OSError):
        files.write(entry, _digest(content) + b"\n" + content)
    return value


def _digest(content: bytes) -> bytes:
    return f"sha256:{hashlib.sha256(content).hexdigest()}".encode()
