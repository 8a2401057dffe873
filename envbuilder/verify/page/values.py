"""A report's values, read leniently and written for people.

A page must come out of any report: cut short, old, or made by somebody who wants to harm its
reader. So nothing here raises, and what is missing is None or "", which the page leaves out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

MOST_CHARACTERS = 600
"""A sentence that is longer is cut; the reports' own are below 300."""

MOST_ITEMS = 400
SPACE = "\N{NO-BREAK SPACE}"

# Control characters, halves of surrogate pairs, and marks that turn the direction of text around:
# none of them can be shown, and the last make text read as what it is not. Tab and newline stay.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufdd0-\ufdef\ufeff\ufffe\uffff]"
)


def mapping(value: Any) -> Mapping[Any, Any]:
    """The mapping itself; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any, most: int = MOST_ITEMS) -> list[Any]:
    """The first items of a list; none of anything else."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return list(value[:most])
    return []


def number(value: Any) -> float | None:
    """A finite number, else None. True and False are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def amount(value: Any) -> float | None:
    """A finite number that is not negative, as every duration, rate and size is; else None."""
    found = number(value)
    return found if found is not None and found >= 0 else None


def count(value: Any) -> int | None:
    """A whole number that is not negative, else None."""
    found = amount(value)
    return int(found) if found is not None and found == int(found) else None


def text(value: Any, most: int = MOST_CHARACTERS) -> str:
    """A scalar as text that can be shown, cut to `most` characters; "" for None and containers."""
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
    """The last `most` characters of a text: the end of a traceback says what happened."""
    if not isinstance(value, str) or len(value) <= most:
        return text(value, most)
    return f"… ({len(value) - most:,} characters before)\n{text(value[-most:], most)}"


def texts(value: Any) -> list[str]:
    """The texts of a list that say something."""
    return [shown for item in items(value) if (shown := text(item))]


def significant(value: float) -> str:
    """Three significant digits, without an exponent: 0.0123, 1.23, 12.3, 1,234."""
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
    """A duration: "4.10 µs", "37.2 ms", "12.4 s", "3 min 12 s"."""
    if value >= 120:
        minutes, rest = divmod(round(min(value, 1e9)), 60)
        return f"{minutes:,}{SPACE}min{SPACE}{rest}{SPACE}s"
    return _scaled(value, ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def rate(value: float, unit: str) -> str:
    """A rate in decimal steps: `rate(2.2e11, "FLOP/s")` is "220 GFLOP/s"."""
    steps = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
    return _scaled(value, [(size, prefix + unit) for size, prefix in steps])


def bytes_of_memory(value: float) -> str:
    """A size in binary steps: "139 GiB"."""
    return _scaled(
        value, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
    )


def percent(fraction: float, digits: int = 2) -> str:
    """A fraction as a percentage: "98.35 %"."""
    return f"{100 * fraction:.{digits}f}{SPACE}%"


def times(ratio: float) -> str:
    """A ratio: "0.86×", "18.1×", "240×"."""
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.{1 if ratio >= 10 else 2}f}×"
