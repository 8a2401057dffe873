"""What the system counted during timed work, from recorded files of /proc and of cgroups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuilder.payload.machine import contention, threads
from envbuilder.payload.machine.contention import Reading, between, read

RECORDED = Path(__file__).with_name("pressure")
CPUS = frozenset({0, 1})


def machine(name: str) -> Reading:
    return read(RECORDED / name, CPUS)


def counted(name: str) -> dict[str, Any]:
    """What happened between two recorded moments, but for what this process itself counts."""
    facts = between(machine(f"{name}-before"), machine(f"{name}-after"), 2)
    ours = {"seconds", "cpu_seconds", "involuntary_switches", "threads", "cpus", "quota"}
    ours |= {"other_seconds"}
    return {key: value for key, value in facts.items() if key not in ours}


@pytest.mark.parametrize(
    ("name", "pressure", "cgroup_pressure", "throttled", "periods", "steal"),
    [
        # One other job on two cores.
        ("host", 1.913442, None, None, None, 0.03),
        # With a quota, a container counts its own pressure and throttling.
        ("container", 0.25, 1.5, 1.25, 20, 0.0),
        # Version 1 counts nanoseconds and no pressure.
        ("version1", None, None, 1.25, 20, None),
    ],
)
def test_what_was_counted(
    name: str,
    pressure: float | None,
    cgroup_pressure: float | None,
    throttled: float | None,
    periods: int | None,
    steal: float | None,
) -> None:
    assert counted(name) == {
        "pressure_seconds": pressure,
        "cgroup_pressure_seconds": cgroup_pressure,
        "throttled_seconds": throttled,
        "throttled_periods": periods,
        "steal_seconds": steal,
    }


def test_a_system_without_these_files_counts_what_a_process_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "fetch", lambda: threads.CpuFacts(4, 1.5, 4))
    before = read(tmp_path, CPUS)
    sum(range(100_000))
    facts = between(before, read(tmp_path, CPUS), 2)
    assert facts["seconds"] > 0
    assert facts["cpu_seconds"] >= 0
    assert facts["involuntary_switches"] >= 0
    assert (facts["threads"], facts["cpus"], facts["quota"]) == (2, 4, 1.5)
    absent = {k for k, v in facts.items() if v is None}
    assert absent == {
        "pressure_seconds",
        "cgroup_pressure_seconds",
        "steal_seconds",
        "throttled_seconds",
        "throttled_periods",
        "other_seconds",
    }


def test_a_counter_that_runs_backwards_counts_nothing() -> None:
    """As steal does when a virtual machine moves."""
    facts = between(Reading(1.0, 1.0, steal_seconds=9.0), Reading(2.0, 1.5, steal_seconds=1.0), 1)
    assert facts["steal_seconds"] == 0


def test_only_the_cpus_of_the_process_count() -> None:
    text = (RECORDED / "host-after/proc/stat").read_text()
    steal = (contention.STEAL,)
    assert contention.parse_ticks(text, frozenset({1}), 100, steal) == 40.45
    assert contention.parse_ticks(text, frozenset({7}), 100, steal) is None


def test_what_others_worked_is_all_work_but_our_own() -> None:
    before = Reading(1.0, 10.0, busy_seconds=100.0)
    after = Reading(11.0, 28.0, busy_seconds=119.5)
    assert between(before, after, 2)["other_seconds"] == 1.5
    # Ticks are coarse: our own time may come out longer than that of all.
    assert between(before, Reading(2.0, 12.0, busy_seconds=101.9), 2)["other_seconds"] == 0


@pytest.mark.parametrize(
    "text", ["", "some", "some total=", "some avg10=0.00 total=x", "full total=5", "some total=-1"]
)
def test_pressure_that_does_not_parse_is_none(text: str) -> None:
    assert contention.parse_pressure(text) is None


@pytest.mark.parametrize("text", ["", "nr_throttled", "nr_throttled x", "usage_usec 12"])
def test_throttling_that_is_not_counted_is_none(text: str) -> None:
    assert contention.parse_throttling(text) is None


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3", "cpu0 1 2 3 4 5 6 7 x"])
def test_steal_that_is_not_counted_is_none(text: str) -> None:
    assert contention.parse_ticks(text, CPUS, 100, (contention.STEAL,)) is None
