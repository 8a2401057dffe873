"""Put text and figures into words for people: outside text on one line, sizes, shares, numbers."""

from __future__ import annotations


def printable(text: str, limit: int = 1000) -> str:
    """Text from outside on one line: nothing in it can move a terminal's cursor or hide the rest.

    Control characters, line ends and marks that turn the writing direction become `?`.
    """
    clean = "".join(c if c.isprintable() else "?" for c in text).strip()
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


def amount(value: float) -> str:
    """A number with about three digits that count: 0.123, 1.23, 12.3, 1,234."""
    if not 1e-3 <= abs(value) < 1e9:
        return f"{value:.3g}"
    places = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{places}f}"


def gibibytes(size: object) -> str:
    """A size of memory in GiB; `-` where it is not known or cannot be one."""
    if not isinstance(size, int | float) or not 0 < size < 1e18:
        return "-"
    return f"{size / 2**30:.0f} GiB"


def percent(share: float | None) -> str:
    """A share as a percentage; `-` where it is not known."""
    return "-" if share is None else f"{100 * share:.2f} %"
