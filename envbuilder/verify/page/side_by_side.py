"""Render the table of `compare` as one HTML page that needs no network and no script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.verify.page.html import templates
from envbuilder.verify.report import comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.verify.report.comparison import Row


def render(rows: Sequence[Row]) -> str:
    """Return the page of some rows, in their order, with the reports' texts escaped."""
    page: str = (
        templates()
        .get_template("comparison.html.j2")
        .render(
            columns=comparison.COLUMNS,
            verdict=comparison.COLUMNS.index("verdict"),
            rows=[{"cells": comparison.cells(r), "passed": r.status == "passed"} for r in rows],
            footnotes=comparison.footnotes(rows),
        )
    )
    return page
