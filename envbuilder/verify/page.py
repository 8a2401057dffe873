"""Render a report as one HTML page that needs no network and no script.

The report has to pass `model.check`; a refused one has no page.
`verify` replaces a payload's invalid report by a failed one before it shows anything, so a run
that did not finish has its page, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from statistics import median
from typing import Any

from msgspec import Struct

from envbuilder.core import resources, text
from envbuilder.core.text import amount, duration, printable, times
from envbuilder.verify import figures
from envbuilder.verify.advice import advise
from envbuilder.verify.report import comparison, model


def render(data: Mapping[str, Any]) -> str:
    """Return the page of a whole report; raise `VerifyError` if it is not a valid report."""
    shown = displayable(data)
    report = model.check(shown)
    passed = report.status == "passed"
    failed = tuple(f"{c.name}: {c.detail}" for c in report.checks if c.status == "failed")
    reasons = report.reasons or failed or ("the report gives no reason",)
    return rendered(
        "report.html.j2",
        verdict={
            "passed": passed,
            "sentence": _passed(report) if passed else _failed(report),
            "reasons": () if passed else reasons,
            "warnings": report.warnings,
            "quick": report.partial,
        },
        about={
            "profile": report.profile or "",
            "backend": report.backend or "",
            "device": report.device.name or report.device.requested,
            "time": text.readable_stamp(report.time or ""),
            "version": report.envbuilder or "",
        },
        figures=tuple(figures.figures(report)),
        facts=figures.facts(report),
        checks=figures.checks(report),
        epochs=epochs(report),
        passes=figures.passes(report),
        training=tuple(figures.training(report)),
        loss=line(report.training.losses if report.training else ()),
        rates=tuple(figures.rates(report.measurements)),
        bandwidths=tuple(figures.bandwidths(report.measurements)),
        measured=tuple(figures.measured(report.measurements)),
        memories=figures.memories(report),
        compiled=figures.compiled(report),
        devices=figures.devices(report.scaling),
        advice=advise(report),
        raw=tuple(tables(shown)),
        traceback=report.traceback,
    )


def render_comparison(rows: Sequence[comparison.Row]) -> str:
    """Return the page of some rows, in their order, with the reports' texts escaped."""
    return rendered(
        "comparison.html.j2",
        columns=comparison.COLUMNS,
        verdict=comparison.COLUMNS.index("verdict"),
        rows=[{"cells": comparison.cells(r), "passed": r.status == "passed"} for r in rows],
        footnotes=comparison.footnotes(rows),
    )


def rendered(template: str, **contents: Any) -> str:
    """Return a template of a page with its contents, escaped."""
    return text.redacted(templates().get_template(template).render(contents))


def _passed(report: model.Report) -> str:
    """Return what a verification that passed shows."""
    device = report.device
    subject = (
        f"{device.name} ({device.requested})"
        if device.name
        else f"The accelerator {device.requested}"
    )
    # Arithmetic and the gradients of real steps are compared with a reference.
    compared = {"arithmetic", "gradients"} <= {
        check.name for check in report.checks if check.status == "passed"
    }
    right = ", its numbers agree with a float64 reference," if compared else ""
    subset = "a small subset of its data, which says little about full accuracy and speed"
    learned = subset if report.partial else "MNIST"
    done = f"{subject} did the work{right} and the network learned {learned}."
    origin = figures.as_found(report)
    return f"{done} Taken {origin}." if origin else done


def _failed(report: model.Report) -> str:
    """Return what a verification that failed does not show."""
    requested = report.device.requested
    used = report.device.used
    if not used:
        return f"This does not show that {requested} works: nothing was trained on it."
    if used != requested:
        return f"The work did not run on {requested}, but on {used}."
    if report.status == "unproven":
        return f"The work ran on {requested}, but nothing outside repeated a step of the training."
    if {check.name for check in report.checks if check.status == "failed"} == {"against"}:
        return f"The work ran on {requested} as requested, but slower or less accurate than before."
    return (
        f"The work ran on {requested}, but something is wrong with it: do not rely on this"
        " environment on this machine."
    )


# Charts: bars in percent of their frame, so that they fit a phone and a sheet of paper, and the
# loss curve in a frame of 100 × 100. Text is never part of a drawing, and every drawing has a
# description for screen readers.

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
    spoken: str


def position(value: float, total: float) -> float:
    """Return `value` in percent of `total`, clamped to 0 to 100."""
    return round(min(max(100 * value / total, 0.0), 100.0), 2) if total > 0 else 0.0


def epochs(report: model.Report) -> dict[str, list[Bar]]:
    """Return bars of data and compute time: CPU baseline, first epoch, warm epochs.

    Empty without an epoch that has a duration.
    """
    passes = [p for e in report.epochs if (p := _pass(e))]
    baseline = _pass(report.baseline) if report.baseline else None
    if not passes:
        return {}
    warm = [(f"Epoch {n}", p) for n, p in enumerate(passes[1:], 2)]
    if len(warm) > MOST_BARS:
        total, data, compute = map(median, zip(*(p for _, p in warm), strict=True))
        warm = [(f"Median of epochs 2 to {len(passes)}", (total, data, compute))]
    longest = max(p[0] for p in [*passes, *([baseline] if baseline else [])])

    def bar(label: str, parts: tuple[float, float, float], kind: str = "compute") -> Bar:
        total, data, compute = parts
        note = f"compute {duration(compute)}, data {duration(data)}"
        ratio = f"{times(baseline[0] / total)} the CPU" if baseline and kind != "cpu" else ""
        # A measured segment stays visible.
        widths = [max(position(s, longest), 0.4) if s > 0 else 0.0 for s in (compute, data)]
        first = min(widths[0], 100 - widths[1])
        shown = (Segment(kind, 0, round(first, 2)), Segment("data", round(first, 2), widths[1]))
        return Bar(
            label=label,
            value=duration(total),
            note=note,
            ratio=ratio,
            segments=tuple(segment for segment in shown if segment.width > 0),
            spoken=", ".join(filter(None, (f"{label}: {duration(total)}", note, ratio))),
        )

    return {
        "baseline": [bar("The CPU, one epoch", baseline, "cpu")] if baseline else [],
        "first": [bar("Epoch 1", passes[0])],
        "warm": [bar(label, parts) for label, parts in warm],
    }


def _pass(epoch: model.Epoch | model.Baseline) -> tuple[float, float, float] | None:
    """Return the seconds of a training pass: total, data, compute; None if it has no duration."""
    total = epoch.seconds
    if total is None or total <= 0:
        return None
    data = min(max(epoch.data_seconds or 0.0, 0.0), total)
    return total, data, total - data


class Line(Struct, frozen=True, kw_only=True):
    """A curve in a frame of 100 × 100, ticks as (percent, text), and a description."""

    path: str
    ticks_y: tuple[tuple[float, str], ...]
    ticks_x: tuple[str, ...]
    logarithmic: bool
    missing: int
    spoken: str


def line(losses: Sequence[tuple[float, float | None]]) -> Line | None:
    """Return losses over steps; None if fewer than two are finite.

    The scale is logarithmic if losses differ by more than a factor of ten.
    """
    points = [
        (step, loss if loss is not None and abs(loss) < FARTHEST else None)
        for step, loss in losses
        if step < FARTHEST
    ]
    finite = [(step, loss) for step, loss in points if loss is not None]
    if len(finite) < 2:
        return None
    values = [loss for _, loss in finite]
    low = min(values)
    high = max(values)
    logarithmic = 0 < low < high / 10
    scale, back = (math.log, math.exp) if logarithmic else (float, float)
    bottom = scale(low)
    top = scale(high)
    first = min(s for s, _ in points)
    last = max(s for s, _ in points)

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
    parts = []
    drawing = False
    for x, y in points:
        if y is not None:
            parts.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = y is not None
    return "".join(parts)


# The rest of a report, as tables

MOST_ROWS = 600
"""Maximum number of rows in a table; a typical host has about sixty."""

MOST_NESTED = 6

_SHOWN = {"host", "kernels", "traceback", "checks", "reasons", "warnings"}
_TABLES = (("This machine", "host"), ("Kernels that the profiler saw", "kernels"))


def tables(report: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each table's title and rows; omit what other sections show in full.

    Reads the report as stored, since a payload may write keys that envbuilder does not know.
    """
    for title, key in _TABLES:
        if report.get(key):
            yield title, list(islice(flat(report[key]), MOST_ROWS))
    rest = {key: value for key, value in report.items() if key not in _SHOWN}
    if training := rest.get("training"):
        rest["training"] = {k: v for k, v in training.items() if k not in {"epochs", "losses"}}
    yield "The rest of the report", list(islice(flat(rest), MOST_ROWS))


def flat(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the leaves of a nested value as (dotted name, text), in order; null is "–"."""
    if isinstance(value, Mapping) and value and depth < MOST_NESTED:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list) and value and depth < MOST_NESTED:
        if any(isinstance(item, Mapping | list) for item in value):
            for place, item in enumerate(value, 1):
                yield from flat(item, f"{name}[{place}]", depth + 1)
        else:
            yield name, ", ".join(map(_leaf, value))
    else:
        yield name, _leaf(value)


def _leaf(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if isinstance(value, int) or (value and isinstance(value, str)) else "–"


# What is shown of a report

MOST_CHARACTERS = 600
"""Longer texts are cut; genuine sentences are below 300."""

TRACEBACK = 8000
MOST_ITEMS = 400
MOST_DEPTH = 20


def displayable(report: Any) -> Any:
    """Return a report in which every text can be shown; of a traceback, only the end is kept."""
    shown = _bounded(report, MOST_DEPTH)
    if isinstance(report, Mapping) and isinstance(report.get("traceback"), str):
        # The end names the error.
        end = report["traceback"][-TRACEBACK:]
        cut = len(report["traceback"]) - TRACEBACK
        before = f"… ({cut:,} characters before)\n" if cut > 0 else ""
        shown["traceback"] = before + _text(end, TRACEBACK)
    return shown


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _text(value, MOST_CHARACTERS)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if not depth:
        return None
    if isinstance(value, Mapping):
        pairs = list(value.items())[:MOST_ITEMS]
        return {_text(str(key), 80): _bounded(inner, depth - 1) for key, inner in pairs}
    return [_bounded(item, depth - 1) for item in value[:MOST_ITEMS]]


def _text(value: str, most: int) -> str:
    shown = printable(value[:most], most, instead="\N{REPLACEMENT CHARACTER}", lines=True)
    return shown if len(value) <= most else f"{shown} … ({len(value) - most:,} more characters)"


# Templates

_UNITS = re.compile(r"(?<=\d) (?=(?:[kMGTP]?(?:FLOP|B)(?:/s)?|[KMGT]iB|%|min|[mnµ]?s)(?!\w))")
"""The space between a number and its unit."""


@cache
def templates() -> Any:
    """Return the Jinja2 environment of the pages; its filter `code` marks up backquotes."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.folder("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_units_kept,
    )
    environment.filters["code"] = _code
    return environment


def _units_kept(value: Any) -> Any:
    """Return a text in which no line ends between a number and its unit."""
    # Markup is a subclass, and done.
    return _UNITS.sub("\N{NO-BREAK SPACE}", value) if type(value) is str else value


def _code(sentence: str) -> Any:
    """Return a sentence with backquoted text as `<code>`, all text escaped."""
    from markupsafe import Markup, escape

    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(re.split(r"`([^`]*)`", sentence))
    )
