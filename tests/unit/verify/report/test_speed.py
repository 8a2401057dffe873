"""A busy machine is not a slow one: which recorded facts leave a speed unjudged."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, strategies as st
from msgspec.structs import replace

from envbuilder.core.errors import VerifyError
from envbuilder.verify.report import model, speed
from envbuilder.verify.report.measurements import Contention
from envbuilder.verify.report.regression import MAX_SLOWDOWN
from tests.support.reports import BUSY, QUIET, whole


def facts(**changes: Any) -> Contention:
    return msgspec.convert({**QUIET, **changes}, Contention)


# Recorded on two cores, quick epochs: alone, and with one and two jobs that only compute.
RECORDED = [
    ({"seconds": 1.67, "cpu_seconds": 3.31, "pressure_seconds": 0.017}, ""),
    ({"seconds": 1.66, "cpu_seconds": 3.24, "pressure_seconds": 0.065}, ""),
    ({"seconds": 2.16, "cpu_seconds": 2.14, "pressure_seconds": 0.056, "threads": 1}, ""),
    (
        {"seconds": 9.46, "cpu_seconds": 7.44, "pressure_seconds": 9.15},
        "tasks waited for a CPU 97 % of the time",
    ),
    (
        {"seconds": 4.17, "cpu_seconds": 2.18, "pressure_seconds": 2.5},
        "tasks waited for a CPU 60 % of the time",
    ),
    (
        {"seconds": 4.39, "cpu_seconds": 2.87, "pressure_seconds": 4.21, "threads": 1},
        "tasks waited for a CPU 96 % of the time",
    ),
]


STOPPED = {"seconds": 10.0, "cpu_seconds": 3.9, "involuntary_switches": 60}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *RECORDED,
        # In a container its own cgroup speaks, not the machine.
        ({"pressure_seconds": 1.9, "cgroup_pressure_seconds": 0.02}, ""),
        (
            {"pressure_seconds": 0.02, "cgroup_pressure_seconds": 1.0},
            "tasks waited for a CPU 50 % of the time",
        ),
        # No more than the whole time, whatever is counted.
        ({"pressure_seconds": 99.0}, "tasks waited for a CPU 100 % of the time"),
        ({"steal_seconds": 99.0}, "the hypervisor took 100 % of the CPU time"),
        # At a limit, and just below it.
        ({"steal_seconds": 0.2}, "the hypervisor took 5 % of the CPU time"),
        ({"steal_seconds": 0.199}, ""),
        ({"pressure_seconds": 0.2}, "tasks waited for a CPU 10 % of the time"),
        ({"pressure_seconds": 0.199}, ""),
        # An accelerator does the work, and nothing says how long tasks waited.
        (
            {
                "pressure_seconds": None,
                "threads": None,
                "cpu_seconds": 0.1,
                "involuntary_switches": 999,
            },
            "",
        ),
        ({"seconds": 0.0, "pressure_seconds": 5.0}, ""),
        # Stopped for 8 of 10 s, which no pressure shows, on few and on many CPUs.
        (STOPPED, "it ran for 39 % of the time, so it was stopped or waited for a disk"),
        (
            {**STOPPED, "threads": 64, "cpus": 64, "cpu_seconds": 7.4},
            "it ran for 74 % of the time, so it was stopped or waited for a disk",
        ),
        ({**STOPPED, "cpu_seconds": 7.5}, ""),
        ({**STOPPED, "pressure_seconds": None, "cpu_seconds": 7.5}, ""),
        ({**STOPPED, "threads": None}, ""),
        # Half of its quota of half a CPU.
        (
            {**STOPPED, "quota": 0.5, "cpu_seconds": 2.5},
            "it ran for 50 % of the time, so it was stopped or waited for a disk",
        ),
        ({**STOPPED, "quota": 0.5, "cpu_seconds": 4.9}, ""),
        # Its waiting has a cause of its own, and it did not run either.
        (
            {**STOPPED, "pressure_seconds": 5.0, "other_seconds": 0.1},
            "it ran for 39 % of the time, so it was stopped or waited for a disk",
        ),
    ],
)
def test_which_facts_say_that_other_work_took_time(changes: dict[str, Any], reason: str) -> None:
    assert speed.busy(facts(**changes)) == reason


@pytest.mark.parametrize(("other", "busy"), [(None, True), (0.4, False), (1.9, False), (2.0, True)])
def test_threads_that_wait_for_each_other_are_no_other_work(
    other: float | None, busy: bool
) -> None:
    """As XLA's and TensorFlow's do, which are more than the CPUs."""
    waited = facts(seconds=20.0, cpu_seconds=36.0, pressure_seconds=3.6, other_seconds=other)
    assert bool(speed.busy(waited)) is busy


@pytest.mark.parametrize(
    ("changes", "is_busy"),
    [
        ({"cpu_seconds": 3.9, "involuntary_switches": 190}, False),
        ({"cpu_seconds": 2.0, "involuntary_switches": 800}, True),
        # Threads that wait asleep use less CPU on a quiet machine, too.
        ({"cpu_seconds": 2.0, "involuntary_switches": 40}, False),
        ({"cpu_seconds": 2.0, "involuntary_switches": None}, False),
        ({"cpu_seconds": 1.9, "involuntary_switches": 800, "threads": 1}, False),
        ({"cpu_seconds": 3.0, "involuntary_switches": 800}, False),
        ({"cpu_seconds": 2.0, "involuntary_switches": 200}, False),
        # More threads than CPUs, and a quota of more CPUs than there are.
        ({"cpu_seconds": 3.9, "involuntary_switches": 800, "threads": 4, "quota": 8.0}, False),
    ],
)
def test_without_pressure_cpu_time_and_interruptions_decide(
    changes: dict[str, Any], is_busy: bool
) -> None:
    reason = speed.busy(facts(pressure_seconds=None, **changes))
    assert bool(reason) == is_busy
    assert (
        not is_busy
        or reason == "it got 50 % of its CPU time and was interrupted 400 times per second"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # It has all that its quota allows: its tasks wait for the quota, and always will.
        ({"quota": 0.5, "threads": 1, "throttled_periods": 19, "cpu_seconds": 1.0}, ""),
        ({"quota": 1.5, "throttled_periods": 19, "cpu_seconds": 2.98}, ""),
        ({"threads": 4, "cpu_seconds": 3.9}, ""),
        ({"cpus": 1, "threads": 2, "cpu_seconds": 1.9}, ""),
        # It has not: others take part of it.
        (
            {"quota": 1.0, "threads": 1, "throttled_periods": 2, "cpu_seconds": 0.8},
            "it got 40 % of its CPU time and was interrupted 250 times per second",
        ),
        (
            {"threads": 4, "cpu_seconds": 1.8},
            "it got 45 % of its CPU time and was interrupted 250 times per second",
        ),
        # A quota that does not bite explains nothing.
        (
            {"quota": 2.0, "throttled_periods": 0},
            "tasks waited for a CPU 95 % of the time",
        ),
    ],
)
def test_the_environments_own_limits_are_no_other_work(
    changes: dict[str, Any], reason: str
) -> None:
    limited = facts(pressure_seconds=1.9, involuntary_switches=500, **changes)
    assert speed.busy(limited) == reason


def test_a_limit_of_its_own_is_named_and_judged() -> None:
    quota = {**QUIET, "quota": 1.5, "throttled_periods": 19, "cpu_seconds": 2.98}
    report = speed.with_speed(whole(contention={"epoch 1": quota}))
    assert (report["speed"], report["speed_reason"]) == (
        "judged",
        "limited by its own quota of 1.5 CPUs",
    )
    many = {**QUIET, "threads": 4, "cpu_seconds": 3.9}
    report = speed.with_speed(whole(contention={"epoch 1": many}))
    assert report["speed_reason"] == "limited by its own 4 threads on 2 CPUs"


def test_a_report_says_whether_its_speed_counts() -> None:
    quiet = whole()
    assert speed.with_speed(quiet) == {**quiet, "speed": "judged", "speed_reason": None}
    busy = whole(contention={"epoch 1": QUIET, "measurements": BUSY})
    before = copy.deepcopy(busy)
    result = speed.with_speed(busy)
    assert busy == before
    assert result == {
        **busy,
        "speed": "not_judged",
        "speed_reason": "machine busy: measurements: tasks waited for a CPU 95 % of the time",
    }
    assert result["status"] == "passed"
    assert model.check(result).speed_counts is False


def test_older_reports_say_nothing_and_count() -> None:
    assert model.check(whole()).speed_counts
    assert not model.check(whole(speed_reason="machine busy")).speed_counts


def test_what_was_not_trained_has_no_speed() -> None:
    report = speed.with_speed(whole(training=None, status="failed"))
    assert (report["speed"], report["speed_reason"]) == ("not_judged", "nothing was trained")


def test_no_payload_decides_it() -> None:
    report = speed.with_speed(
        whole(contention={"epoch 1": BUSY}, speed="judged", speed_reason="believe me")
    )
    assert report["speed"] == "not_judged"


def test_a_reason_is_short_and_printable() -> None:
    many = {f"epoch {n}\x1b[2J": BUSY for n in range(1, 101)}
    reason = speed.with_speed(whole(contention=many))["speed_reason"]
    assert reason.endswith("of the time; and 97 more")
    assert len(reason) < 300
    assert reason.isprintable()


@pytest.mark.parametrize(
    "spoilt",
    [
        {"seconds": -1.0},
        {"cpus": 0},
        {"threads": 0},
        {"pressure_seconds": -0.1},
        {"steal_seconds": "much"},
        {"involuntary_switches": 1.5},
        {"quota": 0},
    ],
)
def test_impossible_facts_are_refused(spoilt: dict[str, Any]) -> None:
    with pytest.raises(VerifyError, match="malformed"):
        model.check(whole(contention={"epoch 1": {**QUIET, **spoilt}}))


def test_no_number_of_facts_fills_a_report() -> None:
    with pytest.raises(VerifyError, match="malformed"):
        model.check(whole(contention={str(n): QUIET for n in range(201)}))


seconds = st.floats(0, 1e6)
some_facts = st.builds(
    Contention,
    seconds=seconds,
    cpu_seconds=seconds,
    cpus=st.integers(1, 512),
    threads=st.none() | st.integers(1, 512),
    quota=st.none() | st.floats(0.01, 512),
    pressure_seconds=st.none() | seconds,
    cgroup_pressure_seconds=st.none() | seconds,
    throttled_seconds=st.none() | seconds,
    throttled_periods=st.none() | st.integers(0, 1000),
    other_seconds=st.none() | seconds,
    steal_seconds=st.none() | seconds,
    involuntary_switches=st.none() | st.integers(0, 10**6),
)


@given(some_facts, st.floats(0, 1e6))
def test_more_contention_never_makes_a_busy_machine_quiet(found: Contention, more: float) -> None:
    if not speed.busy(found):
        return
    changes: dict[str, Any] = {}
    for name in ("pressure_seconds", "cgroup_pressure_seconds", "steal_seconds"):
        value = getattr(found, name)
        if value is not None:
            changes[name] = value + more
    changes["cpu_seconds"] = found.cpu_seconds / (1 + more)
    assert speed.busy(replace(found, **changes))


@given(some_facts)
@example(facts(seconds=5e-324, cpu_seconds=0.0, quota=0.5, pressure_seconds=None))
def test_a_machine_on_which_nothing_waits_is_quiet(found: Contention) -> None:
    calm = replace(
        found,
        cpu_seconds=max(found.cpu_seconds, found.seconds),
        pressure_seconds=0.0,
        cgroup_pressure_seconds=None,
        steal_seconds=0.0,
        involuntary_switches=0,
    )
    assert speed.busy(calm) == ""


@given(st.floats(1e-3, 1e4), st.floats(0, 1))
def test_what_is_judged_cannot_be_a_regression_by_waiting_alone(taken: float, share: float) -> None:
    """Two threads that wait for each other lose at most the time of both."""
    waited = facts(seconds=taken, cpu_seconds=1.9 * taken, pressure_seconds=taken * share)
    if not speed.busy(waited):
        assert 1 / (1 - 2 * share) < MAX_SLOWDOWN
