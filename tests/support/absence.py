"""Documents that lack one of their parts, for judgements that must not improve by it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def without_each(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield each part's path, such as `signatures.0.sig`, with a copy of the JSON without it."""
    for path in _paths(document):
        lacking = copy.deepcopy(document)
        above = lacking
        for step in path[:-1]:
            above = above[step]
        del above[path[-1]]
        yield ".".join(map(str, path)), lacking


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (key,)
        if isinstance(inner, dict | list):
            yield from ((key, *below) for below in _paths(inner))
