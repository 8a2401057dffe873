from __future__ import annotations

import io
import json
import math
import os
from typing import Any

import pytest

from envbuilder.payload.events import Events, take_stdout


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_object_a_line() -> None:
    stream = io.StringIO()
    events = Events(stream, "f00")
    events.phase("import torch")
    events.progress("epoch 1", 1, 2)
    events.write("error", message="no data")
    events.report({"status": "passed", "text": "two\nlines"})
    assert lines(stream) == [
        {"event": "phase", "name": "import torch"},
        {"event": "progress", "phase": "epoch 1", "done": 1, "total": 2},
        {"event": "error", "message": "no data"},
        {"event": "report", "run_id": "f00", "report": {"status": "passed", "text": "two\nlines"}},
    ]


def test_a_blind_test_is_asked_for_and_answered() -> None:
    stream = io.StringIO()
    events = Events(stream)
    events.write("questions")
    events.answers(3, [7], [[-0.5, math.nan]])
    assert lines(stream) == [
        {"event": "questions"},
        {"event": "answers", "first": 3, "classes": [7], "scores": [[-0.5, None]]},
    ]


def test_progress_is_limited_to_two_a_second() -> None:
    stream = io.StringIO()
    clock = Clock()
    events = Events(stream, clock=clock)
    fetched: list[int] = []

    def loss() -> float:
        fetched.append(1)
        return math.nan if len(fetched) == 1 else 0.25

    for done in range(1, 201):
        clock.now += 0.01
        events.progress("epoch 1", done, 1000, loss)
    written = lines(stream)
    assert 3 <= len(written) <= 5
    assert len(fetched) == len(written)  # fetching it waits for the device
    assert [event["loss"] for event in written] == [None, *[0.25] * (len(written) - 1)]


def test_the_last_progress_is_never_dropped() -> None:
    stream = io.StringIO()
    events = Events(stream, Clock())
    events.progress("epoch 1", 1, 3)
    events.progress("epoch 1", 2, 3)
    events.progress("epoch 1", 3, 3)
    assert [event["done"] for event in lines(stream)] == [1, 3]


def test_numbers_that_json_does_not_know_become_null() -> None:
    stream = io.StringIO()
    Events(stream).report({"loss": math.nan, "list": [math.inf, (1.5, -math.inf)]})
    assert lines(stream)[0]["report"] == {"loss": None, "list": [None, [1.5, None]]}
    assert "NaN" not in stream.getvalue()


def test_what_libraries_print_does_not_reach_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    stdout = os.dup(1)
    try:
        with take_stdout() as kept:
            os.write(1, b"native\n")
            Events(kept).phase("real")
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    captured = capfd.readouterr()
    assert captured.out == '{"event": "phase", "name": "real"}\n'
    assert captured.err == "native\n"
