"""The path of a project's environment that stays the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.build.backends import venv
from envbuilder.core.settings import Settings, load as load_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "envbuilder.yaml").write_text("requirements: [einops]\n")
    return load_settings({"ENVBUILDER_CONFIG_DIR": str(tmp_path / "config")}, tmp_path)


def test_the_link_follows_the_environment(settings: Settings, tmp_path: Path) -> None:
    for name in ("one", "two", "two"):
        assert venv.link_to_project(settings, tmp_path / name) == ""
        assert (tmp_path / ".envbuilder" / "default").readlink() == tmp_path / name
    test = replace(settings, environment="test")
    assert venv.link_to_project(test, tmp_path / "three") == ""
    names = {p.name for p in (tmp_path / ".envbuilder").iterdir()}
    assert names == {".gitignore", "default", "test"}
    assert (tmp_path / ".envbuilder" / ".gitignore").read_text() == "*\n"


def test_nothing_outside_of_a_project(settings: Settings, tmp_path: Path) -> None:
    for outside in (replace(settings, definition=None), replace(settings, project=None)):
        assert venv.link_to_project(outside, tmp_path) == ""
    assert not (tmp_path / ".envbuilder").exists()


def test_what_others_made_is_left(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / ".envbuilder"
    (folder / "default").mkdir(parents=True)
    assert "not made by envbuilder" in venv.link_to_project(settings, tmp_path / "env")
    (folder / "default").rmdir()
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    assert "not made by envbuilder" in venv.link_to_project(settings, tmp_path / "env")
    assert not [*elsewhere.iterdir()]


def test_a_folder_that_cannot_be_written(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in venv.link_to_project(settings, tmp_path / "env")
    assert {p.name for p in (tmp_path / ".envbuilder").iterdir()} <= {".gitignore"}
