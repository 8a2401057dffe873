"""Compute the page's charts from a report: bars in percent of their frame, and the loss curve.

Bars are sized in percent, so that they fit a phone and a sheet of paper; the curve is an SVG path
in a frame of 100 × 100. Text is never part of a drawing, and every drawing has a description for
screen readers.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.text import amount, duration, memory, percent, rate, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.verify.report.measurements import Measurements
    from envbuilder.verify.report.model import Baseline, Epoch, Report

MOST_RATES = 12
MOST_BARS = 8
"""More warm epochs than this share one bar, their median; the table below lists them all."""
FARTHEST = 1e30
"""A loss or step beyond this is not drawn."""


class Segment(Struct, frozen=True):
    """A segment of a bar: `kind` is a CSS class; start and width are in percent."""

    kind: str
    start: float
    width: float


class Bar(Struct, frozen=True, kw_only=True):
    """One row of a chart: label, value as text, bar, and a description for screen readers."""

    label: str
    value: str
    note: str = ""
    ratio: str = ""
    segments: tuple[Segment, ...]
    mark: float | None = None
    """The position of a threshold, in percent."""
    spoken: str


def position(value: float, total: float) -> float:
    """Return `value` in percent of `total`, clamped to 0 to 100."""
    return round(min(max(100 * value / total, 0.0), 100.0), 2) if total > 0 else 0.0


def _bar(
    label: str, value: str, note: str, parts: dict[str, float], total: float, ratio: str = ""
) -> Bar:
    """Return a bar of stacked parts (CSS class to size), in proportion to `total`."""
    segments, start = [], 0.0
    for kind, size in parts.items():
        # A measured segment stays visible.
        width = min(max(position(size, total), 0.4), 100 - start) if size > 0 else 0.0
        if width > 0:
            segments.append(Segment(kind, round(start, 2), round(width, 2)))
            start += width
    spoken = ", ".join(filter(None, (f"{label}: {value}", note, ratio)))
    return Bar(
        label=label, value=value, note=note, ratio=ratio, segments=tuple(segments), spoken=spoken
    )


# Epochs


def epochs(report: Report) -> dict[str, list[Bar]]:
    """Return bars of data and compute time: CPU baseline, first epoch, warm epochs.

    Empty without an epoch that has a duration.
    """
    passes = [p for e in report.epochs if (p := _pass(e))]
    baseline = _pass(report.baseline) if report.baseline else None
    if not passes:
        return {}
    warm = [(f"Epoch {n}", p) for n, p in enumerate(passes[1:], 2)]
    if len(warm) > MOST_BARS:
        total, data, compute = (median(p[i] for _, p in warm) for i in range(3))
        warm = [(f"Median of epochs 2 to {len(passes)}", (total, data, compute))]
    longest = max(p[0] for p in [*passes, *([baseline] if baseline else [])])

    def bar(label: str, parts: tuple[float, float, float], kind: str = "compute") -> Bar:
        total, data, compute = parts
        return _bar(
            label,
            duration(total),
            f"compute {duration(compute)}, data {duration(data)}",
            {kind: compute, "data": data},
            longest,
            f"{times(baseline[0] / total)} the CPU" if baseline and kind != "cpu" else "",
        )

    return {
        "baseline": [bar("The CPU, one epoch", baseline, "cpu")] if baseline else [],
        "first": [bar("Epoch 1", passes[0])],
        "warm": [bar(label, parts) for label, parts in warm],
    }


def _pass(epoch: Epoch | Baseline) -> tuple[float, float, float] | None:
    """Return the seconds of a training pass: total, data, compute; None if it has no duration."""
    total = epoch.seconds
    if total is None or total <= 0:
        return None
    data = min(max(epoch.data_seconds or 0.0, 0.0), total)
    return total, data, total - data


# Accuracy


def accuracies(report: Report) -> tuple[tuple[Bar, ...], str, str]:
    """Return bars of accuracy per epoch against the required one, and both ends of the scale."""
    reached = [
        (n, a) for n, e in enumerate(report.epochs, 1) if (a := _share(e.accuracy)) is not None
    ]
    needed = _share(report.training.min_accuracy) if report.training else None
    if not reached:
        return (), "", ""
    worst = min([a for _, a in reached] + ([needed] if needed is not None else []))
    # The scale starts at a round value below the worst one.
    low = next((s for s in (0.95, 0.9, 0.8, 0.5) if worst >= s + (1 - s) * 0.2), 0.0)
    tests = report.dataset.test
    gate = f", at least {percent(needed)} is needed" if needed is not None else ""

    def bar(epoch: int, accuracy: float) -> Bar:
        kind = "bad" if needed is not None and accuracy < needed else "good"
        return Bar(
            label=f"After epoch {epoch}",
            value=percent(accuracy),
            note=f"{round((1 - accuracy) * tests):,} of {tests:,} wrong" if tests else "",
            segments=(Segment(kind, position(accuracy - low, 1 - low), 0),),
            mark=None if needed is None else position(needed - low, 1 - low),
            spoken=f"Accuracy after epoch {epoch}: {percent(accuracy)}{gate}",
        )

    shown = reached if len(reached) <= MOST_BARS else reached[-1:]
    return tuple(bar(*each) for each in shown), percent(low, 0), percent(1, 0)


def _share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 1 else None


# Rates and memory


def matmuls(measured: Measurements | None) -> list[Bar]:
    """Return the measured matmul rates, and the epoch's share of the float32 rate."""
    rates = ((measured.matmul if measured else None) or ())[:MOST_RATES]
    rows = [
        (f"{m.dtype} matrix product", f"{m.size:,} × {m.size:,}", "compute", m.flops_per_second)
        for m in rates
    ]
    single = max((m.flops_per_second for m in rates if m.dtype == "float32"), default=None)
    share = measured.matmul_share if measured else None
    if single and share is not None:
        note = f"{percent(share, 0)} of float32's"
        rows.append(("The last epoch's computing", note, "cpu", share * single))
    return _rates(rows, "FLOP/s")


_PATHS = {
    "device": "Inside the device's memory",
    "host_to_device": "Host to device",
    "host_to_device_pinned": "Host to device, pinned",
    "device_to_host": "Device to host",
    "device_to_host_pinned": "Device to host, pinned",
    "device_to_device": "Device to device",
}


def bandwidths(measured: Measurements | None) -> list[Bar]:
    """Return the measured memory and copy bandwidths; omit paths that do not exist."""
    paths = measured.bandwidth if measured else None
    rows = [(label, v) for key, label in _PATHS.items() if (v := getattr(paths, key, None))]
    return _rates([(label, "", "compute", value) for label, value in rows], "B/s")


def _rates(rows: Sequence[tuple[str, str, str, float]], unit: str) -> list[Bar]:
    """Return bars of rates in one scale; a row is label, note, CSS class and value."""
    fastest = max((value for *_, value in rows), default=0.0)
    return [
        _bar(label, rate(value, unit), note, {kind: value}, fastest)
        for label, note, kind, value in rows
    ]


def peak_memory(report: Report) -> list[Bar]:
    """Return the peak memory use of training, relative to the device's memory."""
    peak = report.measurements.peak_memory_bytes if report.measurements else None
    if not peak:
        return []
    capacity = report.device.memory_bytes
    note = f"of {memory(capacity)}, {percent(peak / capacity, 1)}" if capacity else ""
    label = "Highest use while training"
    return [_bar(label, memory(peak), note, {"compute": peak}, capacity or peak)]


# The loss curve


class Line(Struct, frozen=True, kw_only=True):
    """A curve in a frame of 100 × 100, ticks as (percent, text), and a description."""

    path: str
    ticks_y: tuple[tuple[float, str], ...]
    ticks_x: tuple[str, ...]
    logarithmic: bool
    missing: int
    spoken: str


def losses(report: Report) -> Line | None:
    """Return the loss over the steps; None if fewer than two points are recorded.

    The scale is logarithmic if losses differ by more than a factor of ten.
    """
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
    logarithmic = 0 < low < high / 10
    scale, back = (math.log, math.exp) if logarithmic else (float, float)
    bottom, top = scale(low), scale(high)
    first, last = min(s for s, _ in points), max(s for s, _ in points)

    def place(step: float, loss: float | None) -> tuple[float, float | None]:
        across = position(step - first, last - first)
        return across, None if loss is None else 100 - position(scale(loss) - bottom, top - bottom)

    return Line(
        path=_path([place(*point) for point in points]),
        ticks_y=tuple(
            (100 - at, f"{back(bottom + (top - bottom) * at / 100):.3g}") for at in (0, 50, 100)
        ),
        ticks_x=tuple(f"{step:,.0f}" for step in (first, (first + last) // 2, last)),
        logarithmic=logarithmic,
        missing=len(points) - len(finite),
        spoken=(
            f"Training loss, from {amount(values[0])} at step {finite[0][0]:,.0f} to"
            f" {amount(values[-1])} at step {finite[-1][0]:,.0f}; lowest {amount(low)}"
        ),
    )


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """Return an SVG path; a point without a value interrupts the line."""
    parts, drawing = [], False
    for x, y in points:
        if y is not None:
            parts.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = y is not None
    return "".join(parts)
