"""What a project has to lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings
from envbuilder.locks.entries import Entry, of_project
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.profile import Profile

if TYPE_CHECKING:
    from pathlib import Path


def entries(folder: Path, text: str, name: str | None = None) -> list[Entry]:
    (folder / "envbuilder.yaml").write_text(text)
    settings = load_settings({"ENVBUILDER_CONFIG_DIR": str(folder / "config")}, folder)
    return [*of_project(settings, name)]


def test_every_environment_on_every_profile_that_is_not_opt_in(tmp_path: Path) -> None:
    found = entries(tmp_path, "requirements: [einops]\nenvironments: {test: {}}\n")
    labels = [e.label for e in found]
    assert {"default.cpu", "default.mps", "test.cpu", "test.rocm"} <= {*labels}
    assert not [label for label in labels if label.endswith("xpu-ipex")]
    assert all(isinstance(e.profile, Profile) and e.origin and not e.required for e in found)
    assert {e.path for e in found} == {tmp_path / "envbuilder.lock" / f"{n}.json" for n in labels}


def test_each_requirement_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("Rich <14\n")
    text = "requirements: [einops]\nrequirements_from: [requirements.txt]\n"
    (entry,) = entries(tmp_path, text, "cpu")
    assert entry.places == {"einops": "envbuilder.yaml:1", "rich<14": "requirements.txt:1"}
    assert isinstance(entry.profile, Profile)
    assert {*entry.places} < {*entry.profile.requirements}


def test_listed_profiles_are_required_opt_in_or_not(tmp_path: Path) -> None:
    found = entries(tmp_path, "profiles: [xpu-ipex, cpu]\n")
    assert [(e.label, e.required) for e in found] == [
        ("default.cpu", True),
        ("default.xpu-ipex", True),
    ]
    (only,) = entries(tmp_path, "requirements: [einops]\n", "cpu-ipex")
    assert (only.label, only.required) == ("default.cpu-ipex", True)


@pytest.mark.parametrize("text", ["{", None])
def test_an_own_lock_that_is_damaged_or_stale_is_not_built_on(
    tmp_path: Path, text: str | None
) -> None:
    own = tmp_path / "config" / "profiles" / "locks" / "cpu.json"
    own.parent.mkdir(parents=True)
    shipped = profile_lock.load(resources.profiles_dir() / "locks" / "cpu.json")
    own.write_text(text or profile_lock.dump(replace(shipped, inputs="0" * 64)))
    (entry,) = entries(tmp_path, "requirements: [einops]\n", "cpu")
    assert entry.origin is not None
    assert entry.origin[1] == shipped
    other = replace(shipped, reason="made by hand")
    own.write_text(profile_lock.dump(other))
    (entry,) = entries(tmp_path, "requirements: [einops]\n", "cpu")
    assert entry.origin is not None
    assert entry.origin[1] == other


def test_a_profile_that_does_not_fit_says_why(tmp_path: Path) -> None:
    found = {e.label: e for e in entries(tmp_path, "requirements: ['torch==2.13.0']\n")}
    assert isinstance(found["default.cpu"].profile, Profile)
    problem = found["default.cuda"].profile
    assert isinstance(problem, InvalidError)
    assert "torch==2.13.0: profile 'cuda' has torch" in problem.message


def test_a_folder_that_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="this is no project") as raised:
        entries(tmp_path, "profile: cpu\n")
    assert "envbuilder init" in raised.value.hint
