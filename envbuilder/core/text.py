"""Format text and numbers for display: untrusted text on one line, numbers, sizes, percentages."""

from __future__ import annotations

import re
import textwrap

_COMMAND = re.compile(r"`[^`]*`")
_HARD_SPACE = "\N{NO-BREAK SPACE}"


def printable(text: str, limit: int = 1000) -> str:
    """Return untrusted text on one line that cannot move a terminal's cursor or hide other text.

    Control characters, line breaks and bidirectional controls become `?`.
    """
    clean = "".join(c if c.isprintable() else "?" for c in text).strip()
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


def wrapped(text: str, width: int, first: str = "", rest: str = "  ") -> str:
    """Wrap one line between words; a command in backticks stays whole, so that it can be copied.

    `first` and `rest` are put before the first line and before the others.
    """
    whole = _COMMAND.sub(lambda match: match[0].replace(" ", _HARD_SPACE), text)
    lines = textwrap.wrap(
        whole,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_HARD_SPACE, " ")


def amount(value: float) -> str:
    """Return a number with about three significant digits: 0.123, 1.23, 12.3, 1,234."""
    if not 1e-3 <= abs(value) < 1e9:
        return f"{value:.3g}"
    places = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{places}f}"


def gibibytes(size: object) -> str:
    """Return a memory size in GiB, or `-` if it is unknown or implausible."""
    if not isinstance(size, int | float) or not 0 < size < 1e18:
        return "-"
    return f"{size / 2**30:.0f} GiB"


def percent(share: float | None) -> str:
    """Return a fraction as a percentage, or `-` if it is unknown."""
    return "-" if share is None else f"{100 * share:.2f} %"
