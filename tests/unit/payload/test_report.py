from __future__ import annotations

from unittest.mock import Mock

import pytest

from envbuilder.payload.report import (
    FAILED,
    PASSED,
    REQUIRED,
    SKIPPED,
    UNPROVEN,
    UNREPEATED,
    WARNING,
    Check,
    CheckError,
    Checks,
    Verdict,
    judge,
    not_run,
)


def check(name: str, status: str = PASSED, detail: str = "why") -> Check:
    return Check(name, status, 0.1, detail)


def judged(checks: list[Check], *, proven: bool = True) -> Verdict:
    """The verdict on checks of a run that asked for the CPU and used it."""
    return judge(checks, REQUIRED, "cpu", "cpu", proven=proven)


ALL = [check(name) for name in REQUIRED]


def test_all_required_checks_passed_on_the_right_device() -> None:
    verdict = judged(ALL)
    assert (verdict.status, verdict.reasons, verdict.warnings) == (PASSED, (), ())


def test_without_a_recorded_step_nothing_is_proven() -> None:
    verdict = judged(ALL, proven=False)
    assert (verdict.status, verdict.reasons) == (UNPROVEN, (UNREPEATED,))
    failing = [*ALL, check("kernels", FAILED)]
    assert judged(failing, proven=False).status == FAILED


@pytest.mark.parametrize("name", REQUIRED)
def test_each_required_check_can_fail_the_verification(name: str) -> None:
    checks = [check(c.name, FAILED, "broken") if c.name == name else c for c in ALL]
    verdict = judged(checks)
    assert verdict.status == FAILED
    assert verdict.reasons == (f"{name}: broken",)


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("skipped", [True, False])
def test_a_required_check_that_did_not_run_fails_the_verification(name: str, skipped: bool) -> None:
    checks = [c for c in ALL if c.name != name] + ([check(name, SKIPPED)] if skipped else [])
    verdict = judged(checks)
    assert verdict.status == FAILED
    assert verdict.reasons == (f"{name}: this check did not run",)


@pytest.mark.parametrize("used", [None, "cpu", "cpu, cuda"])
def test_another_device_than_asked_for_fails_the_verification(used: str | None) -> None:
    verdict = judge(ALL, REQUIRED, "cuda", used, proven=True)
    assert verdict.status == FAILED
    assert "cuda was requested" in verdict.reasons[0]


def test_a_warning_is_told_but_does_not_fail() -> None:
    verdict = judged([*ALL, check("compile inductor", WARNING, "wrong")])
    assert verdict.status == PASSED
    assert verdict.warnings == ("compile inductor: wrong",)


def test_what_a_failure_kept_from_running_is_listed_without_reasons_of_its_own() -> None:
    done = [check("import"), check("build", FAILED, "a cpu build")]
    skipped = not_run(done, REQUIRED)
    assert {c.name for c in skipped} == set(REQUIRED) - {"import", "build"}
    assert {c.status for c in skipped} == {SKIPPED}
    assert skipped[0].detail == "not run, because build failed"
    assert judge([*done, *skipped], REQUIRED, "cuda", None, proven=True).reasons == (
        "build: a cpu build",
    )


def test_a_check_is_timed_and_recorded() -> None:
    times = iter([10.0, 12.5])
    checks = Checks(clock=lambda: next(times))
    assert checks.run("import", lambda version: (PASSED, version), "2.13.0")
    assert checks.done == [Check("import", PASSED, 2.5, "2.13.0")]


def test_a_check_fails_by_a_sentence() -> None:
    checks = Checks()
    assert not checks.run("device", Mock(side_effect=CheckError("no GPU")))
    assert (checks.done[0].status, checks.done[0].detail) == (FAILED, "no GPU")
