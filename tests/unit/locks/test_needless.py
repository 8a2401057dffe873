"""Which locks of a project could go; nothing but locks of ours is ever named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from envbuilder.core.settings import load as load_settings
from envbuilder.locks.needless import needless

if TYPE_CHECKING:
    from pathlib import Path

EXCLUDED = "profiles: in envbuilder.yaml does not list"


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """The folder of a project's locks, of an environment `test` on two profiles."""
    text = "profiles: [cpu, mps]\nenvironments: {test: {}}\n"
    (tmp_path / "envbuilder.yaml").write_text(text)
    folder = tmp_path / "envbuilder.lock"
    folder.mkdir()
    for name in ("default.cpu", "default.mps", "test.cpu", "test.cpu.conda"):
        write(folder / f"{name}.json")
    return folder


def write(path: Path, **changes: str) -> None:
    profile = path.name.split(".")[1]
    data = {"schema": 2, "profile": profile, "inputs": "", "targets": [], **changes}
    path.write_text(json.dumps(data))


def names(locks: Path) -> dict[str, tuple[str, bool]]:
    environ = {"ENVBUILDER_CONFIG_DIR": str(locks.parent / "config")}
    settings = load_settings(environ, locks.parent)
    return {each.path.name: (each.why, each.excluded) for each in needless(settings)}


def test_locks_of_what_the_project_has_are_needed(locks: Path) -> None:
    assert names(locks) == {}


def test_an_environment_or_profile_that_the_project_does_not_have(locks: Path) -> None:
    write(locks / "gone.cpu.json")
    write(locks / "gone.cpu.conda.json")
    write(locks / "test.cuda.json")
    assert names(locks) == {
        "gone.cpu.conda.json": ("envbuilder.yaml has no environment 'gone'", True),
        "gone.cpu.json": ("envbuilder.yaml has no environment 'gone'", True),
        "test.cuda.json": (f"{EXCLUDED} 'cuda'", True),
    }


def test_a_profile_that_only_another_machine_may_have(locks: Path) -> None:
    (locks.parent / "envbuilder.yaml").write_text("environments: {test: {}}\n")
    write(locks / "test.theirs.json")
    write(locks / "test.xpu-ipex.json")
    assert names(locks) == {
        "test.theirs.json": ("there is no profile 'theirs' on this machine", False)
    }


@pytest.mark.parametrize(
    "name", ["notes.txt", "gone.json", "gone.cpu.txt", "gone.a.b.json", "Gone.cpu.json", "..json"]
)
def test_files_of_other_names_are_not_ours(locks: Path, name: str) -> None:
    (locks / name).write_text('{"schema": 2, "profile": "cpu", "inputs": "", "targets": []}')
    assert names(locks) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"profile": "cpu"}', "\0"])
def test_files_of_other_content_are_not_ours(locks: Path, text: str) -> None:
    (locks / "gone.cpu.json").write_text(text)
    assert names(locks) == {}


def test_a_lock_of_another_profile_a_link_and_a_folder_are_not_ours(locks: Path) -> None:
    write(locks / "gone.cpu.json", profile="cuda")
    (locks / "gone.mps.json").symlink_to(locks / "default.mps.json")
    (locks / "gone.xpu.json").mkdir()
    assert names(locks) == {}


def test_nothing_outside_of_a_project(locks: Path) -> None:
    (locks.parent / "envbuilder.yaml").write_text("")
    assert names(locks) == {}
