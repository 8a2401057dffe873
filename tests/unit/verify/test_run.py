"""What the payload is asked for, and which of its reports a genuine one cannot have written."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.core import console
from envbuilder.core.errors import VerifyError
from envbuilder.core.process import Completed
from envbuilder.packages.mnist import Dataset
from envbuilder.payload import arguments
from envbuilder.payload.machine import importing
from envbuilder.payload.report import BLIND_TEST, REQUIRED, STEP
from envbuilder.profiles.profile import Expected
from envbuilder.verify import run
from envbuilder.verify.report import model
from tests.support.reports import measured

if TYPE_CHECKING:
    from collections.abc import Callable

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
    return msgspec.structs.replace(given, **changes)


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
        "--min-accuracy": ["0.981"],
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
    assert not {"--min-accuracy", "--compile-backend", "--require-kernels"} & set(passed)
    assert values(passed, "--precision") == ["bfloat16"]
    assert values(passed, "--framework-version") == ["2.14.1+xpu"]
    assert values(passed, "--extension") == ["ipex"]


def test_what_is_not_asked_for_is_not_passed() -> None:
    plain = Expected(device="cpu", version="")
    passed = run.payload_arguments(job(expects=plain, epochs=None), PATHS)
    names = {
        "--epochs",
        "--framework-version",
        "--extension",
        "--min-accuracy",
        "--compile-backend",
        "--require-kernels",
    }
    assert not names & set(passed)


def test_the_payload_knows_every_option() -> None:
    parsed = arguments.parser().parse_args([*run.payload_arguments(job(), PATHS), "--run-id", "0f"])
    assert (parsed.precision, parsed.framework_version) == ("bfloat16", "2.14.1+xpu")
    assert parsed.min_accuracy == 0.981


@pytest.mark.parametrize("name", [*REQUIRED, BLIND_TEST, STEP])
def test_every_required_check_is_missed(name: str) -> None:
    data = measured()
    assert run._incomplete(model.check(data)) == ""
    data["checks"] = [check for check in data["checks"] if check["name"] != name]
    assert run._incomplete(model.check(data)) == f"without these checks: {name}"


WATCHDOG = "Timeout (0:10:00)!\nThread 0x00007f (most recent call first):\n"


@pytest.mark.parametrize(
    ("phase", "stderr", "message"),
    [
        (
            importing.PHASE,
            WATCHDOG,
            "the framework's import did not end within 600 s and was stopped",
        ),
        (importing.PHASE, "killed\n", "the payload ended with exit code 1: killed"),
        ("epoch 1", WATCHDOG, "the payload ended with exit code 1"),
    ],
)
def test_an_import_that_hung_has_its_own_sentence(
    phase: str, stderr: str, message: str, tmp_path: Path
) -> None:
    def start(on_line: Callable[[str], None]) -> Completed:
        on_line(json.dumps({"event": "phase", "name": phase}))
        return Completed(argv=(), returncode=1, stdout="", stderr=stderr, seconds=600)

    progress = console.progress()
    events = run.Events(progress)
    with pytest.raises(VerifyError, match=message) as failed:
        run.follow(start, events, progress, tmp_path / "log", "id")
    assert failed.value.hint == f"Its output is in {tmp_path / 'log'}"


KILLED = "the payload was killed (signal 9): most often by the kernel, out of memory"


ENDS = [
    # Of the program in the container, or of this machine.
    (0, "the payload ended with exit code 0: last words"),
    (1, "the payload ended with exit code 1: last words"),
    (2, "the payload ended with exit code 2: last words"),
    (5, "the payload ended with exit code 5: last words"),
    # Of a client or an init: not started, not executable, not found.
    (125, "the payload ended with exit code 125: last words"),
    (126, "the payload ended with exit code 126: last words"),
    (127, "the payload ended with exit code 127: last words"),
    (128, "the payload ended with exit code 128: last words"),
    (130, "the payload was ended by signal 2"),
    (134, "the payload was ended by signal 6"),
    (137, KILLED),
    (139, "the payload was ended by signal 11"),
    (143, "the payload was ended by signal 15"),
    (192, "the payload was ended by signal 64"),
    # Beyond the signals that there are.
    (193, "the payload ended with exit code 193: last words"),
    (255, "the payload ended with exit code 255: last words"),
    (-9, KILLED),
    (-11, "the payload was ended by signal 11"),
    (-15, "the payload was ended by signal 15"),
]


def ended(code: int) -> Completed:
    return Completed(argv=(), returncode=code, stdout="", stderr="x\nlast words\n", seconds=9)


@pytest.mark.parametrize(("code", "message"), ENDS)
def test_every_end_without_a_report_is_told(code: int, message: str, tmp_path: Path) -> None:
    progress = console.progress()
    events = run.Events(progress)
    with pytest.raises(VerifyError) as failed:
        run.follow(lambda on_line: ended(code), events, progress, tmp_path / "log", "id")
    assert (failed.value.message, failed.value.exit_code) == (message, 5)


@pytest.mark.parametrize(("code", "message"), ENDS)
def test_every_end_is_compared_with_the_report(code: int, message: str) -> None:
    status = "failed" if code == 0 else "passed"
    with pytest.raises(VerifyError) as failed:
        run.require_agreement(ended(code), status, "hint")
    assert failed.value.message == f"the payload reported {status}, not to be trusted: {message}"
    if code not in {0, 5}:
        with pytest.raises(VerifyError):
            run.require_agreement(ended(code), "failed", "hint")


@pytest.mark.parametrize("seconds", [-1.0, -1e-9])
def test_no_check_ends_before_it_begins(seconds: float) -> None:
    data = measured()
    data["checks"][3]["seconds"] = seconds
    name = data["checks"][3]["name"]
    assert run._incomplete(model.check(data)).startswith(f"although {name} took -")
