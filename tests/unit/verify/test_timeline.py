"""What a report says of its training passes, against when their events arrived."""

from __future__ import annotations

import threading
import time

import pytest

from envbuilder.verify.timeline import Timeline


def seen(*phases: tuple[str, float]) -> Timeline:
    timeline = Timeline()
    for name, at in phases:
        timeline.arrived(name, at)
    return timeline


PASS = (("epoch 1", 100.0), ("test epoch 1", 120.0), ("epoch 1", 500.0))


@pytest.mark.parametrize("seconds", [20.0, 19.7, 20.3])
def test_a_pass_that_took_as_long_as_reported(seconds: float) -> None:
    assert seen(*PASS).problems([("epoch 1", seconds)]) == []


@pytest.mark.parametrize("seconds", [19.4, 20.6, 0.001, -1.0, 31.7, float("nan")])
def test_a_pass_that_did_not(seconds: float) -> None:
    (problem,) = seen(*PASS).problems([("epoch 1", seconds)])
    assert problem.startswith(f"epoch 1 took {seconds:.2f} s by the report, but measured")
    assert problem.endswith("it took 20.00 s")


def test_an_epoch_of_a_gpu_that_hides_most_of_its_time() -> None:
    timeline = seen(("epoch 1", 10.0), ("test epoch 1", 11.5))
    assert timeline.problems([("epoch 1", 1.4)]) == []
    assert timeline.problems([("epoch 1", 0.05)]) != []


@pytest.mark.parametrize("phases", [(), PASS[:1], PASS[1:2]])
def test_a_pass_that_nobody_saw(phases: tuple[tuple[str, float], ...]) -> None:
    timeline = seen(*phases)
    assert "its start or end was not observed" in timeline.problems([("epoch 1", 20.0)])[0]


def test_a_process_that_runs_late_excuses_its_own_delay_and_no_other() -> None:
    timeline = seen(*PASS)
    timeline.delayed(0.5, now=119.9)
    assert timeline.problems([("epoch 1", 18.3)]) == []
    assert timeline.problems([("epoch 1", 17.0)]) != []
    other = seen(*PASS)
    other.delayed(5.0, now=300.0)
    assert other.problems([("epoch 1", 18.3)]) != []


@pytest.mark.parametrize(
    ("now", "excused"),
    [(98.9, False), (99.0, True), (100.0, True), (120.0, True), (121.9, True), (122.0, False)],
)
def test_a_delay_counts_up_to_a_second_before_and_after_a_pass(now: float, excused: bool) -> None:
    timeline = seen(*PASS)
    timeline.delayed(0.5, now)
    assert (timeline.problems([("epoch 1", 18.3)]) == []) is excused


@pytest.mark.parametrize("now", [99.0, 120.0])
@pytest.mark.parametrize("seconds", [2.0, 12.0, 20.0])
def test_a_stopped_core_confirms_no_time(seconds: float, now: float) -> None:
    """Stopped before a pass, it sees the pass begin late: nothing shows how long it took."""
    timeline = seen(*PASS)
    timeline.delayed(8.0, now)
    (problem,) = timeline.problems([("epoch 1", seconds)])
    assert problem.startswith("epoch 1 cannot be timed: envbuilder itself stood still for 8.0 s")


@pytest.mark.parametrize(("late", "stopped"), [(1.0, False), (1.01, True)])
def test_a_delay_is_a_stop_beyond_what_an_overloaded_machine_causes(
    late: float, stopped: bool
) -> None:
    timeline = seen(*PASS)
    timeline.delayed(late, now=110.0)
    assert (timeline.problems([("epoch 1", 20.0)]) != []) is stopped


@pytest.mark.parametrize(("seconds", "excused"), [(1.3, True), (1.2, False), (0.3, False)])
def test_a_delay_excuses_half_of_a_short_pass_at_most(seconds: float, excused: bool) -> None:
    timeline = seen(("epoch 1", 100.0), ("test epoch 1", 103.0))
    timeline.delayed(0.9, now=101.0)
    assert (timeline.problems([("epoch 1", seconds)]) == []) is excused


def test_every_pass_is_checked_whatever_is_wrong_with_the_one_before() -> None:
    unseen, lying = seen(*PASS).problems([("baseline epoch 1", 20.0), ("epoch 1", 1.0)])
    assert unseen.startswith("baseline epoch 1 is reported, but its start")
    assert lying.startswith("epoch 1 took 1.00 s by the report")


@pytest.mark.parametrize("seconds", [10.0, 0.0, -8.0])
def test_a_pass_that_ended_before_it_began(seconds: float) -> None:
    timeline = seen(("test epoch 1", 100.0), ("epoch 1", 110.0))
    assert len(timeline.problems([("epoch 1", seconds)])) == 1


def test_no_number_of_phases_fills_the_memory() -> None:
    timeline = seen(*((str(n), 0.0) for n in range(20_000)), *PASS)
    assert timeline.problems([("epoch 1", 20.0)]) != []


def test_it_watches_its_own_delays_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    late = threading.Event()

    def sleep(seconds: float) -> None:
        now[0] += seconds + (0.9 if now[0] < 1 else 0.0)
        if now[0] >= 2:
            late.set()

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Timeline() as timeline:
        assert late.wait(10)
    timeline.arrived("epoch 1", 0.5)
    timeline.arrived("test epoch 1", 4.0)
    assert timeline.problems([("epoch 1", 1.6)]) == []
    assert timeline.problems([("epoch 1", 0.2)]) != [], "late by more than half of the pass"
