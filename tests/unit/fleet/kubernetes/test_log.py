"""The report in the log of a pod, where anything may stand."""

from __future__ import annotations

import json

import pytest

from envbuilder.fleet.kubernetes import log
from tests.support.kubernetes import RUN, log_of, pod_name


def event(run_id: str = "run", **report: object) -> str:
    return json.dumps({"event": "report", "run_id": run_id, "report": report})


def test_a_real_log_has_its_report_between_other_lines() -> None:
    result = log.read(log_of("gpu-1"))
    assert result.run_id == f"{RUN}/gpu-1/{pod_name('gpu-1')}"
    assert result.report is not None
    assert result.report["status"] == "passed"
    assert "profiler_stop" in result.last
    assert "event" not in result.last


def test_the_last_report_counts() -> None:
    text = f"{event('first', a=1)}\n{event('second', a=2)}\n"
    assert (log.read(text).run_id, log.read(text).report) == ("second", {"a": 2})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        '{"event": "report"',
        '{"event": "report", "report": []}',
        '{"event": "report", "report": {"a": 1, "a": 2}}',
        '{"event": "report", "report": {"a": NaN}}',
        '{"event": "phase", "name": "report"}',
        event(a=1)[:-3],
        f" {event(a=1)}",
        '{"event": "report", "report": ' + "[" * 100_000,
    ],
)
def test_what_is_no_report_is_none(text: str) -> None:
    assert log.read(text).report is None


def test_a_reason_comes_before_other_lines() -> None:
    text = 'warning\n{"event": "error", "message": "damaged \\u001b[2Jdata"}\nwarning\n'
    assert log.read(text).last == "damaged ?[2Jdata"


def test_the_last_lines_are_few_and_short() -> None:
    result = log.read("".join(f"{n} {'x' * 9000}\n" for n in range(1000)))
    assert result.last.startswith("988 x")
    assert len(result.last) < 7000
