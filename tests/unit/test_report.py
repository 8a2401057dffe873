"""A report is outside data: only a whole, consistent one is believed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder import report, verify
from envbuilder.console import PlainProgress
from envbuilder.errors import VerifyError
from envbuilder.process import Completed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def passing() -> dict[str, Any]:
    epoch = {
        "seconds": 20.0,
        "data_seconds": 1.0,
        "compute_seconds": 19.0,
        "samples_per_second": 3000.0,
        "loss": 0.2,
        "accuracy": 0.98,
    }
    return {
        "schema": 1,
        "device": {"requested": "cpu", "used": "cpu", "name": "A CPU"},
        "torch": {"version": "2.13.0+cpu"},
        "dataset": {"name": "MNIST", "train": 60000, "test": 10000, "subset": False},
        "checks": [{"name": "import", "status": "passed", "seconds": 1.0, "detail": "ok"}],
        "training": {"epochs": [epoch], "cold_start_seconds": 3.0},
        "status": "passed",
        "reasons": [],
    }


def test_a_good_report_is_believed() -> None:
    measured = report.check(passing())
    assert measured.status == "passed"
    assert measured.training is not None
    assert measured.training.epochs[0].accuracy == 0.98


def spoil(path: str, value: Any) -> dict[str, Any]:
    data = passing()
    at: Any = data
    *parents, last = path.split(".")
    for key in parents:
        at = at[int(key)] if key.isdigit() else at[key]
    at[last] = value
    return data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (spoil("schema", 2), "schema 2"),
        (spoil("status", "great"), "malformed"),
        (spoil("device.used", "cuda"), "passed on cuda, although cpu"),
        (spoil("device.used", None), "although cpu was asked for"),
        (spoil("checks.0.status", "failed"), "checks failed: import"),
        (spoil("training.epochs", []), "without a trained epoch"),
        (spoil("training.epochs.0.accuracy", None), "without a trained epoch"),
        (spoil("training.epochs.0.seconds", "20"), "malformed"),
        (spoil("training", None), "without a trained epoch"),
        ([], "malformed"),
        (None, "malformed"),
    ],
)
def test_a_report_that_lies_or_is_damaged_is_refused(data: Any, said: str) -> None:
    with pytest.raises(VerifyError, match=said):
        report.check(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(json_values)
def test_no_data_breaks_the_check(data: Any) -> None:
    with pytest.raises(VerifyError):
        report.check(data)


@given(st.text())
def test_no_line_breaks_the_events(line: str) -> None:
    events = verify.Events(PlainProgress(lambda text: None))
    events.line(line)
    events.line(json.dumps({"event": "phase", "name": line}))
    events.line(json.dumps({"event": "progress", "phase": line, "done": line, "total": line}))
    events.close()


def ended(
    code: int, *lines: str, timed_out: bool = False, stderr: str = ""
) -> Callable[[Callable[[str], None]], Completed]:
    def start(on_line: Callable[[str], None]) -> Completed:
        for line in lines:
            on_line(line)
        return Completed(
            argv=("x",), returncode=code, stdout="", stderr=stderr, seconds=1, timed_out=timed_out
        )

    return start


def run(start: Any, tmp_path: Path) -> verify.Outcome:
    return verify.run_payload(start, PlainProgress(lambda text: None), tmp_path / "log" / "x.log")


def report_line(data: dict[str, Any]) -> str:
    return json.dumps({"event": "report", "report": data})


def test_the_report_comes_through(tmp_path: Path) -> None:
    outcome = run(ended(0, "noise", report_line(passing()), stderr="warned"), tmp_path)
    assert outcome.measured.status == "passed"
    assert outcome.data == passing()
    assert (tmp_path / "log" / "x.log").read_text() == "warned"


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (ended(-9), "killed .signal 9."),
        (ended(137), "out of memory"),
        (ended(-11), "signal 11"),
        (ended(1, stderr="Traceback\nImportError: no torch"), "ImportError: no torch"),
        (ended(0), "exit code 0"),
        (ended(-2, timed_out=True), "did not end within"),
        (ended(5, report_line(passing())), "reported passed but"),
        (ended(1, report_line(passing())), "not to be trusted"),
        (ended(0, report_line(spoil("status", "failed"))), "reported failed but"),
    ],
)
def test_a_payload_that_ends_badly_is_5(start: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match=said):
        run(start, tmp_path)


def test_reports_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    report.write(passing(), path)
    assert json.loads(path.read_text()) == passing()
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]
    (tmp_path / "file").write_text("")
    with pytest.raises(VerifyError, match="cannot be written"):
        report.write(passing(), tmp_path / "file" / "report.json")
