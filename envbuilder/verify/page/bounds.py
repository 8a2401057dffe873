"""Prepare a report for a page: bound its texts, lists and depth, replace what cannot be shown.

Markup needs no care here: the templates escape everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuilder.core.text import printable

MOST_CHARACTERS = 600
"""Longer texts are cut; genuine sentences are below 300."""

TRACEBACK = 8000
MOST_ITEMS = 400
MOST_DEPTH = 20


def displayable(report: Any) -> Any:
    """Return a report in which every text can be shown; of a traceback, only the end is kept."""
    shown = _bounded(report, MOST_DEPTH)
    if isinstance(report, Mapping) and isinstance(report.get("traceback"), str):
        shown["traceback"] = _tail(report["traceback"])
    return shown


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _text(value, MOST_CHARACTERS)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if not depth:
        return None
    if isinstance(value, Mapping):
        pairs = list(value.items())[:MOST_ITEMS]
        return {_text(str(key), 80): _bounded(inner, depth - 1) for key, inner in pairs}
    return [_bounded(item, depth - 1) for item in value[:MOST_ITEMS]]


def _text(value: str, most: int) -> str:
    shown = printable(value[:most], most, instead="\N{REPLACEMENT CHARACTER}", lines=True)
    return shown if len(value) <= most else f"{shown} … ({len(value) - most:,} more characters)"


def _tail(traceback: str) -> str:
    """Return the end of a traceback, which names the error."""
    end = _text(traceback[-TRACEBACK:], TRACEBACK)
    cut = len(traceback) - TRACEBACK
    return f"… ({cut:,} characters before)\n{end}" if cut > 0 else end
