"""Trials in pairs on a pretended machine, the payload's process, and what is written and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core import console, process
from envbuilder.core.errors import VerifyError
from envbuilder.core.settings import load as load_settings
from envbuilder.profiles.lock import inputs_digest
from envbuilder.profiles.profile import Expected, load, search_path
from envbuilder.verify import tune, tune_settings
from tests.support import tuning
from tests.support.programs import completed
from tests.support.tuning import (
    ACTIVE,
    EXPECTS,
    LIBC,
    ONE,
    PLAIN,
    SURVEY,
    Machine,
    finding,
    outcome_with,
    run,
    settings,
    verdicts,
)


def test_a_setting_that_helps_is_found_on_a_noisy_machine() -> None:
    machine = Machine(**{"OMP_WAIT_POLICY=active": 1.3})
    # Slower and slower, with a stumble now and then: pairs stand it, single trials would not.
    machine.noise = (0.995**n * (0.7 if n % 11 == 0 else 1.0) for n in range(10_000))
    outcome = run(machine)
    assert verdicts(outcome)["OMP_WAIT_POLICY=active"] == "helps"
    assert [n for n, v in verdicts(outcome).items() if v == "helps"] == ["OMP_WAIT_POLICY=active"]


def test_defaults_and_setting_take_turns() -> None:
    machine = Machine()
    run(machine)
    length = ("--steps", "60", "--warm-up", "10")
    for asked in machine.asked:
        assert asked[:4] == length
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
    machine.fails = {"--batch": "out of memory"}
    outcome = run(machine)
    failed = [f for f in outcome.findings if "batch" in f.setting.name]
    assert {(f.verdict, f.detail, f.gain) for f in failed} == {("failed", "out of memory", None)}
    assert machine.times("--batch") == len(failed) == 2
    assert verdicts(outcome)["1 thread"] == "no gain"


def test_a_setting_that_did_not_take_effect_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(**{"--bfloat16": 5.0, "OMP_NUM_THREADS=1": 5.0})
    monkeypatch.setattr(tuning, "effects", lambda arguments: {"threads": 2})
    outcome = run(machine)
    found = {f.setting.name: f for f in outcome.findings}
    assert found["1 thread"].verdict == "failed"
    assert found["1 thread"].detail == "the setting did not take effect: threads was 2, not 1"
    assert found["bfloat16 autocast"].verdict == "failed"


def test_bfloat16_is_told_and_not_combined() -> None:
    machine = Machine(**{"--bfloat16": 2.0, "--layout": 1.5, "--batch 256": 2.0})
    outcome = run(machine)
    assert verdicts(outcome)["bfloat16 autocast"] == "other precision"
    assert verdicts(outcome)["batch 256"] == "other batch"
    assert verdicts(outcome)["contiguous layout"] == "helps"
    assert outcome.combined == ()


def test_winners_are_tried_together() -> None:
    machine = Machine(
        **{"OMP_WAIT_POLICY=active": 1.3, "LD_PRELOAD=": 1.2, "OMP_NUM_THREADS=1": 1.1}
    )
    outcome = run(machine)
    assert [f.setting.name for f in outcome.combined] == [tune_settings.ALL]
    assert [round(f.gain or 0, 2) for f in outcome.combined] == [1.72]


def test_a_compiler_with_wrong_gradients_is_not_tried() -> None:
    machine = Machine(**{"--compile": 5.0})
    outcome = run(machine, quick=False)
    assert machine.times("--compile") == 0
    assert [c.detail for c in outcome.compilers] == ["wrong gradients"]
    assert "torch.compile, inductor" not in verdicts(outcome)
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
    with pytest.raises(VerifyError, match="not the report of a survey"):
        run(machine)


lines_of: list[tuple[str, ...]] = []
DATA = Path("/mnist")


def payload(*lines: object, code: int = 0, stderr: str = "") -> Callable[..., process.Completed]:
    def start(arguments: Any, folders: Any, on_line: Callable[[str], None]) -> process.Completed:
        lines_of.append(tuple(arguments({"data": "/data"})))
        for line in lines:
            on_line(line if isinstance(line, str) else json.dumps(line))
        return completed(code, stderr=stderr)

    lines_of.clear()
    return start


def test_a_trial_is_the_payloads_report() -> None:
    start = payload("noise", "[]", "{", {"event": "phase"}, {"event": "report", "report": {"a": 1}})
    ipex = Expected(device="cpu", version="2.8.0", extension="ipex")
    assert tune.asking(start, DATA, ipex)(("--seed", "2")) == {"a": 1}
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
        tune.asking(start(), DATA, EXPECTS)(())


@pytest.mark.parametrize(
    "report",
    [
        None,
        [],
        {},
        {"samples_per_second": 0, "accuracy": 0.5},
        {"samples_per_second": 1, "accuracy": 1.5},
        {"samples_per_second": None, "accuracy": 0.5},
        {"samples_per_second": "1", "accuracy": 0.5},
    ],
)
def test_a_report_that_is_none_is_refused(report: Any) -> None:
    with pytest.raises(VerifyError, match="not the report of a trial"):
        tune.read(report, tune_settings.Trial)


# Results


BETTER = outcome_with(finding(ACTIVE, 1.3), finding(LIBC, 1.2, "no gain"), finding(ONE, 1.1))


@pytest.fixture
def finish(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`finish(outcome)`: what is printed at the end of a tuning."""

    def finished(outcome: tune.Outcome, *, as_json: bool = True, backend: str = "venv") -> str:
        found = load_settings(environ={"ENVBUILDER_CONFIG_DIR": "/nonexistent"})
        tune.finish(outcome, {"profile": "cpu", "backend": backend}, found, as_json=as_json)
        return capsys.readouterr().out

    return finished


def test_results_are_one_json_object(finish: Callable[..., str]) -> None:
    data = json.loads(finish(BETTER))
    assert data["schema"] == 1
    assert data["profile"] == "cpu"
    assert data["noise"] == 0.01
    assert [s["name"] for s in data["settings"]] == ["OMP_WAIT_POLICY=active", "libc", "1 thread"]


def test_the_profile_that_is_printed_can_be_saved(
    finish: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "cpu-tuned.yaml").write_text(json.loads(finish(BETTER))["draft"])
    folders = (tmp_path, *search_path(None, tmp_path / "none"))
    own, cpu = (load(name, folders) for name in ("cpu-tuned", "cpu"))
    assert own.environment == {**cpu.environment, "OMP_WAIT_POLICY": "active"}
    assert (own.preload, own.warnings) == (cpu.preload, cpu.warnings)
    assert own.opt_in, "a machine's settings are never chosen unasked"
    # The same files: a lock of it names what the measured profile's names.
    assert inputs_digest(own) == inputs_digest(cpu)


def test_keys_are_of_all_winners_only_if_these_help_together() -> None:
    libc = replace(LIBC, keys={"preload": [], "environment": {"A": "1"}})
    alone = outcome_with(finding(ACTIVE, 1.3), finding(libc, 1.2))
    assert tune.profile_keys(alone) == {"environment": {"OMP_WAIT_POLICY": "active"}}
    joint = replace(alone, combined=(finding(ACTIVE, 1.4),))
    assert tune.profile_keys(joint) == {
        "environment": {"OMP_WAIT_POLICY": "active", "A": "1"},
        "preload": [],
    }


@pytest.mark.parametrize(
    ("outcome", "backend"), [(outcome_with(finding(ONE, 1.3)), "venv"), (BETTER, "external")]
)
def test_where_nothing_that_a_profile_can_hold_helps_there_is_none(
    outcome: tune.Outcome, backend: str, finish: Callable[..., str]
) -> None:
    """Of another interpreter, nothing is known of the environment of a profile."""
    assert json.loads(finish(outcome, backend=backend))["draft"] is None


def test_the_table_fits_a_terminal_and_gives_advice(finish: Callable[..., str]) -> None:
    slow = tune_settings.Setting(name="libc's allocator, keeping memory", group="allocator")
    half = tune_settings.Setting(
        name="bfloat16 autocast", group="precision", advice="torch.autocast(…)"
    )
    outcome = outcome_with(
        finding(ACTIVE, 1.3),
        tune_settings.Finding(setting=slow, verdict="failed", detail="\x1b[2Jworkers " * 9),
        finding(half, 1.9, "other precision"),
    )
    shown = finish(outcome, as_json=False)
    table = shown.partition("Defaults:")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "\x1b[2J" not in shown
    assert "Helps: OMP_WAIT_POLICY=active, 1.30×: export OMP_WAIT_POLICY=active" in shown
    assert "extends: cpu\ndescription: cpu, tuned for this machine\nopt_in: true\n" in shown
    assert "envbuilder lock --profile cpu-tuned" in shown
    assert "Faster, but other precision: bfloat16 autocast, 1.90×: torch.autocast(…)" in shown
    assert "torch.compile, inductor: not tried: wrong" in shown


def test_where_nothing_helps_it_says_so() -> None:
    assert list(tune.advice([finding(ONE, 1.0, "no gain")])) == [
        "None of these settings helps on this machine, so keep the defaults."
    ]


def test_what_was_not_judged_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_with(finding(PLAIN, 1.3, "machine busy"), finding(ONE, 0.9, "no gain"))
    tune.print_outcome(outcome, console.rich_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert "The machine was busy during 1 of the settings, so these were not judged." in shown
    assert "None of the settings that were judged helps" in shown
    assert tune.summary(outcome)["speed"] == "not_judged"
    assert tune.summary(outcome_with())["speed"] == "judged"


def test_active_waiting_is_for_machines_that_nobody_shares(
    capsys: pytest.CaptureFixture[str],
) -> None:
    active = settings()["OMP_WAIT_POLICY=active"]
    assert "only for machines without other jobs" in active.caution
    assert settings()["OMP_WAIT_POLICY=passive"].caution == ""
    (line,) = tune.advice([finding(active, 1.3)])
    assert line.endswith(active.caution)
    assert tune._entry(finding(active, 1.3))["caution"] == active.caution
    waiting = replace(
        outcome_with(), survey=tune.read({**SURVEY, "wait_policy": "ACTIVE"}, tune_settings.Survey)
    )
    tune.print_outcome(waiting, console.rich_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert f"The defaults wait actively (OMP_WAIT_POLICY=ACTIVE): {active.caution}" in shown
