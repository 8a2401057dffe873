"""Each fault of the list: what is wanted holds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.seams.rows import ROWS, Row, World, advice, deciding, folders, results, sources, watching

MODULES = (deciding, sources, folders, results, watching, advice)
LONG = """
1.1 1.3 1.5 1.7 1.10 2.2 2.4 2.6 2.6b 2.8 2.9 2.11 3.1 3.2 3.3 3.4 3.5 4.3 5.3 5.4 5.6 6.4
7.6 7.7 8.3 8.5 9.7 10.2 10.4 11.4 11.5 11.8 11.9 D18 U1 U1b U10
"""
SOAK = frozenset(LONG.split())
"""Rows that take longest, and whose causes other tests look at."""


def marks(row: Row) -> list[Any]:
    """Return what a row needs, and when it runs."""
    when = pytest.mark.soak if row.id in SOAK else pytest.mark.slow
    return [*row.marks, when]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=marks(row)) for row in ROWS.values()]
)
def test_what_is_wanted_holds(row: Row, world: World) -> None:
    try:
        row.wanted(world)
    except AssertionError as error:
        steps = "\n".join(world.history)
        raise AssertionError(f"row {row.id} ({row.degree})\n{error}\n\n{steps}") from None
