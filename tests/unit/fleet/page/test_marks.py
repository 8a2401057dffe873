"""Every outcome has a letter of its own, a meaning, and a colour that everybody can tell apart."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from envbuilder.fleet.model import LEFT_OUT, OUTCOMES, PROVEN
from envbuilder.fleet.page import marks
from tests.support.colours import BLINDNESS, contrast, difference, scheme
from tests.support.fleet_runs import unreported

if TYPE_CHECKING:
    from pathlib import Path


def test_every_outcome_has_a_mark_of_its_own() -> None:
    legend = marks.legend([unreported(f"n{n}", outcome) for n, outcome in enumerate(OUTCOMES)])
    assert list(legend) == list(OUTCOMES)
    assert len({mark.letter for mark in legend.values()}) == len(OUTCOMES)
    assert len({mark.meaning for mark in legend.values()}) == len(OUTCOMES)
    assert {o for o, mark in legend.items() if mark.tone == "good"} == PROVEN
    assert {o for o, mark in legend.items() if mark.tone == "left"} == LEFT_OUT


def test_the_legend_has_what_is_there_and_counts_it() -> None:
    legend = marks.legend(
        [unreported("a", "lost"), unreported("b", "busy"), unreported("c", "lost")]
    )
    assert [(mark.outcome, mark.count) for mark in legend.values()] == [("busy", 1), ("lost", 2)]


@pytest.mark.parametrize("name", ["light", "dark"])
def test_letters_can_be_read_on_their_tiles(name: str, repository: Path) -> None:
    colours = scheme((repository / "templates" / "fleet" / "style.css").read_text(), name)
    for tone in marks.TONES:
        assert contrast(colours[f"tile-{tone}"], colours[f"on-{tone}"]) >= 4.5, tone


@pytest.mark.parametrize("name", ["light", "dark"])
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_tiles_can_be_told_apart_by_everybody(name: str, blindness: str, repository: Path) -> None:
    colours = scheme((repository / "templates" / "fleet" / "style.css").read_text(), name)
    for one, other in itertools.combinations(marks.TONES, 2):
        tiles = colours[f"tile-{one}"], colours[f"tile-{other}"]
        assert difference(*tiles, blindness) >= 10, (one, other)


def test_the_measure_sees_what_cannot_be_told_apart() -> None:
    red, green = (0.75, 0.25, 0.0), (0.42, 0.42, 0.0)
    assert difference(red, green, "none") > 40
    assert difference(red, green, "deuteranopia") < 10
