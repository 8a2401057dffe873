"""Trials in pairs on a pretended machine, the payload's process, and what decides."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core import console, process
from envbuilder.core.errors import VerifyError
from envbuilder.profiles.profile import Expected
from envbuilder.verify import tune
from envbuilder.verify.tune import Pair, Trial
from envbuilder.verify.tune_settings import Setting
from tests.support import tuning
from tests.support.reports import BUSY, QUIET
from tests.support.tuning import (
    ACTIVE,
    EXPECTS,
    LIBC,
    ONE,
    PLAIN,
    Machine,
    finding,
    pairs,
    run,
    trial,
    verdicts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


# What decides.


def contended(
    *gains: float, candidate: Any = QUIET, baseline: Any = QUIET, **more: Any
) -> list[Pair]:
    def timed(speed: float, facts: Any, **more: Any) -> Trial:
        made = {"samples_per_second": speed, "accuracy": 0.95, "loss": 0.3, **more}
        return tune.read({**made, "contention": facts}, Trial)

    return [
        Pair(baseline=timed(100, baseline), candidate=timed(100 * g, candidate, **more))
        for g in gains
    ]


@pytest.mark.parametrize(
    ("judged", "spread", "verdict"),
    [
        # The median of three pairs decides.
        (pairs(1.05, 1.05, 1.05), 0.0, "helps"),
        (pairs(1.04, 1.04, 1.04), 0.0, "no gain"),
        (pairs(3.0, 1.0, 1.0), 0.0, "no gain"),
        (pairs(0.5, 1.2, 1.3), 0.0, "helps"),
        (pairs(1.0, 1.0, 1.0), 0.0, "no gain"),
        (pairs(1.2, 1.2), 0.0, "failed"),
        # A gain within the machine's noise is none.
        (pairs(1.2, 1.2, 1.2), 0.25, "noise"),
        (pairs(1.3, 1.3, 1.3), 0.25, "helps"),
        # Worse accuracy never wins.
        (pairs(2, 2, 2, accuracy=0.93), 0.0, "less accurate"),
        (pairs(2, 2, 2, accuracy=0.945), 0.0, "helps"),
        (pairs(2, 2, 2, accuracy=0.99), 0.0, "helps"),
        (pairs(2, 2, 2, loss=None), 0.0, "less accurate"),
        # Nothing is decided on a busy machine; wrong results are wrong on it, too.
        *((contended(g, g, g, candidate=BUSY), 0.0, "machine busy") for g in (0.5, 1.0, 1.3)),
        *((contended(g, g, g, baseline=BUSY), 0.0, "machine busy") for g in (0.5, 1.0, 1.3)),
        (contended(1.3, 1.3, 1.3), 0.0, "helps"),
        (contended(1.0, 1.0, 1.0), 0.0, "no gain"),
        (contended(1.3, 1.3, 1.3, candidate=BUSY, accuracy=0.5), 0.0, "less accurate"),
    ],
)
def test_pairs_decide(judged: list[Pair], spread: float, verdict: str) -> None:
    found = tune.judge(PLAIN, judged, spread)
    assert found.verdict == verdict
    assert tune.winners([found]) == ((PLAIN,) if verdict == "helps" else ())


def test_a_verdict_says_why() -> None:
    busy = tune.judge(PLAIN, contended(1.3, candidate=BUSY), 0.0).detail
    assert "tasks waited for a CPU 95 % of the time; measure again" in busy
    assert tune.judge(PLAIN, pairs(2, accuracy=0.93), 0.0).detail == "93.0% instead of 95.0%"
    assert tune.judge(PLAIN, pairs(1.2), 0.0).detail == "only 1 of 3 pairs were finished"
    # With --quick the accuracy may vary more.
    assert tune.judge(PLAIN, pairs(2, 2, 2, accuracy=0.93), 0.0, "", 0.03).verdict == "helps"


def test_progress_counts_every_turn() -> None:
    seen: list[int] = []

    class Task:
        def advance(self, amount: int) -> None:
            raise AssertionError

        def update(self, done: int, total: int | None = None) -> None:
            seen.append(done)

    class Bar(console.PlainProgress):
        @contextmanager
        def task(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Any]:
            assert total == 3 * 2
            yield Task()

    def timed(arguments: tuple[str, ...]) -> Trial:
        return trial(100)

    tune.measure(timed, (ACTIVE, LIBC), [], Bar(), "try")
    assert seen == [1, 2, 3, 4, 5, 6]


def test_precision_and_batch_are_told_but_do_not_win() -> None:
    for kind, verdict in (("precision", "other precision"), ("batch", "other batch")):
        setting = Setting(name="x", group="x", kind=kind, profile={"preload": []})  # type: ignore[arg-type]
        found = tune.judge(setting, pairs(2, 2, 2), 0.0)
        assert found.verdict == verdict
        assert tune.winners([found]) == ()
        assert tune.to_write([found], []) == ()


def test_noise_is_what_the_defaults_differ_by() -> None:
    assert tune.noise([trial(s) for s in (100, 110, 100)]) == pytest.approx(0.1)
    assert tune.noise([trial(100)]) == 0.0
    assert tune.noise([]) == 0.0


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=3))
def test_what_is_given_up_could_not_have_won(gains: list[float]) -> None:
    if tune.hopeless(pairs(*gains)):
        best = pairs(*gains, *[100.0] * (3 - len(gains)))
        assert tune.judge(PLAIN, best, 0.0).verdict == "no gain"


@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=3), st.floats(0, 1), st.floats(0, 1))
def test_a_winner_is_always_faster_and_as_accurate(
    gains: list[float], accuracy: float, spread: float
) -> None:
    found = tune.judge(PLAIN, pairs(*gains, accuracy=accuracy), spread)
    if found.verdict == "helps":
        assert sorted(gains)[1] >= 1.05 - 1e-9
        assert accuracy >= 0.94 - 1e-9


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
    with pytest.raises(VerifyError, match="not a trial's report"):
        tune.read(report, Trial)


def test_an_infinite_speed_gains_nothing() -> None:
    pair = Pair(baseline=trial(100), candidate=trial(math.inf))
    assert pair.gain == 0.0


def test_of_a_group_the_best_wins_and_the_best_comes_first() -> None:
    two = Setting(name="2 threads", group="threads")
    found = [finding(ONE, 1.2), finding(two, 1.3), finding(ACTIVE, 1.4), finding(LIBC, 2, "noise")]
    assert tune.winners(found) == (ACTIVE, two)


def test_winners_are_combined_with_and_without_what_a_profile_cannot_hold() -> None:
    both = tune.combinations((ACTIVE, ONE, LIBC))
    assert [s.name for s in both] == [tune.ALL, tune.HELD]
    assert both[0].variables == {
        "OMP_WAIT_POLICY": "active",
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": "",
    }
    assert "OMP_NUM_THREADS" not in both[1].variables
    assert [s.name for s in tune.combinations((ACTIVE, LIBC))] == [tune.ALL]
    assert tune.combinations((ACTIVE,)) == ()


def test_winners_that_are_no_better_together_are_not_written_together() -> None:
    alone = [finding(ACTIVE, 1.4), finding(LIBC, 1.2)]
    joint = tune.together((ACTIVE, LIBC), tune.ALL)
    assert tune.to_write(alone, [finding(joint, 1.5)]) == (ACTIVE, LIBC)
    assert tune.to_write(alone, [finding(joint, 1.3)]) == (ACTIVE,)
    assert tune.to_write(alone, [finding(joint, 1.5, "less accurate")]) == (ACTIVE,)
    assert tune.to_write(alone, []) == (ACTIVE,)


def test_threads_that_make_the_whole_faster_do_not_speak_for_what_is_written() -> None:
    alone = [finding(ACTIVE, 1.4), finding(LIBC, 1.2), finding(ONE, 1.1)]
    whole = finding(tune.together((ACTIVE, LIBC, ONE), tune.ALL), 2.0)
    held = finding(tune.together((ACTIVE, LIBC), tune.HELD), 1.0, "no gain")
    assert tune.to_write(alone, [whole, held]) == (ACTIVE,)


def test_profile_keys_are_merged() -> None:
    other = Setting(name="x", group="x", profile={"environment": {"X": "1"}})
    assert tune.merged((ACTIVE, other, LIBC)) == {
        "environment": {"OMP_WAIT_POLICY": "active", "X": "1"},
        "preload": [],
    }
