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


def test_one_other_job_on_two_cores() -> None:
    assert counted("host") == {
        "pressure_seconds": 1.913442,
        "cgroup_pressure_seconds": None,
        "throttled_seconds": None,
        "throttled_periods": None,
        "steal_seconds": 0.03,
    }


def test_a_container_with_a_quota_counts_its_own_pressure_and_throttling() -> None:
    assert counted("container") == {
        "pressure_seconds": 0.25,
        "cgroup_pressure_seconds": 1.5,
        "throttled_seconds": 1.25,
        "throttled_periods": 20,
        "steal_seconds": 0.0,
    }


def test_version_1_counts_nanoseconds_and_no_pressure() -> None:
    assert counted("version1") == {
        "pressure_seconds": None,
        "cgroup_pressure_seconds": None,
        "throttled_seconds": 1.25,
        "throttled_periods": 20,
        "steal_seconds": None,
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
        *("pressure_seconds", "cgroup_pressure_seconds", "steal_seconds"),
        *("throttled_seconds", "throttled_periods", "other_seconds"),
    }


def test_a_counter_that_runs_backwards_counts_nothing() -> None:
    """As steal does when a virtual machine moves."""
    facts = between(Reading(counter=1.0, cpu=1.0, steal=9.0), Reading(2.0, 1.5, steal=1.0), 1)
    assert facts["steal_seconds"] == 0


def test_only_the_cpus_of_the_process_count() -> None:
    text = (RECORDED / "host-after" / "proc" / "stat").read_text()
    steal = (contention.STEAL,)
    assert contention.parse_ticks(text, frozenset({1}), 100, steal) == 40.45
    assert contention.parse_ticks(text, frozenset({7}), 100, steal) is None


def test_what_others_worked_is_all_work_but_our_own() -> None:
    before, after = Reading(1.0, 10.0, busy=100.0), Reading(11.0, 28.0, busy=119.5)
    assert between(before, after, 2)["other_seconds"] == 1.5
    # Ticks are coarse: our own time may come out longer than that of all.
    assert between(before, Reading(2.0, 12.0, busy=101.9), 2)["other_seconds"] == 0


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
