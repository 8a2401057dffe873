"""Files of other users above the working folder: they decide nothing, and that is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuilder.core import files
from tests.conftest import exited
from tests.integration.conftest import Cli

OTHER = 54321
DECIDES = "profile: nowhere-to-be-found\nindexes:\n  pytorch-cpu: https://example.invalid/evil\n"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp, below which the tests' working folder is."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    tmp_path.chmod(0o1777)
    return tmp_path


def plan(cli: Cli, **environment: str) -> tuple[int, str]:
    done = cli("build", "--dry-run", "--backend", "venv", environment=environment)
    return done.returncode, done.stderr


def test_a_file_of_another_user_does_not_decide_for_root(cli: Cli, shared: Path) -> None:
    planted = shared / "envbuilder.yaml"
    planted.write_text(DECIDES)
    assert plan(cli)[0] == 2  # ours: it names a profile that nobody has
    os.chown(planted, OTHER, OTHER)
    code, said = plan(cli)
    assert code == 0
    assert said.count(f"{planted} belongs to uid {OTHER}") == 1
    assert f"{files.TRUSTED_VARIABLE}={shared}" in said
    assert plan(cli, SUDO_UID=str(OTHER))[0] == 2
    assert plan(cli, SUDO_UID="0")[0] == 0
    assert plan(cli, **{files.TRUSTED_VARIABLE: str(shared)})[0] == 2


def test_a_link_of_another_user_does_not_decide(cli: Cli, shared: Path) -> None:
    (shared / "ours").write_text(DECIDES)
    link = shared / "envbuilder.yaml"
    link.symlink_to(shared / "ours")
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    code, said = plan(cli)
    assert code == 0
    assert f"{link} belongs to uid {OTHER}" in said


@pytest.mark.parametrize("name", ["profiles", "profiles/mine.yaml", "profiles/locks/cpu.json"])
def test_profiles_and_locks_of_another_user_do_not_decide(
    name: str, cli: Cli, shared: Path
) -> None:
    (shared / "profiles/locks").mkdir(parents=True)
    (shared / "envbuilder.yaml").write_text("")
    (shared / "profiles/mine.yaml").write_text("extends: cpu\ndescription: mine\n")
    (shared / "profiles/locks/cpu.json").write_text("{}")
    assert cli("build", "--dry-run", "--profile", "cpu", "--backend", "venv").returncode == 2
    os.chown(shared / name, OTHER, OTHER)
    done = exited(2, cli("build", "--dry-run", "--profile", "cpu", "--backend", "venv"))
    assert f"{shared / name} belongs to uid {OTHER}" in done.stderr
    assert cli("profiles", "mine").returncode == 2


def test_the_configuration_of_another_user_does_not_decide(cli: Cli, shared: Path) -> None:
    config = shared / "config"
    config.mkdir()
    (config / "config.yaml").write_text(DECIDES)
    assert plan(cli, ENVBUILDER_CONFIG_DIR=str(config))[0] == 2
    os.chown(config / "config.yaml", OTHER, OTHER)
    code, said = plan(cli, ENVBUILDER_CONFIG_DIR=str(config))
    assert code == 2
    assert f"{config / 'config.yaml'} belongs to uid {OTHER}" in said
