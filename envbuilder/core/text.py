"""Format text and numbers for display: untrusted text on one line, numbers, sizes, percentages."""

from __future__ import annotations


def printable(text: str, limit: int = 1000) -> str:
    """Return untrusted text on one line that cannot move a terminal's cursor or hide other text.

    Control characters, line breaks and bidirectional controls become `?`.
    """
    clean = "".join(c if c.isprintable() else "?" for c in text).strip()
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


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
