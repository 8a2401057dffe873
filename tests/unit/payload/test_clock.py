from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import envbuilder.payload
from envbuilder.payload.machine import clock
from envbuilder.payload.machine.clock import Reading, problems

FILES = sorted(Path(envbuilder.payload.__file__).parent.rglob("*.py"))
BEFORE = Reading(100.0, 1000.0, 1.7e9, 5000.0)


def after(counter: float, monotonic: float, wall: float, uptime: float) -> Reading:
    return Reading(100.0 + counter, 1000.0 + monotonic, 1.7e9 + wall, 5000.0 + uptime)


def test_clocks_that_agree() -> None:
    assert problems(BEFORE, after(60, 60, 60, 60)) == ([], "60.0 s on 3 clocks that agree")


@pytest.mark.parametrize("jump", [-86400.0, 3600.0])
def test_a_jump_of_the_wall_clock_is_told_and_harmless(jump: float) -> None:
    found, text = problems(BEFORE, after(60, 60, 60 + jump, 60))
    assert found == []
    assert f"the wall clock was moved by {jump:+.1f} s" in text


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        ((-5, 60, 60, 60), "moved by -5.000 s"),
        ((0, 0, 0, 0), r"moved by 0.000 s"),
        ((6, 60, 60, 60), r"counted 6.00 s and the monotonic clock 60.00 s"),
        ((6, 6, 6, 60), r"counted 6.00 s and the kernel 60.00 s"),
        ((600, 600, 600, 60), r"counted 600.00 s and the kernel 60.00 s"),
        ((float("nan"), 60, 60, 60), "counted nan"),
    ],
)
def test_a_clock_that_lies(counted: tuple[float, float, float, float], words: str) -> None:
    found, _ = problems(BEFORE, after(*counted))
    assert any(words in sentence for sentence in found)


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        # 1.45 s were hidden within an epoch of 1.5 s.
        (((10.0, 10.0, 0, 10.0), (10.05, 11.5, 0, 11.5)), "the monotonic clock 1.50 s"),
        (((10.0, 10.0, 0, 10.02), (10.05, 10.05, 0, 11.52)), "the kernel 1.50 s"),
        (((10.0, 10.0, 0, 10.02, 10.0), (10.05, 10.05, 0, 10.07, 11.5)), "the raw clock 1.50 s"),
        (((10.0, 10.0, 0, 10.02), (70.0, 69.5, 0, 70.02)), "the monotonic clock 59.50 s"),
    ],
)
def test_a_second_that_is_hidden(readings: Any, words: str) -> None:
    before, after = (Reading(*values) for values in readings)
    found, _ = problems(before, after)
    assert any(words in sentence for sentence in found)


def test_clocks_may_differ_by_their_resolution_and_by_how_long_it_took_to_read_them() -> None:
    hundredths = Reading(10.0, 10.0, 0, 10.01), Reading(11.5, 11.5, 0, 11.52)
    assert problems(*hundredths)[0] == []
    whole = Reading(10.0, 10.0, 0, 10.0), Reading(11.5, 11.5, 0, 12.0)
    assert problems(*whole)[0] == [], "some containers count in whole seconds"
    preempted = Reading(10.0, 10.3, 0, None, width=0.4), Reading(11.5, 11.5, 0, None)
    assert problems(*preempted)[0] == []


def test_a_system_without_an_uptime_has_two_clocks() -> None:
    end = Reading(160.0, 1060.0, 1.7e9 + 60, None)
    assert problems(BEFORE, end) == ([], "60.0 s on 2 clocks that agree")


@given(st.text())
def test_no_text_breaks_the_uptime(text: str) -> None:
    clock.parse_uptime(text)


def test_the_uptime() -> None:
    assert clock.parse_uptime("3011.08 4059.44\n") == 3011.08
    assert clock.parse_uptime("") is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_module_times_by_the_wall_clock(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text()))
    used = {
        ast.unparse(node) for node in nodes if isinstance(node, (ast.Attribute, ast.ImportFrom))
    }
    wall = {"time.time", "time.time_ns", "time.localtime", "datetime.now", "datetime.datetime"}
    # ranks.py marks when a rank failed, to tell which of several processes was first.
    assert used & wall <= ({"time.time"} if path.name in {"clock.py", "ranks.py"} else set())
    assert not [name for name in used if name.startswith("from time import")]


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], tuple[float, int]]:
    """Median and number of calls of work whose calls take these seconds, the last for ever."""

    def run(costs: list[float]) -> tuple[float, int]:
        now = [0.0]
        calls = [0]

        def work() -> None:
            now[0] += costs[min(calls[0], len(costs) - 1)]
            calls[0] += 1

        monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
        return clock.median_seconds(lambda *_: None, work, 1.0), calls[0]

    return run


def test_the_first_call_does_not_count(seconds: Any) -> None:
    median, calls = seconds([100.0, 0.1])
    assert median == pytest.approx(0.1)
    assert 2 + clock.LEAST_BLOCKS <= calls <= 2 + 11


def test_short_work_is_timed_in_blocks(seconds: Any) -> None:
    median, calls = seconds([1e-6])
    assert median == pytest.approx(1e-6)
    assert calls == pytest.approx(2 + clock.MOST_BLOCKS * 2000, rel=0.01)


def test_long_work_is_repeated_three_times(seconds: Any) -> None:
    assert seconds([5.0]) == (5.0, 2 + clock.LEAST_BLOCKS)
