"""Draw the losses of a training as a curve in a frame of 100 × 100."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from envbuilder.core.text import amount

FARTHEST = 1e30
"""A loss beyond this is not drawn."""


class Curve(Struct, frozen=True, kw_only=True):
    """An SVG path, what stands at its axes, and a description for screen readers."""

    path: str
    losses: tuple[str, ...]
    """At the top, in the middle and at the bottom."""
    steps: tuple[str, ...]
    """At the left and at the right."""
    logarithmic: bool
    missing: int
    """How many losses were not finite."""
    spoken: str


def curve(losses: Sequence[tuple[float, float | None]]) -> Curve | None:
    """Return the curve of losses over steps; None if fewer than two are finite.

    The scale is logarithmic if losses differ by more than a factor of ten.
    """
    values = [loss for _, loss in losses if loss is not None and abs(loss) < FARTHEST]
    if len(values) < 2:
        return None
    low = min(values)
    high = max(values)
    middle = (low + high) / 2
    logarithmic = 0 < low < high / 10
    scale: Callable[[float], float] = float
    if logarithmic:
        middle = math.sqrt(low) * math.sqrt(high)
        scale = math.log
    first = losses[0][0]
    last = losses[-1][0]
    path = ""
    command = "M"
    for step, loss in losses:
        if loss is None or abs(loss) >= FARTHEST:
            command = "M"
            continue
        height = _percent(scale(loss) - scale(low), scale(high) - scale(low))
        path += f"{command}{_percent(step - first, last - first):.1f} {100 - height:.1f}"
        command = "L"
    return Curve(
        path=path,
        losses=(f"{high:.3g}", f"{middle:.3g}", f"{low:.3g}"),
        steps=(f"{first:,.0f}", f"{last:,.0f}"),
        logarithmic=logarithmic,
        missing=len(losses) - len(values),
        spoken=f"Training loss, from {amount(values[0])} to {amount(values[-1])} at step"
        f" {last:,.0f}; lowest {amount(low)}",
    )


def _percent(value: float, total: float) -> float:
    """Return `value` in percent of `total`."""
    if total > 0:
        return 100 * value / total
    return 0.0
