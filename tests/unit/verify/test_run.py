"""What the payload is asked for, and which of its reports a genuine one cannot have written."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds.mnist import Dataset
from envbuilder.core import console
from envbuilder.core.errors import VerifyError
from envbuilder.core.process import Completed
from envbuilder.payload import arguments
from envbuilder.payload.machine import device
from envbuilder.payload.report import BLIND_TEST, REQUIRED, STEP
from envbuilder.profiles.profile import Expected
from envbuilder.verify import run
from envbuilder.verify.report import model, speed
from tests.support.programs import completed
from tests.support.reports import measured

EXPECTS = Expected(
    device="xpu",
    version="2.14.1+xpu",
    precision="bfloat16",
    accuracy=0.981,
    kernels=("aten::mm", "zentorch::"),
    compile=("inductor", "zentorch"),
    extension="ipex",
)
DATA = Dataset(folder=Path("/data"), name="MNIST", subset=False)
PATHS = {"data": "/at/data", "questions": "/at/questions"}


def job(**changes: Any) -> run.Job:
    given = run.Job(expects=EXPECTS, dataset=DATA, epochs=4, quick=False)
    return replace(given, **changes)


def values(passed: tuple[str, ...], name: str) -> list[str]:
    return [value for option, value in pairwise(passed) if option == name]


def test_all_that_the_profile_expects_reaches_the_payload() -> None:
    passed = run.payload_arguments(job(), PATHS)
    assert passed[0] == "verify"
    for name, expected in {
        "--device": ["xpu"],
        "--data": ["/at/data"],
        "--questions": ["/at/questions"],
        "--dataset-name": ["MNIST"],
        "--epochs": ["4"],
        "--precision": ["bfloat16"],
        "--framework": ["torch"],
        "--framework-version": ["2.14.1+xpu"],
        "--compile-backend": ["inductor", "zentorch"],
        "--require-kernels": ["aten::mm", "zentorch::"],
        "--extension": ["ipex"],
    }.items():
        assert values(passed, name) == expected, name
    assert "--quick" not in passed


def test_a_profile_may_limit_the_images_of_an_epoch() -> None:
    expects = Expected(device="cpu", version="1", images=20_032)
    assert values(run.payload_arguments(job(expects=expects), PATHS), "--images") == ["20032"]
    quick = run.payload_arguments(job(expects=expects, quick=True), PATHS)
    assert not values(quick, "--images"), "a quick run takes fewer"
    assert not values(run.payload_arguments(job(), PATHS), "--images")


@pytest.mark.parametrize(
    "why", [{"quick": True}, {"dataset": Dataset(folder=Path(), name="few", subset=True)}]
)
def test_a_quick_run_expects_what_a_subset_can_show(why: dict[str, Any]) -> None:
    passed = run.payload_arguments(job(**why), PATHS)
    assert "--quick" in passed
    assert not {"--images", "--compile-backend", "--require-kernels"} & set(passed)
    assert values(passed, "--precision") == ["bfloat16"]
    assert values(passed, "--framework-version") == ["2.14.1+xpu"]
    assert values(passed, "--extension") == ["ipex"]


def test_the_payload_knows_every_option() -> None:
    parsed = arguments.parser().parse_args([*run.payload_arguments(job(), PATHS), "--run-id", "0f"])
    assert parsed.precision == "bfloat16"
    assert parsed.version == "2.14.1+xpu"


@pytest.mark.parametrize("name", [*REQUIRED, BLIND_TEST, STEP])
def test_every_required_check_is_missed(name: str) -> None:
    data = measured()
    assert run._incomplete(model.check(data)) == ""
    data["checks"] = [check for check in data["checks"] if check["name"] != name]
    assert run._incomplete(model.check(data)) == f"without these checks: {name}"


def follow(start: Callable[[Callable[[str], None]], Completed], folder: Path) -> None:
    """Follow a payload that ends without a report."""
    progress = console.progress()
    run.follow(start, run.Events(progress), progress, folder / "log", "id")


WATCHDOG = "Timeout (0:10:00)!\nThread 0x00007f (most recent call first):\n"


@pytest.mark.parametrize(
    ("phase", "stderr", "message"),
    [
        (
            device.PHASE,
            WATCHDOG,
            "the framework's import was stopped after 600 s",
        ),
        (device.PHASE, "killed\n", "the payload ended with exit code 1: killed"),
        ("epoch 1", WATCHDOG, "the payload ended with exit code 1"),
    ],
)
def test_an_import_that_hung_has_its_own_sentence(
    phase: str, stderr: str, message: str, tmp_path: Path
) -> None:
    def start(on_line: Callable[[str], None]) -> Completed:
        on_line(json.dumps({"event": "phase", "name": phase}))
        return completed(1, stderr=stderr)

    with pytest.raises(VerifyError, match=message) as failed:
        follow(start, tmp_path)
    assert failed.value.hint == f"Its output is in {tmp_path / 'log'}"


KILLED = "the payload was killed (signal 9), most likely by the kernel because memory ran out"


ENDS = [
    # Of the program in the container, or of this machine.
    (0, "the payload ended with exit code 0: last words"),
    (1, "the payload ended with exit code 1: last words"),
    (5, "the payload ended with exit code 5: last words"),
    # Of a client or an init: not started, not executable, not found.
    (128, "the payload ended with exit code 128: last words"),
    (137, KILLED),
    (192, "the payload was ended by signal 64"),
    # Beyond the signals that there are.
    (193, "the payload ended with exit code 193: last words"),
    (-9, KILLED),
    (-11, "the payload was ended by signal 11"),
]


def ended(code: int) -> Completed:
    return completed(code, stderr="x\nlast words\n")


@pytest.mark.parametrize(("code", "message"), ENDS)
def test_every_end_without_a_report_is_told(code: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(VerifyError) as failed:
        follow(lambda on_line: ended(code), tmp_path)
    assert (failed.value.message, failed.value.exit_code) == (message, 5)


@pytest.mark.parametrize(("code", "message"), ENDS)
def test_every_end_is_compared_with_the_report(code: int, message: str) -> None:
    status = "failed" if code == 0 else "passed"
    with pytest.raises(VerifyError) as failed:
        run.require_agreement(ended(code), status, "hint")
    assert failed.value.message == f"the payload's report ({status}) cannot be trusted: {message}"
    if code not in {0, 5}:
        with pytest.raises(VerifyError):
            run.require_agreement(ended(code), "failed", "hint")


@pytest.mark.parametrize("seconds", [-1.0, -1e-9])
def test_no_check_ends_before_it_begins(seconds: float) -> None:
    data = measured()
    data["checks"][3]["seconds"] = seconds
    name = data["checks"][3]["name"]
    assert run._incomplete(model.check(data)).startswith(f"although {name} took -")


def seen(*phases: tuple[str, float]) -> run.Timeline:
    timeline = run.Timeline()
    for name, at in phases:
        timeline.arrived(name, at)
    return timeline


PASS = (("epoch 1", 100.0), ("test epoch 1", 120.0), ("epoch 1", 500.0))


SHORT = (("epoch 1", 100.0), ("test epoch 1", 103.0))
FAST = (("epoch 1", 10.0), ("test epoch 1", 11.5))
OUTSIDE = "s according to the report, but measured from outside it took"


@pytest.mark.parametrize(
    ("phases", "delay", "seconds", "said"),
    [
        *((PASS, None, seconds, "") for seconds in (20.0, 19.7, 20.3)),
        *((PASS, None, s, OUTSIDE) for s in (19.4, 20.6, 0.001, -1.0, 31.7, float("nan"))),
        # A GPU hides most of the time of an epoch.
        (FAST, None, 1.4, ""),
        (FAST, None, 0.05, OUTSIDE),
        *((phases, None, 20.0, "was not observed") for phases in ((), PASS[:1], PASS[1:2])),
        # A late process excuses its own delay, within a second before and after a pass.
        (PASS, (0.5, 119.9), 18.3, ""),
        (PASS, (0.5, 119.9), 17.0, OUTSIDE),
        (PASS, (5.0, 300.0), 18.3, OUTSIDE),
        *((PASS, (0.5, now), 18.3, "") for now in (99.0, 100.0, 120.0, 121.9)),
        *((PASS, (0.5, now), 18.3, OUTSIDE) for now in (98.9, 122.0)),
        # Of a short pass it excuses half at most.
        (SHORT, (0.9, 101.0), 1.3, ""),
        *((SHORT, (0.9, 101.0), seconds, OUTSIDE) for seconds in (1.2, 0.3)),
        # Beyond what an overloaded machine causes it was stopped, and blames nobody.
        (PASS, (1.0, 110.0), 20.0, ""),
        *((PASS, (8.0, now), s, "") for now in (99.0, 120.0) for s in (2.0, 12.0, 20.0)),
    ],
)
def test_a_pass_took_as_long_as_reported(
    phases: Any, delay: tuple[float, float] | None, seconds: float, said: str
) -> None:
    timeline = seen(*phases)
    if delay is not None:
        timeline.delayed(*delay)
    problems = timeline.problems([("epoch 1", seconds)])
    assert len(problems) == bool(said)
    assert said in "".join(problems)


@pytest.mark.parametrize(
    ("delay", "at", "doubted"), [(1.0, 110.0, ""), (1.01, 110.0, "1.0 s"), (8.0, 300.0, "")]
)
def test_what_envbuilder_itself_missed_leaves_the_speed_open(
    delay: float, at: float, doubted: str
) -> None:
    timeline = seen(*PASS)
    timeline.delayed(delay, at)
    doubt = timeline.unconfirmed([("epoch 1", 20.0)])
    still = "epoch 1 was not timed from outside, because envbuilder itself was stopped for "
    assert doubt == (still + doubted if doubted else "")
    judged = speed.with_speed({**measured(), "untimed": doubt})
    assert (judged["speed"], judged["speed_reason"]) == (
        ("not_judged", doubt) if doubt else ("judged", None)
    )


def test_every_pass_is_checked_whatever_is_wrong_with_the_one_before() -> None:
    unseen, lying = seen(*PASS).problems([("baseline epoch 1", 20.0), ("epoch 1", 1.0)])
    assert unseen.startswith("baseline epoch 1 is reported, but its start")
    assert lying.startswith("epoch 1 took 1.00 s according to the report")


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
    with run.Timeline() as timeline:
        assert late.wait(10)
    timeline.arrived("epoch 1", 0.5)
    timeline.arrived("test epoch 1", 4.0)
    assert timeline.problems([("epoch 1", 1.6)]) == []
    assert timeline.problems([("epoch 1", 0.2)]) != [], "late by more than half of the pass"
