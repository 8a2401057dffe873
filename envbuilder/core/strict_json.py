"""Strict parsing of untrusted JSON: UTF-8, limited size, no duplicate keys.

Common parsers keep the last of two equal keys, so that a reviewer or tool that checks the first one
sees a different value from the one that is used.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, NoReturn

from envbuilder.core.text import shown

LARGEST = 16 << 20
"""Maximum size of a document in bytes."""
MOST_VALUES = 1_000_000
"""Maximum number of values in a document; a conda lock of 12 targets has 100,000."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escaped surrogate; without its other half, it cannot be encoded in a file or output."""


def loads(content: bytes) -> Any:
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
