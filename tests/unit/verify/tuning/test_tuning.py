"""Tuning with a pretended machine: what wins, what does not, what is written and what never is."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core import console, process
from envbuilder.core.errors import BuildError, VerifyError
from envbuilder.profiles.lock import inputs_digest
from envbuilder.profiles.profile import Expects, Profile, load, search_path
from envbuilder.verify.tuning import candidates, measure, results, rules
from envbuilder.verify.tuning.profile import draft
from envbuilder.verify.tuning.rules import Finding, Pair, Rules, Setting, Trial
from tests.support.reports import BUSY, QUIET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envbuilder.core.settings import Settings

RULES = Rules()
TCMALLOC = "/prefix/lib/envbuilder/libtcmalloc_minimal.so.4"
SURVEY: dict[str, Any] = {
    "schema": 1,
    "threads": {"affinity": 4, "quota": 2.5, "physical": 4, "decided": 2, "used": 2},
    "allocator": TCMALLOC,
    "allocators": {"tcmalloc": TCMALLOC},
    "preload": [],
    "glibc": True,
    "wait_policy": None,
    "start_methods": ["fork", "spawn"],
}
PLAIN = Setting(name="plain", group="plain")
ACTIVE = Setting(
    name="OMP_WAIT_POLICY=active",
    group="waiting",
    variables={"OMP_WAIT_POLICY": "active"},
    profile={"environment": {"OMP_WAIT_POLICY": "active"}},
)
LIBC = Setting(
    name="libc", group="allocator", variables={"LD_PRELOAD": ""}, profile={"preload": []}
)
ONE = Setting(name="1 thread", group="threads", variables={"OMP_NUM_THREADS": "1"})
KNOWN = {
    "profile": "cpu",
    "backend": "venv",
    "host": {"cpu": {"model_name": "AMD\nEPYC", "threads": 2}},
}


def trial(speed: float, accuracy: float = 0.95, **more: Any) -> Trial:
    return Trial(samples_per_second=speed, accuracy=accuracy, **{"loss": 0.3, **more})


def pairs(*gains: float, accuracy: float = 0.95, **more: Any) -> list[Pair]:
    return [Pair(baseline=trial(100), candidate=trial(100 * g, accuracy, **more)) for g in gains]


def finding(setting: Setting, gain: float, verdict: Any = "helps") -> Finding:
    return Finding(setting=setting, verdict=verdict, gain=gain, accuracy=0.95)


class Machine:
    """A payload's `trial` whose speed depends on its arguments; it counts what it was asked."""

    def __init__(self, **gains: float) -> None:
        self.gains = gains
        self.asked: list[tuple[str, ...]] = []
        self.fails: dict[str, str] = {}
        self.accuracies: dict[str, float] = {}
        self.noise: Iterator[float] = iter(lambda: 1.0, 0.0)
        self.survey: Any = dict(SURVEY)
        self.compiler: Any = {"backend": "inductor", "passed": False, "detail": "wrong gradients"}

    def __call__(self, arguments: tuple[str, ...]) -> object:
        if "--survey" in arguments:
            return self.survey
        if "--check-compile" in arguments:
            return self.compiler
        text = " ".join(arguments)
        self.asked.append(arguments)
        for part, why in self.fails.items():
            if part in text:
                raise VerifyError(why)
        speed, accuracy = 100.0 * next(self.noise), 0.95
        for part, gain in self.gains.items():
            if part in text:
                speed *= gain
        for part, value in self.accuracies.items():
            if part in text:
                accuracy = value
        return {
            "samples_per_second": speed,
            "accuracy": accuracy,
            "loss": 0.3,
            "settings": effects(arguments),
        }

    def times(self, part: str) -> int:
        return sum(part in " ".join(arguments) for arguments in self.asked)


def effects(arguments: tuple[str, ...]) -> dict[str, Any]:
    """What a machine reports on which everything asked for takes effect."""
    found: dict[str, Any] = {"dtypes": ["float32"], "allocator": TCMALLOC, "start_method": None}
    given = dict(pairwise((*arguments, "")))
    found["flush_denormal"] = "--flush-denormal" in arguments
    found["dtypes"] += ["bfloat16"] if "--bfloat16" in arguments else []
    found["compile"] = given.get("--compile")
    found["memory_format"] = given.get("--layout", "channels_last")
    found["reordered"] = None if "--order" in given else "max-pool before relu"
    found["dropout"] = None if "--dropout" in given else "masks drawn as bytes"
    found["workers"] = int(given["--workers"]) if "--workers" in given else None
    found["start_method"] = given.get("--start-method")
    found["batch"] = int(given.get("--batch", "64"))
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "OMP_NUM_THREADS":
            found["threads"] = int(value)
        if name == "LD_PRELOAD":
            found["allocator"] = value or "libc"
    return found


EXPECTS = Expects(device="cpu", torch="2.13.0+cpu")
SILENT = console.PlainProgress(lambda line: None)


def run(machine: Machine, *, quick: bool = True) -> measure.Outcome:
    return measure.run(machine, EXPECTS, SILENT, quick=quick)


def verdicts(outcome: measure.Outcome) -> dict[str, str]:
    return {f.setting.name: f.verdict for f in outcome.findings}


# What decides.


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((1.05, 1.05, 1.05), "helps"),
        ((1.04, 1.04, 1.04), "no gain"),
        ((3.0, 1.0, 1.0), "no gain"),
        ((0.5, 1.2, 1.3), "helps"),
        ((1.0, 1.0, 1.0), "no gain"),
        ((1.2, 1.2), "failed"),
    ],
)
def test_the_median_of_three_pairs_decides(gains: tuple[float, ...], verdict: str) -> None:
    assert rules.judge(PLAIN, pairs(*gains), RULES, 0.0).verdict == verdict


def test_a_gain_within_the_machines_noise_is_none() -> None:
    assert rules.judge(PLAIN, pairs(1.2, 1.2, 1.2), RULES, 0.25).verdict == "noise"
    assert rules.judge(PLAIN, pairs(1.3, 1.3, 1.3), RULES, 0.25).verdict == "helps"


def contended(*gains: float, candidate: Any = QUIET, baseline: Any = QUIET) -> list[Pair]:
    def timed(speed: float, facts: Any) -> Trial:
        return rules.read(
            {"samples_per_second": speed, "accuracy": 0.95, "loss": 0.3, "contention": facts}
        )

    return [Pair(baseline=timed(100, baseline), candidate=timed(100 * g, candidate)) for g in gains]


@pytest.mark.parametrize("gain", [0.5, 1.0, 1.3])
@pytest.mark.parametrize("which", ["candidate", "baseline"])
def test_nothing_is_decided_on_a_busy_machine(gain: float, which: str) -> None:
    found = rules.judge(PLAIN, contended(gain, gain, gain, **{which: BUSY}), RULES, 0.0)
    assert found.verdict == "machine busy"
    assert "tasks waited for a CPU 95 % of the time; measure again" in found.detail
    assert rules.winners([found]) == ()
    quiet = rules.judge(PLAIN, contended(gain, gain, gain), RULES, 0.0)
    assert quiet.verdict == ("helps" if gain > 1.05 else "no gain")


def test_wrong_results_are_wrong_on_a_busy_machine_too() -> None:
    disturbed = [
        Pair(
            baseline=pair.baseline, candidate=msgspec.structs.replace(pair.candidate, accuracy=0.5)
        )
        for pair in contended(1.3, 1.3, 1.3, candidate=BUSY)
    ]
    assert rules.judge(PLAIN, disturbed, RULES, 0.0).verdict == "less accurate"


def test_what_was_not_judged_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_with(finding(PLAIN, 1.3, "machine busy"), finding(ONE, 0.9, "no gain"))
    results.print_outcome(outcome, console.rich_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert "The machine was busy during 1 of the settings: nothing is decided about these." in shown
    assert "None of the settings that were judged helps" in shown
    assert results.summary(outcome)["speed"] == "not_judged"
    assert results.summary(outcome_with())["speed"] == "judged"


def test_active_waiting_is_for_machines_that_nobody_shares(
    capsys: pytest.CaptureFixture[str], found: Settings
) -> None:
    active = settings()["OMP_WAIT_POLICY=active"]
    assert "only for machines that nobody shares" in active.caution
    assert settings()["OMP_WAIT_POLICY=passive"].caution == ""
    (line,) = results.advice([finding(active, 1.3)])
    assert line.endswith(active.caution)
    assert results._entry(finding(active, 1.3))["caution"] == active.caution
    text = draft("cpu", [finding(active, 1.3)], "a machine", found).text
    assert f"1.30 times as fast ({active.caution})" in text
    waiting = msgspec.structs.replace(
        outcome_with(), survey=candidates.read({**SURVEY, "wait_policy": "ACTIVE"})
    )
    results.print_outcome(waiting, console.rich_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert f"The defaults wait actively (OMP_WAIT_POLICY=ACTIVE): {active.caution}" in shown


def test_worse_accuracy_never_wins() -> None:
    found = rules.judge(PLAIN, pairs(2, 2, 2, accuracy=0.93), RULES, 0.0)
    assert (found.verdict, found.detail) == ("less accurate", "93.0% instead of 95.0%")
    assert rules.judge(PLAIN, pairs(2, 2, 2, accuracy=0.945), RULES, 0.0).verdict == "helps"
    assert rules.judge(PLAIN, pairs(2, 2, 2, accuracy=0.99), RULES, 0.0).verdict == "helps"
    assert rules.judge(PLAIN, pairs(2, 2, 2, loss=None), RULES, 0.0).verdict == "less accurate"


def test_precision_and_batch_are_told_but_do_not_win() -> None:
    for kind, verdict in (("precision", "other precision"), ("batch", "other batch")):
        setting = Setting(name="x", group="x", kind=kind, profile={"preload": []})  # type: ignore[arg-type]
        found = rules.judge(setting, pairs(2, 2, 2), RULES, 0.0)
        assert found.verdict == verdict
        assert rules.winners([found]) == ()
        assert rules.to_write([found], []) == ()


def test_noise_is_what_the_defaults_differ_by() -> None:
    assert rules.noise([trial(s) for s in (100, 110, 100)]) == pytest.approx(0.1)
    assert rules.noise([trial(100)]) == 0.0
    assert rules.noise([]) == 0.0


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=3))
def test_what_is_given_up_could_not_have_won(gains: list[float]) -> None:
    if rules.hopeless(pairs(*gains), RULES):
        best = pairs(*gains, *[100.0] * (3 - len(gains)))
        assert rules.judge(PLAIN, best, RULES, 0.0).verdict == "no gain"


@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=3), st.floats(0, 1), st.floats(0, 1))
def test_a_winner_is_always_faster_and_as_accurate(
    gains: list[float], accuracy: float, spread: float
) -> None:
    found = rules.judge(PLAIN, pairs(*gains, accuracy=accuracy), RULES, spread)
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
    with pytest.raises(ValueError, match="not a trial's report"):
        rules.read(report)


def test_an_infinite_speed_gains_nothing() -> None:
    pair = Pair(baseline=trial(100), candidate=trial(math.inf))
    assert pair.gain == 0.0


def test_of_a_group_the_best_wins_and_the_best_comes_first() -> None:
    two = Setting(name="2 threads", group="threads")
    found = [finding(ONE, 1.2), finding(two, 1.3), finding(ACTIVE, 1.4), finding(LIBC, 2, "noise")]
    assert rules.winners(found) == (ACTIVE, two)


def test_winners_are_combined_with_and_without_what_a_profile_cannot_hold() -> None:
    both = rules.combinations((ACTIVE, ONE, LIBC))
    assert [s.name for s in both] == [rules.ALL, rules.HELD]
    assert both[0].variables == {
        "OMP_WAIT_POLICY": "active",
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": "",
    }
    assert "OMP_NUM_THREADS" not in both[1].variables
    assert [s.name for s in rules.combinations((ACTIVE, LIBC))] == [rules.ALL]
    assert rules.combinations((ACTIVE,)) == ()


def test_winners_that_are_no_better_together_are_not_written_together() -> None:
    alone = [finding(ACTIVE, 1.4), finding(LIBC, 1.2)]
    joint = rules.together((ACTIVE, LIBC), rules.ALL)
    assert rules.to_write(alone, [finding(joint, 1.5)]) == (ACTIVE, LIBC)
    assert rules.to_write(alone, [finding(joint, 1.3)]) == (ACTIVE,)
    assert rules.to_write(alone, [finding(joint, 1.5, "less accurate")]) == (ACTIVE,)
    assert rules.to_write(alone, []) == (ACTIVE,)


def test_threads_that_make_the_whole_faster_do_not_speak_for_what_is_written() -> None:
    alone = [finding(ACTIVE, 1.4), finding(LIBC, 1.2), finding(ONE, 1.1)]
    whole = finding(rules.together((ACTIVE, LIBC, ONE), rules.ALL), 2.0)
    held = finding(rules.together((ACTIVE, LIBC), rules.HELD), 1.0, "no gain")
    assert rules.to_write(alone, [whole, held]) == (ACTIVE,)


def test_profile_keys_are_merged() -> None:
    other = Setting(name="x", group="x", profile={"environment": {"X": "1"}})
    assert rules.merged((ACTIVE, other, LIBC)) == {
        "environment": {"OMP_WAIT_POLICY": "active", "X": "1"},
        "preload": [],
    }


# What is tried.


def settings(device: str = "cpu", **changes: Any) -> dict[str, Setting]:
    survey = candidates.read({**SURVEY, **changes})
    return {s.name: s for s in candidates.candidates(survey, device)}


@pytest.mark.parametrize(("device", "name"), [("cuda", "cuda"), ("rocm", "cuda"), ("cpu", "cpu")])
def test_advice_names_devices_as_torch_does(device: str, name: str) -> None:
    assert settings(device)["bfloat16 autocast"].advice.startswith(f'torch.autocast("{name}"')


def test_what_is_in_effect_already_is_not_tried() -> None:
    names = settings()
    assert "2 threads" not in names
    assert {"1 thread", "4 threads"} <= set(names)
    assert not [n for n in names if n.startswith("tcmalloc")]
    assert "OMP_WAIT_POLICY=active" in names
    assert "OMP_WAIT_POLICY=active" not in settings(wait_policy="ACTIVE")
    assert "libc's allocator" not in settings(allocator="libc")


def test_a_missing_jemalloc_is_not_tried_and_one_that_is_there_is_not_written() -> None:
    assert not [n for n in settings() if "jemalloc" in n]
    found = settings(
        allocators={"jemalloc": "/usr/lib/libjemalloc.so.2"}, preload=["/b/libfaketime.so.1"]
    )
    assert found["jemalloc"].variables == {
        "LD_PRELOAD": "/usr/lib/libjemalloc.so.2:/b/libfaketime.so.1"
    }
    assert "MALLOC_CONF" in found["jemalloc, as advised"].variables
    assert found["jemalloc"].profile == {}
    assert "export LD_PRELOAD=/usr/lib/libjemalloc.so.2" in found["jemalloc"].advice


def test_glibcs_own_settings_need_glibc() -> None:
    assert "libc's allocator, keeping memory" in settings()
    assert "libc's allocator, keeping memory" not in settings(glibc=False)


def test_loaders_are_tried_with_the_start_methods_there_are() -> None:
    loaders = [n for n in settings() if n.startswith("DataLoader")]
    assert loaders == [
        "DataLoader, 0 workers",
        "DataLoader, 1 worker, fork",
        "DataLoader, 1 worker, spawn",
        "DataLoader, 2 workers, fork",
        "DataLoader, 2 workers, spawn",
    ]


def test_no_setting_that_lowers_precision_unseen_or_binds_threads_is_tried() -> None:
    variables = {v for s in settings().values() for v in s.variables}
    assert not {v for v in variables if "FPMATH" in v or "TF32" in v or "AFFINITY" in v}
    assert not {v for v in variables if "BIND" in v}


def test_threads_never_go_into_a_profile() -> None:
    for device in ("cpu", "cuda", "xpu", "mps"):
        for setting in settings(device).values():
            assert "OMP_NUM_THREADS" not in str(setting.profile)
            assert setting.profile or setting.advice, f"{setting.name} says not how to have it"


def test_mps_is_kept_from_channels_last() -> None:
    assert not [n for n in settings("mps") if "channels_last" in n]
    assert "channels_last layout" in settings("cuda")
    assert not [n for n in settings("cuda") if "denormal" in n or "libc" in n or "WAIT" in n]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_a_survey_from_outside_never_breaks(report: Any) -> None:
    for broken in (report, {**SURVEY, "threads": report}, {**SURVEY, "allocators": report}):
        try:
            candidates.candidates(candidates.read(broken), "cpu")
        except ValueError:
            continue


# The trials.


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
    monkeypatch.setitem(globals(), "effects", lambda arguments: {"threads": 2})
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
    assert [f.setting.name for f in outcome.combined] == [rules.ALL, rules.HELD]
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
    ipex = Expects(device="cpu", torch="2.8.0", extension="ipex")
    assert measure.asking(start, DATASET, ipex)(("--seed", "2")) == {"a": 1}
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
        measure.asking(start(), DATASET, EXPECTS)(())


# What is written.


def outcome_with(*found: Finding, combined: tuple[Finding, ...] = ()) -> measure.Outcome:
    return measure.Outcome(
        survey=candidates.read(SURVEY),
        defaults=trial(100),
        noise=0.01,
        findings=found,
        combined=combined,
        compilers=(measure.Compiler(backend="inductor", passed=False, detail="wrong"),),
    )


def finish(outcome: measure.Outcome, found: Settings, **changes: Any) -> None:
    given: dict[str, Any] = {"as_json": True, "output": None, **changes}
    results.finish(outcome, {**KNOWN, **given.pop("facts", {})}, found, **given)


BETTER = outcome_with(finding(ACTIVE, 1.3), finding(LIBC, 1.2, "no gain"), finding(ONE, 1.1))


def saved(found: Settings, text: str) -> Profile:
    """The profile that its user saves in the own folder."""
    folder = found.config_dir / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu-tuned.yaml").write_text(text)
    return load("cpu-tuned", search_path(None, found.config_dir))


def test_the_profile_that_is_printed_can_be_saved(
    found: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(BETTER, found)
    assert not found.config_dir.exists(), "nothing is written"
    text = json.loads(capsys.readouterr().out)["draft"]
    own = saved(found, text)
    cpu = load("cpu", search_path(None, found.config_dir))
    assert own.environment == {**cpu.environment, "OMP_WAIT_POLICY": "active"}
    assert own.preload == cpu.preload
    assert own.warnings == cpu.warnings
    assert own.opt_in, "a machine's settings are never chosen unasked"
    # The same files: a lock of it names what the measured profile's names.
    assert inputs_digest(own) == inputs_digest(cpu)
    assert "THREADS" not in text
    assert "# AMD?EPYC, 2 CPUs" in text


def test_where_nothing_helps_there_is_no_profile(
    found: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(outcome_with(finding(ONE, 1.3)), found)
    assert json.loads(capsys.readouterr().out)["draft"] is None


def test_another_interpreter_gets_advice_only(
    found: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(BETTER, found, facts={"backend": "external"})
    assert json.loads(capsys.readouterr().out)["draft"] is None


def test_a_tuned_profile_that_is_tuned_again_keeps_what_it_had(
    found: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(outcome_with(finding(ACTIVE, 1.3)), found)
    saved(found, json.loads(capsys.readouterr().out)["draft"])
    again = draft("cpu-tuned", [finding(LIBC, 1.2)], "here", found)
    assert again.name == "cpu-tuned"
    own = saved(found, again.text)
    assert own.extends == "cpu"
    assert own.environment["OMP_WAIT_POLICY"] == "active"
    assert own.preload == ()


def test_an_interrupted_trial_writes_nothing(found: Settings) -> None:
    class Interrupted(Machine):
        def __call__(self, arguments: tuple[str, ...]) -> object:
            if len(self.asked) > 5:
                raise KeyboardInterrupt
            return super().__call__(arguments)

    with pytest.raises(KeyboardInterrupt):
        run(Interrupted())
    assert not found.config_dir.exists()


def test_a_file_that_cannot_be_written_is_named_after_the_results(
    found: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot be written"):
        finish(BETTER, found, output=tmp_path / "file" / "tune.json")
    assert json.loads(capsys.readouterr().out)["settings"][0]["gain"] == 1.3


def test_results_are_kept_in_a_file(found: Settings, tmp_path: Path) -> None:
    finish(BETTER, found, output=tmp_path / "new" / "tune.json")
    data = json.loads((tmp_path / "new" / "tune.json").read_text())
    assert (data["schema"], data["profile"], data["noise"]) == (1, "cpu", 0.01)
    assert [s["name"] for s in data["settings"]] == ["OMP_WAIT_POLICY=active", "libc", "1 thread"]


def test_the_table_fits_a_terminal_and_gives_advice(
    found: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Setting(name="DataLoader, 12 workers, forkserver", group="loading")
    half = Setting(name="bfloat16 autocast", group="precision", advice="torch.autocast(…)")
    outcome = outcome_with(
        finding(ACTIVE, 1.3),
        Finding(setting=slow, verdict="failed", detail="\x1b[2Jworkers " * 9),
        finding(half, 1.9, "other precision"),
    )
    finish(outcome, found, as_json=False)
    shown = capsys.readouterr().out
    table = shown.partition("Defaults:")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "\x1b[2J" not in shown
    assert "Helps: OMP_WAIT_POLICY=active, 1.30×: a profile can hold it" in shown
    assert "profiles/cpu-tuned.yaml" in shown
    assert "envbuilder lock --profile cpu-tuned" in shown
    assert "Faster, but other precision: bfloat16 autocast, 1.90×: torch.autocast(…)" in shown
    assert "torch.compile, inductor: not tried: wrong" in shown


def test_where_nothing_helps_it_says_so() -> None:
    assert results.advice([finding(ONE, 1.0, "no gain")]) == [
        "None of these settings helps on this machine: keep the defaults."
    ]


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

    measure.measure(timed, (ACTIVE, LIBC), [], RULES, Bar(), "try")
    assert seen == [1, 2, 3, 4, 5, 6]
