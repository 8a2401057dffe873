"""Show a report as sections of facts and tables, on a terminal or as one HTML page.

An HTML page loads nothing from the network and runs no script.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Literal

from msgspec import Struct

from envbuilder.core import resources
from envbuilder.core.errors import printable, redacted
from envbuilder.core.text import amount
from envbuilder.verify.advice import Advice

FARTHEST = 1e30
"""Losses of at least this value are not drawn, since an environment may send any number."""
Tone = Literal["bad", "caution", "good", "left"]
"""Tone of a word: good news (`good`), bad news (`bad`, `caution`) or neither (`left`)."""
_LONGEST = 100_000
"""Maximum length of a string on a page. A limit is needed because an environment may send strings
of any length."""
_COLOURS = {"good": "green", "caution": "yellow", "bad": "red", "left": "dim"}


class Word(Struct, frozen=True):
    """A word of a verdict, with the tone that determines its color."""

    word: str
    tone: Tone


class Fact(Struct, frozen=True):
    """A labeled value, with an optional note and an optional doubt about the value.

    The note and the doubt are shown next to the value, and the doubt is highlighted.
    """

    label: str
    value: str
    note: str = ""
    doubt: str = ""


class Curve(Struct, frozen=True, kw_only=True):
    """A curve of losses over steps, as an SVG path in a frame of 100 × 100, with axis labels.

    `spoken` describes the curve for screen readers.
    """

    path: str
    losses: tuple[str, ...]
    """Labels at the top, middle and bottom of the loss axis."""
    steps: tuple[str, ...]
    """Labels at the left and right ends of the step axis."""
    logarithmic: bool
    missing: int
    """Number of losses that are not drawn because they were not finite or too large."""
    spoken: str


class Section(Struct, frozen=True, kw_only=True):
    """A section of a report; it is not shown if it has no facts, rows, notes or curve."""

    title: str
    facts: Sequence[Fact] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str | Word]] = ()
    words: Sequence[int] = (0,)
    """Indices of the columns that hold words; all other columns hold numbers."""
    notes: Sequence[str] = ()
    wrong: Sequence[str] = ()
    """Notes on problems, shown before the other notes."""
    loss: Curve | None = None
    """The loss curve, which is shown only on pages."""


def loss_section(losses: Sequence[tuple[float, float | None]]) -> Section:
    """Return a section that contains the loss curve of a training run."""
    drawn = curve(losses)
    wrong = []
    if drawn and drawn.missing:
        wrong.append(f"At {drawn.missing} of the recorded steps, the loss was not a finite number.")
    return Section(title="Training loss", loss=drawn, wrong=wrong)


def curve(losses: Sequence[tuple[float, float | None]]) -> Curve | None:
    """Return the curve of losses over steps, or None if fewer than two losses can be drawn.

    The scale is logarithmic if the losses are positive and differ by more than a factor of ten.
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
        height = _share(scale(loss) - scale(low), scale(high) - scale(low))
        path += f"{command}{_share(step - first, last - first):.1f} {100 - height:.1f}"
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


def _share(value: float, total: float) -> float:
    """Return `value` as a percentage of `total`; 0 if `total` is not positive."""
    if total > 0:
        return 100 * value / total
    return 0.0


# On a terminal


def show(sections: Iterable[Section], console: Any) -> None:
    """Print sections on a rich console, with an empty line after each."""
    from rich.text import Text

    for section in sections:
        if section.facts:
            console.print(grid(section.facts))
        if section.rows:
            console.print(table(section))
        for note in (*section.wrong, *section.notes):
            console.print(Text(printable(note)))
        if section.facts or section.rows or section.notes or section.wrong:
            console.print()


def grid(facts: Iterable[Fact]) -> Any:
    """Return a rich table of facts, with a column of labels and a column of values."""
    from rich.table import Table
    from rich.text import Text

    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for fact in facts:
        note = ", ".join(filter(None, (fact.note, fact.doubt)))
        if note:
            note = f" ({note})"
        shown.add_row(fact.label, Text(printable(fact.value + note)))
    return shown


def table(section: Section) -> Any:
    """Return a section's header and rows as a rich table."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, name in enumerate(section.header):
        if place in section.words:
            shown.add_column(name, overflow="fold")
        else:
            shown.add_column(name, justify="right", no_wrap=True)
    for row in section.rows:
        shown.add_row(*map(styled, row))
    return shown


def styled(cell: str | Word) -> Any:
    """Return a table cell as rich text."""
    from rich.text import Text

    if isinstance(cell, Word):
        return Text(cell.word, style=_COLOURS[cell.tone])
    return Text(printable(cell, lines=True))


# As a page


class Page(Struct, frozen=True, kw_only=True):
    """The content of an HTML page: a heading with its verdict, followed by sections."""

    heading: str
    title: str = ""
    """Title of the browser window; if empty, the heading is used."""
    verdict: Literal["passed", "failed", "skipped", ""] = ""
    """The verdict, which determines the color and the picture of the heading."""
    tag: str = ""
    sentence: str
    reasons: Sequence[str] = ()
    warnings: Sequence[str] = ()
    subject: Sequence[str] = ()
    """Lines that say what was examined, when and where; empty lines are left out."""
    figures: Sequence[Fact] = ()
    sections: Sequence[Section]
    advice: Sequence[Advice] = ()
    folded: Sequence[tuple[str, str]] = ()
    """Titles and contents of the sections that are initially collapsed."""
    source: str


def render(page: Page) -> str:
    """Return a page as HTML, with all text escaped and credentials redacted."""
    return redacted(templates().get_template("report.html.j2").render(page=page))


@cache
def templates() -> Any:
    """Return the Jinja2 environment that renders the pages.

    Its filter `code` turns text in backquotes into `<code>` elements.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.folder("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_shown,
    )
    environment.filters["code"] = _code
    return environment


def _shown(value: Any) -> Any:
    """Return a string without the characters that could deceive a reader or break the page.

    Return a value unchanged if it is not a plain string.
    """
    # Markup is a subclass, and done.
    if type(value) is str:
        return printable(value, _LONGEST, instead="\N{REPLACEMENT CHARACTER}", lines=True)
    return value


def _code(sentence: str) -> Any:
    """Return a sentence as escaped HTML, with text in backquotes turned into `<code>` elements."""
    from markupsafe import Markup, escape

    # Escaping adds no backquotes, and changes none.
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(_shown(sentence)))))  # noqa: S704
