"""Bars and curves of a page: scales, frames, and values that make none."""

from __future__ import annotations

import re
from typing import Any

import pytest

from envbuilder.verify import charts, page
from tests.support.pages import Seen, changed, checked, epoch


def test_epochs_share_one_scale_and_stand_apart() -> None:
    found = charts.epochs(checked())
    assert [bar.label for bars in found.values() for bar in bars] == [
        "The CPU, one epoch",
        "Epoch 1",
        "Epoch 2",
        "Epoch 3",
    ]
    cpu, first = found["baseline"][0].segments, found["first"][0].segments
    assert [(s.kind, s.start, s.width) for s in cpu] == [("cpu", 0, 90), ("data", 90, 10)]
    assert [(s.kind, s.start, s.width) for s in first] == [("compute", 0, 9), ("data", 9, 1)]
    assert found["first"][0].ratio == "10.0× the CPU"
    assert found["baseline"][0].ratio == ""


def test_many_warm_epochs_are_one_bar() -> None:
    passes = [epoch(9.0), *(epoch(float(n)) for n in range(1, 31))]
    found = charts.epochs(checked(training={"epochs": passes}, baseline=None))
    assert [b.label for b in found["warm"]] == ["Median of epochs 2 to 31"]
    assert found["warm"][0].value.startswith("15.5")
    assert found["warm"][0].ratio == ""


def test_without_a_comparison_the_page_says_so() -> None:
    alone = Seen(page.render(changed(baseline=None, speedup=None))).text
    assert "there is no speed-up to report" in alone
    assert "Against the CPU" not in alone


def test_accuracy_has_its_threshold_and_a_scale_that_holds_both() -> None:
    rows, low, high = charts.accuracies(checked())
    assert (low, high) == ("95 %", "100 %")
    assert rows[0].mark == 50
    assert (rows[0].segments[0].kind, rows[0].segments[0].start) == ("good", 68)
    bad = checked(training={"epochs": [epoch(1.0, 0.11)], "min_accuracy": 0.975})
    rows, low, _ = charts.accuracies(bad)
    assert (low, rows[0].segments[0].kind) == ("0 %", "bad")


def test_the_loss_curve_stays_in_its_frame() -> None:
    line = charts.losses(checked())
    assert line is not None
    assert line.logarithmic
    assert line.path.startswith("M0.0 0.0L")
    assert line.path.endswith("L100.0 100.0")
    numbers = [float(n) for n in re.findall(r"[\d.]+", line.path)]
    assert 0 <= min(numbers) <= max(numbers) <= 100
    assert line.ticks_y == ((100, "0.0115"), (50, "0.163"), (0, "2.3"))
    assert "from 2.30 at step 1 to 0.0115 at step 2,787" in line.spoken


def test_a_loss_that_was_not_finite_breaks_the_curve_and_is_told() -> None:
    losses = [[1, 2.0], [2, 1.0], [3, None], [4, 1e31], [5, 0.5], [6, 0.4]]
    training = {"epochs": [epoch(1.0)], "losses": losses}
    line = charts.losses(checked(training=training))
    assert line is not None
    assert line.path.count("M") == 2
    assert line.missing == 2
    assert "At 2 of the recorded steps" in Seen(page.render(changed(training=training))).text


@pytest.mark.parametrize("losses", [[], [[1, 2.0]], [[1, None], [2, None]]])
def test_too_few_losses_make_no_curve(losses: Any) -> None:
    assert charts.losses(checked(training={"epochs": [epoch(1.0)], "losses": losses})) is None


@pytest.mark.parametrize(
    "losses",
    [
        [[1, 0.5], [2, 0.5]],
        [[1, -1.0], [2, 3.0]],
        [[1, 0.0], [2, 5e-324]],
        [[7, 1], [7, 2]],
        [[1, -1e300], [10**18, 1], [1, 1e300], [2, 2], [3, 1]],
        [[1, 100.0], [2, 2000.0]],
    ],
)
def test_flat_negative_and_tiny_losses_have_a_curve(losses: Any) -> None:
    line = charts.losses(checked(training={"epochs": [epoch(1.0)], "losses": losses}))
    assert line is not None
    assert "nan" not in str(line)
