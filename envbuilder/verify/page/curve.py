"""Compute the page's loss curve: an SVG path in a frame of 100 × 100, and texts."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.text import amount
from envbuilder.verify.page.bars import position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.verify.report.model import Report

FARTHEST = 1e30
"""A loss or step beyond this is not drawn."""

_BATCH = 64


class Line(Struct, frozen=True, kw_only=True):
    """A curve in a frame of 100 × 100, ticks as (percent, text), and a description."""

    raw: str
    smooth: str
    ticks_y: tuple[tuple[float, str], ...]
    ticks_x: tuple[tuple[float, str], ...]
    epochs: tuple[float, ...]
    logarithmic: bool
    missing: int
    spoken: str


def losses(report: Report) -> Line | None:
    """Return the loss over the steps; None if fewer than two points are recorded."""
    points = [
        (step, loss if loss is not None and abs(loss) < FARTHEST else None)
        for step, loss in (report.training.losses if report.training else ())
        if step < FARTHEST
    ]
    finite = [(step, loss) for step, loss in points if loss is not None]
    if len(finite) < 2:
        return None
    values = [loss for _, loss in finite]
    low, high = min(values), max(values)
    logarithmic = low > 0 and high / low > 10
    bottom, top = (low, high) if logarithmic else (min(low, 0.0), high if high > low else low + 1)
    first, last = min(s for s, _ in points), max(s for s, _ in points)

    def across(step: float) -> float:
        return position(step - first, last - first)

    def down(loss: float) -> float:
        if logarithmic:
            return 100 - position(math.log(loss / bottom), math.log(top / bottom))
        return 100 - position(loss - bottom, top - bottom)

    ticks = _decades(bottom, top) if logarithmic else _even(bottom, top)
    gone = len(points) - len(finite)
    return Line(
        raw=_path([(across(s), None if v is None else down(v)) for s, v in points]),
        smooth=_path([(across(s), down(v)) for s, v in _smooth(finite)]) if not gone else "",
        ticks_y=tuple((down(tick), f"{tick:.6g}") for tick in ticks),
        ticks_x=tuple((across(s), f"{s:,.0f}") for s in (first, (first + last) // 2, last)),
        epochs=tuple(map(across, _boundaries(report, first, last))),
        logarithmic=logarithmic,
        missing=gone,
        spoken=(
            f"Training loss, from {amount(values[0])} at step {finite[0][0]:,.0f} to"
            f" {amount(values[-1])} at step {finite[-1][0]:,.0f}; lowest {amount(low)}"
        ),
    )


def _boundaries(report: Report, first: float, last: float) -> list[float]:
    """Return the steps at which a new epoch begins; none if there are too many to distinguish."""
    batch = (report.training.batch if report.training else None) or _BATCH
    steps = -(-(report.dataset.train or 0) // batch)
    if not steps or (last - first) / steps > 10:
        return []
    return [s for n in range(1, 11) if first < (s := n * steps) < last - steps / 10]


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """Return an SVG path; a point without a value interrupts the line."""
    parts, drawing = [], False
    for x, y in points:
        if y is not None:
            parts.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = y is not None
    return "".join(parts)


def _smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return a running median of the points; empty for a short curve."""
    reach = len(points) // 24
    if reach < 1:
        return []
    return [
        (step, median(loss for _, loss in points[max(n - reach, 0) : n + reach + 1]))
        for n, (step, _) in enumerate(points)
    ]


def _decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each decade between two values; fewer if there are more than six."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [d * 10.0**p for p in powers for d in digits if low <= d * 10.0**p <= high]
        if len(ticks) <= 6:
            return ticks
    return ticks[:: -(-len(ticks) // 6)]


def _even(low: float, high: float) -> list[float]:
    """Return up to six evenly spaced round values between two values."""
    rough = (high - low) / 5
    if rough < 1 / FARTHEST:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= rough), rough)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
