"""The strips: a point for each node that was compared, in the place of its share."""

from __future__ import annotations

import re
import statistics

from hypothesis import given
from hypothesis import strategies as st

from envbuilder.fleet.page.strips import HIGHEST, MOST_NAMED, strips
from envbuilder.verify.report.regression import MAX_SLOWDOWN
from tests.support.fleet_runs import entry, unreported


def dots(path: str) -> list[tuple[float, float]]:
    """Return the places of a path's points, which must be nothing else."""
    points = re.findall(r"M([0-9.]+) ([0-9]+)h0", path)
    assert "".join(f"M{x} {y}h0" for x, y in points) == path
    return [(float(x), float(y)) for x, y in points]


def test_each_kind_has_a_strip_the_largest_first() -> None:
    slow = entry("s", outcome="slow", epoch_seconds=2.5, share=2.0)
    shown = strips(
        [
            *(entry(f"a{n}", device="A100 (cuda)", epoch_seconds=2.0) for n in range(3)),
            *(entry(f"h{n}") for n in range(5)),
            slow,
            entry("busy", outcome="busy", share=None, epoch_seconds=9.0),
            unreported("lost", "lost"),
        ]
    )
    assert [(s.label, s.note, s.value) for s in shown.rows] == [
        ("NVIDIA H100 80GB HBM3 (cuda)", "cuda · venv · torch 2.14.1+cu130", "median 1.25 s"),
        ("A100 (cuda)", "cuda · venv · torch 2.14.1+cu130", "median 2.00 s"),
    ]
    first, second = shown.rows
    assert first.spread == "6 nodes, 1.25 s to 2.50 s"
    assert (len(dots(first.points)), len(dots(first.outliers))) == (5, 1)
    assert first.named == (("s", "2.00×"),)
    assert first.spoken == (
        "NVIDIA H100 80GB HBM3 (cuda): 6 nodes, median 1.25 s, 1.25 s to 2.50 s, 1 outlier"
    )
    assert (second.outliers, second.named) == ("", ())
    assert second.spoken.endswith("no outlier")
    assert shown.few == ()


def test_kinds_with_too_few_nodes_are_named_without_a_strip() -> None:
    alone = [entry(f"n{n}", share=None, epoch_seconds=1.0 + n) for n in range(MOST_NAMED + 2)]
    shown = strips(alone)
    assert shown.rows == ()
    (sentence,) = shown.few
    assert sentence.startswith("NVIDIA H100 80GB HBM3 (cuda) (cuda · venv · torch 2.14.1+cu130)")
    assert "n0 1.00 s, n1 2.00 s" in sentence
    assert sentence.endswith("n11 12.0 s and 2 more")


def test_shares_that_an_edited_summary_gives_to_few_nodes_make_no_strip() -> None:
    shown = strips([entry("a"), entry("b", share=2.0), entry("c", epoch_seconds=None)])
    assert shown.rows == ()
    assert [sentence.partition(": ")[2] for sentence in shown.few] == ["a 1.25 s, b 1.25 s"]


def test_the_slowest_are_named_and_the_others_counted() -> None:
    far = [entry(f"s{n}", outcome="slow", share=1.5 + n / 10) for n in range(MOST_NAMED + 3)]
    (strip,) = strips([*far, *(entry(f"n{n}") for n in range(40))]).rows
    assert len(strip.named) == MOST_NAMED
    assert strip.named[0] == (f"s{MOST_NAMED + 2}", "2.90×")
    assert strip.unnamed == 3


def test_a_node_that_is_much_faster_is_an_outlier_too() -> None:
    (strip,) = strips([entry("fast", share=0.5), *(entry(f"n{n}") for n in range(4))]).rows
    assert strip.named == (("fast", "0.50×"),)


shares = st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=3, max_size=40)


@given(shares)
def test_every_node_is_one_point_in_the_frame(values: list[float]) -> None:
    shown = strips([entry(f"n{n}", share=value) for n, value in enumerate(values)])
    (strip,) = shown.rows
    points = dots(strip.points) + dots(strip.outliers)
    assert len(points) == len(values)
    assert all(0 <= x <= 100 and 0 <= y <= 100 for x, y in points)
    assert 0 <= shown.median < shown.limit <= 100
    start, width = strip.box
    assert 0 <= start <= start + width <= 100
    near = [value for value in values if 1 / MAX_SLOWDOWN <= value <= MAX_SLOWDOWN]
    assert len(dots(strip.points)) == len(near)
    if near:
        left = min(x for x, _ in dots(strip.points))
        assert (left <= shown.median) == (min(near) <= 1) or abs(left - shown.median) < 0.02


def test_the_scale_ends_where_it_says() -> None:
    shown = strips([entry(f"n{n}", share=value) for n, value in enumerate([1.0, 1.0, 50.0])])
    assert [label for _, label in shown.ticks] == ["1.00×", "1.30×", "2.00×", "3.00×"]
    ((edge, _),) = dots(shown.rows[0].outliers)
    assert edge == shown.ticks[-1][0] == 98.0
    assert HIGHEST == 3.0
    medians = [strip.value for strip in shown.rows]
    assert medians == [f"median {statistics.median([1.25] * 3)} s"]
