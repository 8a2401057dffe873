"""The page's bars: a report in, positions in percent and texts out.

Bars are drawn in percent of their frame, so that they fit a phone and a sheet of paper; all text
stands beside them as text. Every bar says in words what it shows.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.verify.page.values import (
    amount,
    bytes_of_memory,
    count,
    items,
    mapping,
    percent,
    rate,
    seconds,
    text,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_BARS = 8
"""More warm epochs than this are summed up in one bar; the table below has them all."""


class Segment(Struct, frozen=True, kw_only=True):
    """A part of a bar: where it starts and how wide it is, in percent; `kind` is a CSS class."""

    kind: str
    start: float
    width: float


class Bar(Struct, frozen=True, kw_only=True):
    """One row of a chart: the label, the value as text, the bar, and all of it in words."""

    label: str
    value: str
    note: str = ""
    ratio: str = ""
    segments: tuple[Segment, ...]
    mark: float | None = None
    """Where a threshold stands, in percent."""
    spoken: str


def position(value: float, whole: float) -> float:
    """A share of the whole in percent, within 0 and 100."""
    return round(min(max(100 * value / whole, 0.0), 100.0), 2) if whole > 0 else 0.0


def _stacked(parts: Sequence[tuple[str, float]], whole: float) -> tuple[Segment, ...]:
    found, start = [], 0.0
    for kind, value in parts:
        # A part that was measured stays visible.
        width = min(max(position(value, whole), 0.4), 100 - start) if value > 0 else 0.0
        if width > 0:
            found.append(Segment(kind=kind, start=round(start, 2), width=round(width, 2)))
            start += width
    return tuple(found)


class Epochs(Struct, frozen=True, kw_only=True):
    """The bars of the training passes: the CPU's, the first one's, the warm ones'."""

    baseline: tuple[Bar, ...]
    first: tuple[Bar, ...]
    warm: tuple[Bar, ...]


def epochs(report: Mapping[str, Any]) -> Epochs | None:
    """How long each pass took, data and compute apart, against the CPU; None without a pass."""
    passes = [p for e in items(mapping(report.get("training")).get("epochs")) if (p := _pass(e))]
    baseline = _pass(report.get("baseline"))
    if not passes:
        return None
    warm = passes[1:]
    whole = max(p[0] for p in [*passes, *([baseline] if baseline else [])])
    cpu = baseline[0] if baseline else None
    rows = [_epoch(f"Epoch {n}", p, whole, cpu) for n, p in enumerate(warm, 2)]
    if len(warm) > MOST_BARS:
        middle = (
            median(p[0] for p in warm),
            median(p[1] for p in warm),
            median(p[2] for p in warm),
        )
        rows = [_epoch(f"Median of epochs 2 to {len(passes)}", middle, whole, cpu)]
    return Epochs(
        baseline=(_epoch("The CPU, one epoch", baseline, whole, None),) if baseline else (),
        first=(_epoch("Epoch 1", passes[0], whole, cpu),),
        warm=tuple(rows),
    )


def _pass(epoch: Any) -> tuple[float, float, float] | None:
    """Seconds of a training pass: all, data, compute; None where it has no duration."""
    found = mapping(epoch)
    whole = amount(found.get("seconds"))
    if not whole:
        return None
    data = min(amount(found.get("data_seconds")) or 0.0, whole)
    return whole, data, whole - data


def _epoch(label: str, one: tuple[float, float, float], whole: float, cpu: float | None) -> Bar:
    total, data, compute = one
    kind = "cpu" if label.startswith("The CPU") else "compute"
    split = f"compute {seconds(compute)}, data {seconds(data)}"
    ratio = f"{times(cpu / total)} the CPU" if cpu else ""
    return Bar(
        label=label,
        value=seconds(total),
        note=split,
        ratio=ratio,
        segments=_stacked(((kind, compute), ("data", data)), whole),
        spoken=", ".join(filter(None, (f"{label}: {seconds(total)}", split, ratio))),
    )


def warm_seconds(report: Mapping[str, Any]) -> tuple[float, int] | None:
    """The median of the passes after the first, and their number; None where there is none."""
    passes = [p for e in items(mapping(report.get("training")).get("epochs")) if (p := _pass(e))]
    return (median(p[0] for p in passes[1:]), len(passes) - 1) if len(passes) > 1 else None


def accuracies(report: Mapping[str, Any]) -> tuple[tuple[Bar, ...], str, str]:
    """Accuracy after each epoch against what is needed, and the two ends of the scale."""
    training = mapping(report.get("training"))
    reached = [
        (n, a)
        for n, e in enumerate(items(training.get("epochs")), 1)
        if (a := amount(mapping(e).get("accuracy"))) is not None and a <= 1
    ]
    if not reached:
        return (), "", ""
    needed = amount(training.get("min_accuracy"))
    needed = needed if needed is not None and needed <= 1 else None
    worst = min([a for _, a in reached] + ([needed] if needed is not None else []))
    # The scale starts below the worst value, in steps that people read easily.
    low = next((s for s in (0.95, 0.9, 0.8, 0.5) if worst >= s + (1 - s) * 0.2), 0.0)
    tests = count(mapping(report.get("dataset")).get("test"))
    bars = []
    for n, accuracy in reached if len(reached) <= MOST_BARS else reached[-1:]:
        wrong = f"{round((1 - accuracy) * tests):,} of {tests:,} wrong" if tests else ""
        gate = f", at least {percent(needed)} is needed" if needed is not None else ""
        bars.append(
            Bar(
                label=f"After epoch {n}",
                value=percent(accuracy),
                note=wrong,
                segments=(
                    Segment(
                        kind="bad" if needed is not None and accuracy < needed else "good",
                        start=position(accuracy - low, 1 - low),
                        width=0,
                    ),
                ),
                mark=None if needed is None else position(needed - low, 1 - low),
                spoken=f"Accuracy after epoch {n}: {percent(accuracy)}{gate}",
            )
        )
    return tuple(bars), percent(low, 0), percent(1, 0)


def matmuls(report: Mapping[str, Any]) -> tuple[Bar, ...]:
    """Measured matrix product rates, and what the epoch reached of the float32 one."""
    measured = mapping(report.get("measurements"))
    rates = [
        (text(entry.get("dtype"), 40) or "?", count(entry.get("size")), value)
        for entry in map(mapping, items(measured.get("matmul"), 12))
        if (value := amount(entry.get("flops_per_second")))
    ]
    rows = [
        (f"{kind} matrix product", f"{size:,} × {size:,}" if size else "", "compute", value)
        for kind, size, value in rates
    ]
    single = max((value for kind, _, value in rates if kind == "float32"), default=None)
    share = amount(measured.get("matmul_share"))
    if single and share is not None:
        note = f"{percent(share, 0)} of float32's"
        rows.append(("The last epoch's computing", note, "cpu", share * single))
    whole = max((row[3] for row in rows), default=0.0)
    return tuple(
        _rate(label, note, kind, value, whole, "FLOP/s") for label, note, kind, value in rows
    )


_PATHS = {
    "device": "Inside the device's memory",
    "host_to_device": "Host to device",
    "host_to_device_pinned": "Host to device, pinned",
    "device_to_host": "Device to host",
    "device_to_host_pinned": "Device to host, pinned",
    "device_to_device": "Device to device",
}


def bandwidths(report: Mapping[str, Any]) -> tuple[Bar, ...]:
    """Measured memory and copy bandwidths; paths that do not exist are left out."""
    measured = mapping(mapping(report.get("measurements")).get("bandwidth"))
    rows = [(label, value) for key, label in _PATHS.items() if (value := amount(measured.get(key)))]
    whole = max((value for _, value in rows), default=0.0)
    return tuple(_rate(label, "", "compute", value, whole, "B/s") for label, value in rows)


def _rate(label: str, note: str, kind: str, value: float, whole: float, unit: str) -> Bar:
    return Bar(
        label=label,
        value=rate(value, unit),
        note=note,
        segments=_stacked(((kind, value),), whole),
        spoken=f"{label}: {rate(value, unit)}{f', {note}' if note else ''}",
    )


def memory(report: Mapping[str, Any]) -> tuple[Bar, ...]:
    """What training took at its peak, of what the device has."""
    peak = amount(mapping(report.get("measurements")).get("peak_memory_bytes"))
    if not peak:
        return ()
    whole = amount(mapping(report.get("device")).get("memory_bytes"))
    of = f"of {bytes_of_memory(whole)}" if whole else ""
    share = f", {percent(peak / whole, 1)}" if whole else ""
    return (
        Bar(
            label="Highest use while training",
            value=bytes_of_memory(peak),
            note=of + share,
            segments=_stacked((("compute", peak),), whole or peak),
            spoken=f"Highest use while training: {bytes_of_memory(peak)} {of}{share}",
        ),
    )
