"""The projects in `examples/` can be read, and what is committed of them is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings
from envbuilder.locks import compare
from envbuilder.locks.entries import Entry, of_project
from envbuilder.profiles import lock as profile_lock
from tests.support import examples


def entries(name: str, folder: Path) -> list[Entry]:
    examples.copy(name, folder)
    settings = load_settings({"ENVBUILDER_CONFIG_DIR": str(folder / "config")}, folder)
    return [*of_project(settings)]


def test_every_folder_is_a_project_that_is_run() -> None:
    assert {p.name for p in examples.ROOT.iterdir() if p.is_dir()} == {
        *examples.COMMANDS,
        *examples.OTHER_FRAMEWORKS,
    }


@pytest.mark.parametrize("name", examples.COMMANDS)
def test_every_project_fits_every_profile(name: str, tmp_path: Path) -> None:
    locked = entries(name, tmp_path)
    assert {e.label for e in locked if isinstance(e.profile, InvalidError)} == set()


@pytest.mark.parametrize("name", examples.COMMANDS)
def test_the_readme_is_short_and_has_the_command(name: str) -> None:
    text = (examples.ROOT / name / "README.md").read_text()
    assert len(text.splitlines()) <= 15
    commands = re.findall(r"^    (.*)$", text, re.MULTILINE)
    assert f"envbuilder run -- {' '.join(examples.COMMANDS[name])}" in commands
    assert ("envbuilder lock" in commands) == (name != examples.LOCKED)


def test_the_committed_locks_are_fresh_and_complete(tmp_path: Path) -> None:
    """If a profile changed: `envbuilder lock` in that project's folder."""
    locked = entries(examples.LOCKED, tmp_path)
    assert {e.path for e in locked} == {*(tmp_path / "envbuilder.lock").iterdir()}
    for entry in locked:
        assert not isinstance(entry.profile, InvalidError)
        lock = profile_lock.load(entry.path)
        assert compare.check(entry.profile, lock) == ()
        origin = entry.origin[1] if entry.origin else None
        assert [*compare.foreign_files(entry.profile, lock, origin)] == []


def test_the_lock_of_uv_names_no_real_index() -> None:
    text = (examples.ROOT / "uv/uv.lock").read_text()
    hosts = set(re.findall(r"[a-z]+://[^/\"]*", text))
    assert hosts == {"https://index.example", "https://files.example"}
