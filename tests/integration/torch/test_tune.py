"""Trials in a real interpreter with a real torch: settings that take effect, and a whole tuning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from envbuilder.builds import mnist
from envbuilder.core import console, process
from envbuilder.core.errors import VerifyError
from envbuilder.profiles import profile as profiles
from envbuilder.verify import tune, tune_settings
from envbuilder.verify.tune_settings import Survey, candidates

EXPECTS = profiles.Expected(device="cpu", version="2.13.0+cpu")
FEW = ("--steps", "4", "--warm-up", "1")
# One thread: this must not take minutes where others use the processors too.
QUIET = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def ask(torch_python: Path, pyz: Path) -> tune.Ask:
    def start(
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> process.Completed:
        seen = {name: str(folder) for name, folder in folders.items()}
        argv = [str(torch_python), str(pyz), *arguments(seen)]
        return process.run(argv, env=QUIET, timeout=300, on_stdout=on_line)

    return tune.asking(start, mnist.subset().folder, EXPECTS)


def timed(ask: tune.Ask, *arguments: str) -> tune_settings.Trial:
    return tune.read(ask((*FEW, *arguments)), tune_settings.Trial)


@pytest.fixture(scope="module")
def plain(ask: tune.Ask) -> tune_settings.Trial:
    """A trial without a setting."""
    return timed(ask)


@pytest.mark.slow
def test_settings_take_effect_in_the_same_environment(
    ask: tune.Ask, plain: tune_settings.Trial, torch_prefix: Path
) -> None:
    preloaded = str((torch_prefix / "lib/envbuilder/libtcmalloc_minimal.so.4").resolve())
    set_here = ("--bfloat16", "--set", "OMP_NUM_THREADS=2", "--set", f"LD_PRELOAD={preloaded}")
    other = timed(ask, *set_here)
    assert (plain.settings["threads"], plain.settings["allocator"]) == (1, "libc")
    assert (other.settings["threads"], other.settings["allocator"]) == (2, preloaded)
    assert other.settings["dtypes"] == ["bfloat16", "float32"]
    assert plain.settings["dtypes"] == ["float32"]
    assert other.accuracy == pytest.approx(plain.accuracy, abs=0.05)


@pytest.mark.slow
def test_a_trial_that_hangs_is_given_up(ask: tune.Ask) -> None:
    with pytest.raises(VerifyError):
        ask(("--steps", "100000", "--limit", "5"))


@pytest.mark.slow
def test_survey_and_a_setting(ask: tune.Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = tune.read(ask(("--survey",)), Survey)
    assert survey.threads.used == 1
    found = {s.name: s for s in candidates(survey, "cpu")}
    setting = found["batch 256"]
    monkeypatch.setattr(tune, "candidates", lambda survey, device: (setting,))
    monkeypatch.setattr(tune, "QUICK_STEPS", 4)
    monkeypatch.setattr(tune, "QUICK_WARM_UP", 1)
    outcome = tune.run(ask, EXPECTS, console.PlainProgress(lambda line: None), quick=True)
    (finding,) = outcome.findings
    assert finding.setting == setting
    assert len(finding.pairs) >= 2
    assert finding.verdict not in {"failed", "helps"}, "another batch is another workload"


@pytest.mark.slow
def test_an_interrupt_ends_the_trial_and_writes_nothing(
    torch_python: Path, session_environment: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "config"
    own = {**session_environment, "ENVBUILDER_CONFIG_DIR": str(config)}
    command = [sys.executable, "-m", "envbuilder", "tune", "--quick"]
    command += ["--profile", "cpu", "--python", str(torch_python)]
    with subprocess.Popen(
        command, env={**os.environ, **own}, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as child:
        next(line for line in child.stderr if "try settings" in line)
        child.send_signal(signal.SIGINT)
        child.stderr.read()
    assert child.returncode == 130
    assert not config.exists()
    assert list(tmp_path.iterdir()) == []
