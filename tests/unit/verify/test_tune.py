"""Trials in pairs on a pretended machine, and the payload's process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.core import process
from envbuilder.core.errors import VerifyError
from envbuilder.profiles.profile import Expected
from envbuilder.verify import tune
from tests.support import tuning
from tests.support.tuning import EXPECTS, Machine, run, verdicts

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_setting_that_helps_is_found_on_a_noisy_machine() -> None:
    machine = Machine(**{"OMP_WAIT_POLICY=active": 1.3})
    # Slower and slower, with a stumble now and then: pairs stand it, single trials would not.
    machine.noise = (0.995**n * (0.7 if n % 11 == 0 else 1.0) for n in range(10_000))
    outcome = run(machine)
    assert verdicts(outcome)["OMP_WAIT_POLICY=active"] == "helps"
    assert [n for n, v in verdicts(outcome).items() if v == "helps"] == ["OMP_WAIT_POLICY=active"]
    assert [f.setting.name for f in outcome.written] == ["OMP_WAIT_POLICY=active"]


def test_defaults_and_setting_take_turns() -> None:
    machine = Machine()
    run(machine)
    length = ("--steps", "60", "--warm-up", "10")
    assert all(asked[:4] == length for asked in machine.asked)
    assert all(asked == length for asked in machine.asked[::2])
    assert all(asked != length for asked in machine.asked[1::2])


def test_a_tie_is_no_gain_and_is_not_tried_a_third_time() -> None:
    machine = Machine(**{"OMP_WAIT_POLICY=active": 1.2})
    outcome = run(machine)
    assert set(verdicts(outcome).values()) == {"helps", "no gain"}
    assert machine.times("--bfloat16") == 2
    assert machine.times("OMP_WAIT_POLICY=active") == 3


def test_a_failing_trial_is_a_finding_and_is_not_repeated() -> None:
    machine = Machine()
    machine.fails = {"spawn": "workers died"}
    outcome = run(machine)
    failed = [f for f in outcome.findings if "spawn" in f.setting.name]
    assert {(f.verdict, f.detail, f.gain) for f in failed} == {("failed", "workers died", None)}
    assert machine.times("spawn") == len(failed) == 2
    assert verdicts(outcome)["DataLoader, 1 worker, fork"] == "no gain"


def test_a_setting_that_did_not_take_effect_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(**{"--bfloat16": 5.0, "OMP_NUM_THREADS=1": 5.0})
    monkeypatch.setattr(tuning, "effects", lambda arguments: {"threads": 2})
    outcome = run(machine)
    found = {f.setting.name: f for f in outcome.findings}
    assert found["1 thread"].verdict == "failed"
    assert found["1 thread"].detail == "it did not take effect: threads was 2, not 1"
    assert found["bfloat16 autocast"].verdict == "failed"


def test_less_accuracy_is_seen() -> None:
    machine = Machine(**{"--layout": 2.0})
    machine.accuracies = {"--layout": 0.5}
    assert verdicts(run(machine))["contiguous layout"] == "less accurate"


def test_bfloat16_is_told_and_not_combined() -> None:
    machine = Machine(**{"--bfloat16": 2.0, "ACTIVE": 1.0, "--order": 1.5, "--batch 256": 2.0})
    outcome = run(machine)
    assert verdicts(outcome)["bfloat16 autocast"] == "other precision"
    assert verdicts(outcome)["batch 256"] == "other batch"
    assert verdicts(outcome)["relu before max-pool"] == "helps"
    assert outcome.combined == ()
    assert outcome.written == ()


def test_winners_are_tried_together() -> None:
    machine = Machine(
        **{"OMP_WAIT_POLICY=active": 1.3, "LD_PRELOAD=": 1.2, "OMP_NUM_THREADS=1": 1.1}
    )
    outcome = run(machine)
    assert [f.setting.name for f in outcome.combined] == [tune.ALL, tune.HELD]
    assert [round(f.gain or 0, 2) for f in outcome.combined] == [1.72, 1.56]
    assert {f.setting.group for f in outcome.written} == {"waiting", "allocator"}


def test_a_compiler_with_wrong_gradients_is_not_tried() -> None:
    machine = Machine(**{"--compile": 5.0})
    outcome = run(machine, quick=False)
    assert machine.times("--compile") == 0
    assert [c.detail for c in outcome.compilers] == ["wrong gradients"]
    assert "torch.compile, inductor" not in verdicts(outcome)


def test_a_compiler_that_is_right_is_tried() -> None:
    machine = Machine(**{"--compile": 5.0})
    machine.compiler = {"backend": "inductor", "passed": True, "detail": "agree"}
    assert verdicts(run(machine, quick=False))["torch.compile, inductor"] == "helps"


@pytest.mark.parametrize("answer", [None, {}, {"backend": "inductor"}, {"passed": "yes"}])
def test_a_check_that_says_nothing_has_not_passed(answer: Any) -> None:
    machine = Machine()
    machine.compiler = answer
    assert [c.passed for c in run(machine, quick=False).compilers] == [False]


def test_defaults_that_cannot_be_timed_end_it() -> None:
    machine = Machine()
    machine.fails = {"": "no torch"}
    with pytest.raises(VerifyError, match="no torch"):
        run(machine)
    machine.survey = {"threads": None}
    with pytest.raises(VerifyError, match="not a survey"):
        run(machine)


# The payload's process.


def completed(code: int, stderr: str = "") -> process.Completed:
    return process.Completed(argv=(), returncode=code, stdout="", stderr=stderr, seconds=1.0)


def payload(*lines: object, code: int = 0, stderr: str = "") -> Callable[..., process.Completed]:
    def start(arguments: Any, folders: Any, on_line: Callable[[str], None]) -> process.Completed:
        lines_of.append(tuple(arguments({"data": "/data"})))
        for line in lines:
            on_line(line if isinstance(line, str) else json.dumps(line))
        return completed(code, stderr)

    lines_of.clear()
    return start


lines_of: list[tuple[str, ...]] = []
DATASET: Any = SimpleNamespace(folder=Path("/mnist"))


def test_a_trial_is_the_payloads_report() -> None:
    start = payload("noise", "[]", "{", {"event": "phase"}, {"event": "report", "report": {"a": 1}})
    ipex = Expected(device="cpu", version="2.8.0", extension="ipex")
    assert tune.asking(start, DATASET, ipex)(("--seed", "2")) == {"a": 1}
    own = ("trial", "--device", "cpu", "--data", "/data", "--extension", "ipex", "--seed", "2")
    assert lines_of == [own]


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (lambda: payload({"event": "error", "message": "no\x1bway"}, code=5), r"no\?way"),
        (lambda: payload(code=-9, stderr="Killed"), "code -9: Killed"),
        (payload, "code 0"),
        (lambda: payload({"event": "report", "report": {}}, code=1), "code 1"),
    ],
)
def test_a_trial_that_fails_says_why(start: Any, why: str) -> None:
    with pytest.raises(VerifyError, match=why):
        tune.asking(start(), DATASET, EXPECTS)(())
