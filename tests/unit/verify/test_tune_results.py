"""What tuning writes and shows, and what it never writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder.core import console
from envbuilder.core.errors import BuildError
from envbuilder.profiles.lock import inputs_digest
from envbuilder.profiles.profile import Profile, load, search_path
from envbuilder.verify import tune, tune_results
from envbuilder.verify.tune import Finding
from envbuilder.verify.tune_results import draft
from envbuilder.verify.tune_settings import Setting, Survey
from tests.support.tuning import (
    ACTIVE,
    KNOWN,
    LIBC,
    ONE,
    PLAIN,
    SURVEY,
    Machine,
    finding,
    outcome_with,
    run,
    settings,
)

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.settings import Settings


def finish(outcome: tune.Outcome, found: Settings, **changes: Any) -> None:
    given: dict[str, Any] = {"as_json": True, "output": None, **changes}
    tune_results.finish(outcome, {**KNOWN, **given.pop("facts", {})}, found, **given)


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
    assert list(tune_results.advice([finding(ONE, 1.0, "no gain")])) == [
        "None of these settings helps on this machine: keep the defaults."
    ]


def test_what_was_not_judged_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_with(finding(PLAIN, 1.3, "machine busy"), finding(ONE, 0.9, "no gain"))
    tune_results.print_outcome(outcome, console.rich_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert "The machine was busy during 1 of the settings: nothing is decided about these." in shown
    assert "None of the settings that were judged helps" in shown
    assert tune_results.summary(outcome)["speed"] == "not_judged"
    assert tune_results.summary(outcome_with())["speed"] == "judged"


def test_active_waiting_is_for_machines_that_nobody_shares(
    capsys: pytest.CaptureFixture[str], found: Settings
) -> None:
    active = settings()["OMP_WAIT_POLICY=active"]
    assert "only for machines that nobody shares" in active.caution
    assert settings()["OMP_WAIT_POLICY=passive"].caution == ""
    (line,) = tune_results.advice([finding(active, 1.3)])
    assert line.endswith(active.caution)
    assert tune_results._entry(finding(active, 1.3))["caution"] == active.caution
    text = draft("cpu", [finding(active, 1.3)], "a machine", found).text
    assert f"1.30 times as fast ({active.caution})" in text
    waiting = replace(outcome_with(), survey=tune.read({**SURVEY, "wait_policy": "ACTIVE"}, Survey))
    tune_results.print_outcome(waiting, console.rich_console())
    shown = " ".join(capsys.readouterr().out.split())
    assert f"The defaults wait actively (OMP_WAIT_POLICY=ACTIVE): {active.caution}" in shown
