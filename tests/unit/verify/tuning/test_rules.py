"""What decides over a setting: which wins, which does not, and when nothing is decided."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core import console
from envbuilder.verify import tune, tune_results
from envbuilder.verify.tune import Pair, Setting, Trial
from envbuilder.verify.tune_results import draft
from tests.support.reports import BUSY, QUIET
from tests.support.tuning import (
    ACTIVE,
    LIBC,
    ONE,
    PLAIN,
    RULES,
    SURVEY,
    finding,
    outcome_with,
    pairs,
    settings,
    trial,
)

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((1.05, 1.05, 1.05), "helps"),
        ((1.04, 1.04, 1.04), "no gain"),
        ((3.0, 1.0, 1.0), "no gain"),
        ((0.5, 1.2, 1.3), "helps"),
        ((1.0, 1.0, 1.0), "no gain"),
        ((1.2, 1.2), "failed"),
    ],
)
def test_the_median_of_three_pairs_decides(gains: tuple[float, ...], verdict: str) -> None:
    assert tune.judge(PLAIN, pairs(*gains), RULES, 0.0).verdict == verdict


def test_a_gain_within_the_machines_noise_is_none() -> None:
    assert tune.judge(PLAIN, pairs(1.2, 1.2, 1.2), RULES, 0.25).verdict == "noise"
    assert tune.judge(PLAIN, pairs(1.3, 1.3, 1.3), RULES, 0.25).verdict == "helps"


def contended(*gains: float, candidate: Any = QUIET, baseline: Any = QUIET) -> list[Pair]:
    def timed(speed: float, facts: Any) -> Trial:
        return tune.read_trial(
            {"samples_per_second": speed, "accuracy": 0.95, "loss": 0.3, "contention": facts}
        )

    return [Pair(baseline=timed(100, baseline), candidate=timed(100 * g, candidate)) for g in gains]


@pytest.mark.parametrize("gain", [0.5, 1.0, 1.3])
@pytest.mark.parametrize("which", ["candidate", "baseline"])
def test_nothing_is_decided_on_a_busy_machine(gain: float, which: str) -> None:
    found = tune.judge(PLAIN, contended(gain, gain, gain, **{which: BUSY}), RULES, 0.0)
    assert found.verdict == "machine busy"
    assert "tasks waited for a CPU 95 % of the time; measure again" in found.detail
    assert tune.winners([found]) == ()
    quiet = tune.judge(PLAIN, contended(gain, gain, gain), RULES, 0.0)
    assert quiet.verdict == ("helps" if gain > 1.05 else "no gain")


def test_wrong_results_are_wrong_on_a_busy_machine_too() -> None:
    disturbed = [
        Pair(
            baseline=pair.baseline, candidate=msgspec.structs.replace(pair.candidate, accuracy=0.5)
        )
        for pair in contended(1.3, 1.3, 1.3, candidate=BUSY)
    ]
    assert tune.judge(PLAIN, disturbed, RULES, 0.0).verdict == "less accurate"


def test_what_was_not_judged_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_with(finding(PLAIN, 1.3, "machine busy"), finding(ONE, 0.9, "no gain"))
    tune_results.print_outcome(outcome, console.rich_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert "The machine was busy during 1 of the settings: nothing is decided about these." in shown
    assert "None of the settings that were judged helps" in shown
    assert tune_results.summary(outcome)["speed"] == "not_judged"
    assert tune_results.summary(outcome_with())["speed"] == "judged"


def test_active_waiting_is_for_machines_that_nobody_shares(
    capsys: pytest.CaptureFixture[str], found: Settings
) -> None:
    active = settings()["OMP_WAIT_POLICY=active"]
    assert "only for machines that nobody shares" in active.caution
    assert settings()["OMP_WAIT_POLICY=passive"].caution == ""
    (line,) = tune_results.advice([finding(active, 1.3)])
    assert line.endswith(active.caution)
    assert tune_results._entry(finding(active, 1.3))["caution"] == active.caution
    text = draft("cpu", [finding(active, 1.3)], "a machine", found).text
    assert f"1.30 times as fast ({active.caution})" in text
    waiting = msgspec.structs.replace(
        outcome_with(), survey=tune.read_survey({**SURVEY, "wait_policy": "ACTIVE"})
    )
    tune_results.print_outcome(waiting, console.rich_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert f"The defaults wait actively (OMP_WAIT_POLICY=ACTIVE): {active.caution}" in shown


def test_worse_accuracy_never_wins() -> None:
    found = tune.judge(PLAIN, pairs(2, 2, 2, accuracy=0.93), RULES, 0.0)
    assert (found.verdict, found.detail) == ("less accurate", "93.0% instead of 95.0%")
    assert tune.judge(PLAIN, pairs(2, 2, 2, accuracy=0.945), RULES, 0.0).verdict == "helps"
    assert tune.judge(PLAIN, pairs(2, 2, 2, accuracy=0.99), RULES, 0.0).verdict == "helps"
    assert tune.judge(PLAIN, pairs(2, 2, 2, loss=None), RULES, 0.0).verdict == "less accurate"


def test_precision_and_batch_are_told_but_do_not_win() -> None:
    for kind, verdict in (("precision", "other precision"), ("batch", "other batch")):
        setting = Setting(name="x", group="x", kind=kind, profile={"preload": []})  # type: ignore[arg-type]
        found = tune.judge(setting, pairs(2, 2, 2), RULES, 0.0)
        assert found.verdict == verdict
        assert tune.winners([found]) == ()
        assert tune.to_write([found], []) == ()


def test_noise_is_what_the_defaults_differ_by() -> None:
    assert tune.noise([trial(s) for s in (100, 110, 100)]) == pytest.approx(0.1)
    assert tune.noise([trial(100)]) == 0.0
    assert tune.noise([]) == 0.0


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=3))
def test_what_is_given_up_could_not_have_won(gains: list[float]) -> None:
    if tune.hopeless(pairs(*gains), RULES):
        best = pairs(*gains, *[100.0] * (3 - len(gains)))
        assert tune.judge(PLAIN, best, RULES, 0.0).verdict == "no gain"


@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=3), st.floats(0, 1), st.floats(0, 1))
def test_a_winner_is_always_faster_and_as_accurate(
    gains: list[float], accuracy: float, spread: float
) -> None:
    found = tune.judge(PLAIN, pairs(*gains, accuracy=accuracy), RULES, spread)
    if found.verdict == "helps":
        assert sorted(gains)[1] >= 1.05 - 1e-9
        assert accuracy >= 0.94 - 1e-9


@pytest.mark.parametrize(
    "report",
    [
        None,
        [],
        {},
        {"samples_per_second": 0, "accuracy": 0.5},
        {"samples_per_second": 1, "accuracy": 1.5},
        {"samples_per_second": None, "accuracy": 0.5},
        {"samples_per_second": "1", "accuracy": 0.5},
    ],
)
def test_a_report_that_is_none_is_refused(report: Any) -> None:
    with pytest.raises(ValueError, match="not a trial's report"):
        tune.read_trial(report)


def test_an_infinite_speed_gains_nothing() -> None:
    pair = Pair(baseline=trial(100), candidate=trial(math.inf))
    assert pair.gain == 0.0


def test_of_a_group_the_best_wins_and_the_best_comes_first() -> None:
    two = Setting(name="2 threads", group="threads")
    found = [finding(ONE, 1.2), finding(two, 1.3), finding(ACTIVE, 1.4), finding(LIBC, 2, "noise")]
    assert tune.winners(found) == (ACTIVE, two)


def test_winners_are_combined_with_and_without_what_a_profile_cannot_hold() -> None:
    both = tune.combinations((ACTIVE, ONE, LIBC))
    assert [s.name for s in both] == [tune.ALL, tune.HELD]
    assert both[0].variables == {
        "OMP_WAIT_POLICY": "active",
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": "",
    }
    assert "OMP_NUM_THREADS" not in both[1].variables
    assert [s.name for s in tune.combinations((ACTIVE, LIBC))] == [tune.ALL]
    assert tune.combinations((ACTIVE,)) == ()


def test_winners_that_are_no_better_together_are_not_written_together() -> None:
    alone = [finding(ACTIVE, 1.4), finding(LIBC, 1.2)]
    joint = tune.together((ACTIVE, LIBC), tune.ALL)
    assert tune.to_write(alone, [finding(joint, 1.5)]) == (ACTIVE, LIBC)
    assert tune.to_write(alone, [finding(joint, 1.3)]) == (ACTIVE,)
    assert tune.to_write(alone, [finding(joint, 1.5, "less accurate")]) == (ACTIVE,)
    assert tune.to_write(alone, []) == (ACTIVE,)


def test_threads_that_make_the_whole_faster_do_not_speak_for_what_is_written() -> None:
    alone = [finding(ACTIVE, 1.4), finding(LIBC, 1.2), finding(ONE, 1.1)]
    whole = finding(tune.together((ACTIVE, LIBC, ONE), tune.ALL), 2.0)
    held = finding(tune.together((ACTIVE, LIBC), tune.HELD), 1.0, "no gain")
    assert tune.to_write(alone, [whole, held]) == (ACTIVE,)


def test_profile_keys_are_merged() -> None:
    other = Setting(name="x", group="x", profile={"environment": {"X": "1"}})
    assert tune.merged((ACTIVE, other, LIBC)) == {
        "environment": {"OMP_WAIT_POLICY": "active", "X": "1"},
        "preload": [],
    }
