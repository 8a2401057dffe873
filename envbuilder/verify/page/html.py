"""Load the page templates: Jinja2 with autoescaping, because reports are untrusted."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from envbuilder.core import resources

_UNITS = re.compile(r"(?<=\d) (?=(?:[kMGTP]?(?:FLOP|B)(?:/s)?|[KMGT]iB|%|min|[mnµ]?s)(?!\w))")
"""The space between a number and its unit."""


@cache
def templates() -> Any:
    """Return the Jinja2 environment of the pages; its filter `code` marks up backquotes."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.templates_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_units_kept,
    )
    environment.filters["code"] = _code
    return environment


def _units_kept(value: Any) -> Any:
    """Return a text in which no line ends between a number and its unit."""
    # Markup is a subclass, and done.
    return _UNITS.sub("\N{NO-BREAK SPACE}", value) if type(value) is str else value


def _code(sentence: str) -> Any:
    """Return a sentence with backquoted text as `<code>`, all text escaped."""
    from markupsafe import Markup, escape

    parts = re.split(r"`([^`]*)`", sentence)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )
