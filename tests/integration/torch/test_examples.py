"""The projects in `examples/` train in native environments, and can be locked everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import exited, succeeded
from tests.integration.conftest import Cli
from tests.support import examples

NATIVE = ("--profile", "cpu", "--backend", "venv")
OTHERS = sorted({*examples.COMMANDS} - {examples.LOCKED})
IN_ENVIRONMENTS = {"package": "dev", "pixi": "test", "uv": "test"}
"""Projects with tests of their own → the environment to run them in."""
ALL = {"cpu", "cuda", "cuda-legacy", "mps", "rocm", "xpu", "zendnn"}
PROFILES = {"pixi": {"cpu", "cuda", "mps"}}
"""Projects that list the profiles which they support."""


def train(cli: Cli, name: str) -> None:
    examples.require_learned(
        cli("run", *NATIVE, "--", *examples.ONE_THREAD, *examples.COMMANDS[name])
    )


@pytest.mark.soak
def test_a_project_with_committed_locks_trains_at_once(
    cli: Cli, torch_prefix: Path, tmp_path: Path
) -> None:
    examples.copy(examples.LOCKED, tmp_path)
    train(cli, examples.LOCKED)


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHERS)
def test_the_others_train_once_they_are_locked(
    cli: Cli, torch_prefix: Path, tmp_path: Path, name: str
) -> None:
    examples.copy(name, tmp_path)
    succeeded(cli("lock", "--profile", "cpu"))
    train(cli, name)
    if environment := IN_ENVIRONMENTS.get(name):
        tests = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
        ran = cli("run", *NATIVE, "--environment", environment, "--", *examples.ONE_THREAD, *tests)
        assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr


@pytest.mark.soak
@pytest.mark.parametrize("name", examples.COMMANDS)
def test_locked_for_every_profile_and_rendered_for_each(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    examples.copy(name, tmp_path)
    done = succeeded(cli("lock"))
    assert "cannot be locked" not in done.stdout
    checked = succeeded(cli("check"))
    profiles = re.findall(r"^✓ default\.(\S+)", checked.stdout, re.MULTILINE)
    assert set(profiles) == PROFILES.get(name, ALL)
    for profile in profiles:
        succeeded(cli("render", "--profile", profile, "-o", profile))
        requirements = (tmp_path / profile / "requirements.txt").read_text()
        assert "scikit-learn==" in requirements or "scikit_learn==" in requirements
    assert cli("lock").stdout.count(", unchanged,") == done.stdout.count(" files")
    if name in PROFILES:
        return
    refused = exited(2, cli("lock", "--profile", "xpu-ipex"))
    assert "xpu-ipex: cannot be locked: torch==2.8.0+xpu: " in refused.stdout
