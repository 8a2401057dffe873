"""Data with one part missing: of a judgement, every part of its input is left out in turn."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]


def parts(data: Any, above: Path = ()) -> Iterator[Path]:
    """Yield the path of every key and every item, those inside of others, too."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from parts(value, (*above, key))


def without(data: Any, *paths: Path) -> Any:
    """Return data without these parts; of items of one list, name the last one first."""
    left = copy.deepcopy(data)
    for path in paths:
        container = left
        for key in path[:-1]:
            container = container[key]
        del container[path[-1]]
    return left


def without_each(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield each part's path, such as `signatures.0.sig`, with a copy of the JSON without it."""
    for path in parts(document):
        yield ".".join(map(str, path)), without(document, path)
