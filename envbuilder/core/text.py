"""Format numbers, sizes, rates, durations and time stamps as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime


def amount(value: float) -> str:
    """Format a number with at least three significant digits, as in 0.0123, 1.23 and 1,234."""
    if value == 0:
        return "0"
    if not 1e-12 <= abs(value) < 1e15:
        return f"{value:.3g}"
    # The exponent after rounding: 9.999 has two digits before the point.
    exponent = int(f"{value:.2e}".partition("e")[2])
    return f"{value:,.{max(2 - exponent, 0)}f}"


def version_numbers(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version, such as (2, 7), or (0, 0) if there are none."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def times(ratio: float) -> str:
    """Format a ratio with a multiplication sign, as in "0.86×", "18.1×" and "240×"."""
    return f"{ratio:.2f}×" if ratio < 1 else f"{amount(ratio)}×"


def percent(share: float | None, places: int = 2) -> str:
    """Format a fraction as a percentage such as "98.35 %", or as "-" if it is None."""
    return "-" if share is None else f"{100 * share:.{places}f} %"


def duration(seconds: float) -> str:
    """Format a duration in seconds as "4.10 µs", "37.2 ms", "12.4 s" or "3 min 12 s"."""
    if seconds >= 120:
        minutes, rest = divmod(round(min(seconds, 1e9)), 60)
        return f"{minutes:,} min {rest} s"
    return _scaled(seconds, _DURATIONS)


def rate(value: float, unit: str) -> str:
    """Format a value with a decimal prefix.

    For example, `rate(2.2e11, "FLOP/s")` is "220 GFLOP/s".
    """
    return _scaled(value, [(size, prefix + unit) for size, prefix in _DECIMAL])


def memory(size: float | None) -> str:
    """Format a size in bytes with a binary prefix, as in "23.5 GiB", or as "-" if it is unknown."""
    return _scaled(size, _BINARY) if size else "-"


def gibibytes(size: float) -> str:
    """Format a size in bytes as GiB with one decimal.

    Because the unit is always the same, such sizes can be compared and added up.
    """
    return f"{size / 2**30:,.1f} GiB"


def bandwidth(rate: float) -> str:
    """Format a rate in bytes per second as whole GB/s (10^9 bytes), as data sheets do."""
    return f"{rate / 1e9:.0f} GB/s"


def gigabytes(size: float) -> str:
    """Format a size in bytes as GB (10^9 bytes) with one decimal, for disks and downloads."""
    return f"{size / 1e9:.1f} GB"


def stored(size: int) -> str:
    """Format a size on disk in bytes with a decimal prefix, as in "1.31 GB" and "262 kB"."""
    return _scaled(size, [(unit, f"{prefix}B") for unit, prefix in _DECIMAL])


_DURATIONS = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Format a value in the largest unit that does not exceed it.

    `units` are sorted in descending order. If the value is smaller than all units, use the
    smallest.
    """
    size, unit = next((u for u in units if value >= u[0]), units[-1])
    return f"{amount(value / size)} {unit}"


def binary_size(limit: int) -> str:
    """Format a limit in bytes as a whole number of MiB or KiB, for a message."""
    if limit >= 1 << 20:
        return f"{limit >> 20} MiB"
    return f"{limit >> 10} KiB"


STAMP = "%Y%m%dT%H%M%SZ"


def stamp_now() -> str:
    """Return the current time (UTC) as a time stamp in the format `STAMP`."""
    return datetime.now(UTC).strftime(STAMP)


def stamp_time(stamp: str) -> datetime:
    """Parse a time stamp. Raise `ValueError` if it does not have the format `STAMP`."""
    return datetime.strptime(stamp, STAMP).replace(tzinfo=UTC)


def readable_stamp(stamp: str) -> str:
    """Format a time stamp as "23 November 2026, 09:15 UTC". Return any other text unchanged."""
    try:
        when = stamp_time(stamp)
    except ValueError:
        return stamp
    return f"{when.day} {when:%B %Y, %H:%M} UTC"
