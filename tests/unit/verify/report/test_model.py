"""A report is outside data: only a whole, consistent one is believed."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import console
from envbuilder.core.console import PlainProgress, _PlainTask
from envbuilder.core.errors import VerifyError
from envbuilder.core.process import Completed
from envbuilder.payload.report import BLIND_TEST, REQUIRED, STEP
from envbuilder.payload.training.dataset import Split
from envbuilder.verify import blind_test
from envbuilder.verify.report import consistency, model
from envbuilder.verify.report.consistency import Gates
from envbuilder.verify.run import Events, run_payload
from tests.support.folders import read_json
from tests.support.programs import completed
from tests.support.progress import SILENT


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
        "schema": 2,
        "device": {"requested": "cpu", "used": "cpu", "name": "A CPU"},
        "framework": {"name": "torch", "version": "2.13.0+cpu"},
        "dataset": {"name": "MNIST", "train": 60000, "test": 10000, "subset": False},
        "checks": [
            {"name": name, "status": "passed", "seconds": 1.0, "detail": "ok"}
            for name in (*REQUIRED, "arithmetic", BLIND_TEST, STEP)
        ],
        "training": {"epochs": [epoch], "cold_start_seconds": 3.0},
        "status": "passed",
        "reasons": [],
    }


EVIDENCE = ("cpu", "cpu-ipex", "cuda-forced-on-cpu", "zendnn")


@pytest.mark.parametrize("name", EVIDENCE)
def test_the_reports_of_the_documentation_are_valid(name: str, repository: Path) -> None:
    data = read_json(repository / f"docs/evidence/reports/{name}.json")
    assert model.check(data).status == data["status"]


def spoil(path: str, value: Any, data: dict[str, Any] | None = None) -> dict[str, Any]:
    data = passing() if data is None else data
    at: Any = data
    *parents, last = path.split(".")
    for key in parents:
        at = at[int(key)] if key.isdigit() else at[key]
    at[last] = value
    return data


def two_epochs(**earlier: Any) -> dict[str, Any]:
    """A report whose last epoch is good, and the one before it is not."""
    data = passing()
    (last,) = data["training"]["epochs"]
    data["training"]["epochs"] = [{**last, **earlier}, last]
    return data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (spoil("schema", 1), "schema 1"),
        (spoil("status", "great"), "malformed"),
        (spoil("device.used", "cuda"), "passed on cuda, although cpu"),
        (spoil("device.used", None), "although cpu was requested"),
        (
            spoil("checks.1.status", "failed", spoil("checks.0.status", "failed")),
            "report contradicts itself: passed, although these checks failed: "
            + ", ".join(REQUIRED[:2]),
        ),
        (spoil("training.epochs.0.accuracy", None), "without a trained epoch"),
        (spoil("training", None), "without a trained epoch"),
        (spoil("training.epochs.0.accuracy", 1.5), "an accuracy of 1.5"),
        (two_epochs(seconds=-3.0), "an epoch took -3 s"),
        (two_epochs(samples_per_second=0.0), "an epoch took"),
        (two_epochs(accuracy=-0.5), "an accuracy of -0.5"),
        (two_epochs(loss=float("nan")), "a number is not finite"),
        (spoil("device.memory_bytes", 10**400), "a number is too large"),
        (spoil("training.epochs.0.index", -(2**64)), "a number is too large"),
        (spoil("anything", {"deep": [1, {"er": float("nan")}]}), "a number is not finite"),
        ([], "malformed"),
    ],
)
def test_a_report_that_lies_or_is_damaged_is_refused(data: Any, said: str) -> None:
    with pytest.raises(VerifyError, match=said):
        model.check(data)


@pytest.mark.parametrize(
    ("key", "value"),
    [("seconds", 0.5), ("samples_per_second", 0.5), ("accuracy", 0.0), ("accuracy", 1.0)],
)
def test_a_slow_fast_or_bad_epoch_is_still_one(key: str, value: float) -> None:
    found = model.check(spoil(f"training.epochs.0.{key}", value))
    assert (found.status, getattr(found.epochs[0], key)) == ("passed", value)
    assert found.measurements is None, "as in reports of older payloads"


def test_what_envbuilder_knows_is_first_and_no_payload_changes_it() -> None:
    facts = {"profile": "cpu", "fingerprint": None}
    found = model.assemble({"fingerprint": "x", "quick": True, "schema": 7, "profile": "y"}, facts)
    assert list(found.items()) == [
        ("schema", model.SCHEMA),
        ("profile", "cpu"),
        ("fingerprint", None),
        ("quick", True),
    ]


MEASUREMENTS = {
    "matmul": [{"dtype": "float32", "size": 2048, "flops_per_second": 2.2e11}],
    "bandwidth": {"device": 4.7e10, "host_to_device": None},
    "launch_seconds": 4.1e-6,
    "inference": {"batch": 1000, "samples_per_second": 4900.0},
    "peak_memory_bytes": 683479040,
    "epoch_flops": 4293918720000,
    "matmul_share": 0.61,
}


def measuring(path: str, value: Any) -> dict[str, Any]:
    data = {**passing(), "measurements": copy.deepcopy(MEASUREMENTS)}
    data["training"]["losses"] = [[1, 2.3], [6, None]]
    return spoil(path, value, data)


@pytest.mark.parametrize("path", ["measurements", *(
    f"measurements.{key}" for key in MEASUREMENTS
)])  # fmt: skip
def test_what_was_not_measured_is_null(path: str) -> None:
    assert model.check(measuring(path, None)).status == "passed"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("measurements.matmul.0.flops_per_second", 0.0),
        ("measurements.matmul.0.flops_per_second", float("nan")),
        ("measurements.matmul.0.size", 0),
        ("measurements.launch_seconds", -4e-6),
        ("measurements.peak_memory_bytes", -1),
        ("measurements.matmul_share", -0.5),
        ("training.losses", [[1, 0.5]] * 201),
        ("training.losses", [[0, 0.5]]),
        ("training.losses", [[1, float("nan")]]),
    ],
)
def test_a_measurement_out_of_range_is_refused(path: str, value: Any) -> None:
    with pytest.raises(VerifyError, match="malformed"):
        model.check(measuring(path, value))


def test_a_very_deep_report_is_refused() -> None:
    deep: Any = float("nan")
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(VerifyError, match="not finite"):
        model.check({**passing(), "deep": deep})


def test_an_epoch_shows_its_share_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_PlainTask, "PERIOD_SECONDS", 0.0)
    clock = SimpleNamespace(monotonic=partial(next, itertools.count()))
    monkeypatch.setattr(console, "time", clock)
    shown: list[str] = []
    events = Events(PlainProgress(shown.append))
    events.line('{"event": "phase", "name": "epoch 1"}')
    for sent in (
        '"done": 1, "total": 4, "loss": 0.12345',
        '"done": 2, "total": 4, "loss": null',
        '"done": 3, "total": 4, "loss": 1e300',
        '"done": 5, "total": 4',
        f'"done": 1, "total": {10**400}',
    ):
        events.line(f'{{"event": "progress", "phase": "epoch 1", {sent}}}')
    events.close()
    assert shown == [
        "· epoch 1",
        "  epoch 1: 25 %, 3.00 s left, loss 0.123",
        "  epoch 1: 50 %, 2.00 s left",
        "  epoch 1: 75 %, 1.00 s left",
        "  epoch 1: 5.0 s",
    ]


@given(st.text())
def test_no_line_breaks_the_events(line: str) -> None:
    events = Events(SILENT)
    events.line(line)
    events.line(json.dumps({"event": "phase", "name": line}))
    events.line(json.dumps({"event": "progress", "phase": line, "done": line, "total": line}))
    events.close()


RUN = "0f"


def ended(
    code: int, *lines: str, timed_out: bool = False, stderr: str = ""
) -> Callable[[Callable[[str], None]], Completed]:
    def start(on_line: Callable[[str], None]) -> Completed:
        for line in lines:
            on_line(line)
        return completed(code, stderr=stderr)._replace(timed_out=timed_out)

    return start


def run(start: Any, tmp_path: Path) -> dict[str, Any]:
    log = tmp_path / "log/x.log"
    asked = consistency.Request(
        device="cpu",
        name="MNIST",
        subset=False,
        quick=False,
        epochs=1,
        train=60000,
        test=10000,
        sha256={},
        framework="torch",
        version="",
        precision="float32",
        gates=Gates(accuracy=0.9, loss=1.0, blind_loss=1.0),
    )
    test = blind_test.BlindTest(Split(b"", b"", 0), tmp_path)
    return run_payload(start, SILENT, log, RUN, asked, test)


def report_line(data: dict[str, Any], run_id: str = RUN) -> str:
    return json.dumps({"event": "report", "run_id": run_id, "report": data})


def test_the_report_comes_through(tmp_path: Path) -> None:
    failed = {**passing(), "status": "failed", "reasons": ["device: none"]}
    assert run(ended(5, "noise", report_line(failed), stderr="warned"), tmp_path) == failed
    assert (tmp_path / "log/x.log").read_text() == "warned"
    scored = {**failed, "blind_test": 5, "steps": []}
    assert run(ended(5, report_line(scored)), tmp_path) == failed, "only this process judges"


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (ended(-2, timed_out=True), "did not end within"),
        (ended(5, report_line(passing())), r"report \(passed\) cannot be trusted"),
        (ended(0, report_line(passing(), "f0")), "belongs to another run and cannot be trusted"),
        (ended(0, json.dumps({"event": "report", "report": passing()})), "belongs to another run"),
        (ended(0, report_line(spoil("status", "failed"))), r"report \(failed\) cannot be trusted"),
    ],
)
def test_a_payload_that_ends_badly_is_5(start: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match=said):
        run(start, tmp_path)
