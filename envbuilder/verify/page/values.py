"""Read a report's values leniently and format them for display.

Any report must yield a page: truncated, old, or crafted to harm its reader. So nothing here raises,
and a missing value is None or "", which the page omits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

MOST_CHARACTERS = 600
"""Longer sentences are truncated; genuine ones are below 300."""

MOST_ITEMS = 400
SPACE = "\N{NO-BREAK SPACE}"

# Control characters, lone surrogates, and bidirectional control characters: none of them can be
# displayed, and the last ones disguise text. Tab and newline stay.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufdd0-\ufdef\ufeff\ufffe\uffff]"
)


def mapping(value: Any) -> Mapping[Any, Any]:
    """Return a mapping unchanged, and an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any, most: int = MOST_ITEMS) -> list[Any]:
    """Return the first items of a list; an empty list for anything else."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return list(value[:most])
    return []


def number(value: Any) -> float | None:
    """Return a finite number as a float, else None. True and False are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def amount(value: Any) -> float | None:
    """Return a finite non-negative number (a duration, rate or size), else None."""
    found = number(value)
    return found if found is not None and found >= 0 else None


def count(value: Any) -> int | None:
    """Return a non-negative whole number, else None."""
    found = amount(value)
    return int(found) if found is not None and found == int(found) else None


def text(value: Any, most: int = MOST_CHARACTERS) -> str:
    """Return a scalar as safe text, truncated to `most` characters; "" for None and containers."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        found = number(value)
        if found is None:
            return "not a finite number"
        whole = isinstance(value, int) and abs(value) < 2**64
        return str(value) if whole else f"{found:.6g}"
    if not isinstance(value, str):
        return ""
    shown = _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", value[: most + 1]).strip()
    if len(value) <= most:
        return shown
    return f"{shown[:most]} … ({len(value) - most:,} more characters)"


def tail(value: Any, most: int) -> str:
    """Return the last `most` characters of a text: the end of a traceback names the error."""
    if not isinstance(value, str) or len(value) <= most:
        return text(value, most)
    return f"… ({len(value) - most:,} characters before)\n{text(value[-most:], most)}"


def texts(value: Any) -> list[str]:
    """Return the non-empty texts of a list."""
    return [shown for item in items(value) if (shown := text(item))]


def significant(value: float) -> str:
    """Format with three significant digits and no exponent: 0.0123, 1.23, 12.3, 1,234."""
    if value == 0 or not math.isfinite(value):
        return "∞" if value else "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(digits, 0), 12)}f}"


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    for size, unit in units:
        if value >= size:
            return f"{significant(value / size)}{SPACE}{unit}"
    size, unit = units[-1]
    return f"{significant(value / size)}{SPACE}{unit}"


def seconds(value: float) -> str:
    """Format a duration: "4.10 µs", "37.2 ms", "12.4 s", "3 min 12 s"."""
    if value >= 120:
        minutes, rest = divmod(round(min(value, 1e9)), 60)
        return f"{minutes:,}{SPACE}min{SPACE}{rest}{SPACE}s"
    return _scaled(value, ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def rate(value: float, unit: str) -> str:
    """Format a rate with a decimal prefix: `rate(2.2e11, "FLOP/s")` is "220 GFLOP/s"."""
    steps = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
    return _scaled(value, [(size, prefix + unit) for size, prefix in steps])


def bytes_of_memory(value: float) -> str:
    """Format a size with a binary prefix: "139 GiB"."""
    return _scaled(
        value, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
    )


def percent(fraction: float, digits: int = 2) -> str:
    """Format a fraction as a percentage: "98.35 %"."""
    return f"{100 * fraction:.{digits}f}{SPACE}%"


def times(ratio: float) -> str:
    """Format a ratio: "0.86×", "18.1×", "240×"."""
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.{1 if ratio >= 10 else 2}f}×"
