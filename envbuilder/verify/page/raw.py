"""Flatten the rest of a report into tables of dotted names and texts, collapsed on the page."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_ROWS = 600
"""Maximum number of rows in a table; a typical host has about sixty."""

MOST_DEPTH = 6

_SHOWN = {"host", "kernels", "traceback", "checks", "reasons", "warnings"}
_TABLES = (("This machine", "host"), ("Kernels that the profiler saw", "kernels"))


def tables(report: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each table's title and rows; omit what other sections show in full.

    Reads the report as stored, since a payload may write keys that envbuilder does not know.
    """
    for title, key in _TABLES:
        if report.get(key):
            yield title, list(islice(flat(report[key]), MOST_ROWS))
    rest = {key: value for key, value in report.items() if key not in _SHOWN}
    if training := rest.get("training"):
        rest["training"] = {k: v for k, v in training.items() if k not in {"epochs", "losses"}}
    yield "The rest of the report", list(islice(flat(rest), MOST_ROWS))


def flat(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the leaves of a nested value as (dotted name, text), in order; null is "–"."""
    if isinstance(value, Mapping) and value and depth < MOST_DEPTH:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list) and value and depth < MOST_DEPTH:
        if any(isinstance(item, Mapping | list) for item in value):
            for place, item in enumerate(value, 1):
                yield from flat(item, f"{name}[{place}]", depth + 1)
        else:
            yield name, ", ".join(map(_leaf, value))
    else:
        yield name, _leaf(value)


def _leaf(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if isinstance(value, int) or (value and isinstance(value, str)) else "–"
