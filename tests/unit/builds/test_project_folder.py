"""What lies in a project and beside it for its commands, and a missing module is explained."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from envbuilder.builds import access, project_folder
from envbuilder.builds.inside import sitecustomize
from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Definition, Settings
from envbuilder.project import names
from envbuilder.project.package import FOLDER, Package
from tests.support.folders import names_in, read_json
from tests.support.projects import project_settings
from tests.support.repositories import lay

ADDER = Package(name="My.Adder", version="1.0-beta", commands={"add": "adder.cli:main.run"})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return project_settings(tmp_path, "requirements: [einops]\n")


# --- links to environments


def test_the_link_follows_the_environment(settings: Settings, tmp_path: Path) -> None:
    for name in ("one", "two", "two"):
        assert project_folder.link(settings, tmp_path / name) == ""
        assert (tmp_path / ".envbuilder/default").readlink() == tmp_path / name
    test = replace(settings, environment="test")
    assert project_folder.link(test, tmp_path / "three") == ""
    names = names_in(tmp_path / ".envbuilder")
    assert names == {".gitignore", "default", "test"}
    assert (tmp_path / ".envbuilder/.gitignore").read_text() == "*\n"


def test_nothing_outside_of_a_project(settings: Settings, tmp_path: Path) -> None:
    for outside in (replace(settings, definition=None), replace(settings, project=None)):
        assert project_folder.link(outside, tmp_path) == ""
    assert not (tmp_path / ".envbuilder").exists()


def test_what_others_made_is_left(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / ".envbuilder"
    (folder / "default").mkdir(parents=True)
    assert "because envbuilder did not make it" in project_folder.link(settings, tmp_path / "env")
    (folder / "default").rmdir()
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    assert "because envbuilder did not make it" in project_folder.link(settings, tmp_path / "env")
    assert not [*elsewhere.iterdir()]


def test_a_folder_that_cannot_be_written(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    assert "No space left" in project_folder.link(settings, tmp_path / "env")
    assert names_in(tmp_path / ".envbuilder") <= {".gitignore"}


def test_an_environment_may_have_any_name(settings: Settings, tmp_path: Path) -> None:
    project_folder.lay_hook(settings, ())
    project_folder.lay(settings, ADDER.texts)
    for name in ("hook", "watch", "project", "runs"):
        assert project_folder.link(replace(settings, environment=name), tmp_path / "e") == ""
        assert (tmp_path / ".envbuilder" / name).readlink() == tmp_path / "e"


@pytest.mark.parametrize(
    ("mode", "why"),
    [(0o755, ""), (0o777, "writable by every user"), (0o1777, "writable by every user")],
)
def test_the_folder_is_this_users_or_refused(mode: int, why: str, tmp_path: Path) -> None:
    folder = tmp_path / ".envbuilder"
    folder.mkdir()
    folder.chmod(mode)
    if not why:
        project_folder.require_own(tmp_path)
        return
    with pytest.raises(InvalidError, match=why):
        project_folder.require_own(tmp_path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".envbuilder").symlink_to("elsewhere")
    with pytest.raises(InvalidError, match="it is a link"):
        project_folder.require_own(tmp_path)


# --- files for commands


def test_it_has_metadata_and_commands_which_never_change(settings: Settings) -> None:
    laid = project_folder.lay(settings, ADDER.texts)
    (found,) = importlib.metadata.distributions(path=[str(laid / FOLDER)])
    assert (found.metadata["Name"], found.version) == ("My.Adder", "1.0-beta")
    assert [(each.name, each.value) for each in found.entry_points] == [
        ("add", "adder.cli:main.run")
    ]
    command = laid / project_folder.PROGRAMS / "add"
    assert os.access(command, os.X_OK)
    assert command.read_text().endswith(
        "import adder.cli\n\nsys.exit(sys.modules['adder.cli'].main.run())\n"
    )
    before = command.stat().st_mtime_ns
    assert project_folder.lay(settings, ADDER.texts) == laid
    other = project_folder.lay(settings, Package(name="other").texts)
    names = {path.name for path in other.rglob("*") if path.is_file()}
    assert names == {"METADATA", "entry_points.txt"}
    assert command.stat().st_mtime_ns == before
    assert {path.name for path in laid.parent.iterdir() if path.is_dir()} == {
        laid.name,
        other.name,
    }


def test_another_command_may_lay_the_same_meanwhile(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        (target / "there").mkdir(parents=True)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    laid = project_folder.lay(settings, ADDER.texts)
    assert names_in(laid) == {"there"}


def test_without_a_folder_for_data_the_cache_serves(settings: Settings) -> None:
    settings.data_dir.write_text("no folder")
    hook = project_folder.lay_hook(settings, ())
    assert hook
    assert hook.is_relative_to(settings.cache_dir)
    settings.cache_dir.joinpath("runs").rename(settings.cache_dir / "other")
    settings.cache_dir.joinpath("runs").write_text("no folder")
    assert project_folder.lay_hook(settings, ()) is None
    with pytest.raises(InvalidError, match="cannot be created"):
        project_folder.lay(settings, ADDER.texts)


def test_a_folder_that_no_path_list_can_hold_is_refused(settings: Settings, tmp_path: Path) -> None:
    odd = replace(settings, data_dir=tmp_path / "a:b")
    assert project_folder.lay_hook(odd, ()) is None
    with pytest.raises(InvalidError, match="PYTHONPATH"):
        project_folder.lay(odd, ADDER.texts)


def test_the_hooks_tables_are_read_once(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(resources.profiles_dir() / "names", tmp_path / "names")
    first = project_folder.lay_hook(settings, ["rich"])
    known = Mock(return_value={"docx": "python-docx"})
    monkeypatch.setattr(names, "known_modules", known)
    assert project_folder.lay_hook(settings, ["rich"]) == first
    assert not known.called
    assert project_folder.lay_hook(settings, ["rich", "numpy"]) != first
    assert project_folder.lay_hook(settings, ["rich"], in_image=True) != first
    monkeypatch.setattr(resources, "profiles_dir", lambda: tmp_path)
    (tmp_path / "names/known.txt").write_text("rich\n")
    assert project_folder.lay_hook(settings, ["rich"]) != first


def facts_of(settings: Settings, *locked: str) -> Any:
    """Return what the hook of a project is given."""
    folder = project_folder.lay_hook(settings, locked)
    assert folder
    return read_json(folder / "facts.json")


def test_the_hook_knows_packages_of_other_names_and_the_project(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_of(settings)
    assert facts["project"] == str(tmp_path)
    for module, package in (
        ("PIL.Image", "pillow"),
        ("pytorch_grad_cam", "grad-cam"),
        ("docx", "python-docx"),
        ("wandb", "wandb"),
    ):
        words = f"is in no requirement:\n  envbuilder add {package}"
        assert sitecustomize.advice(module, facts).endswith(words)
    with_new = facts_of(settings, "setuptools")
    words = "pkg_resources is in no requirement:\n  envbuilder add 'setuptools<82'"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert sitecustomize.advice("pkg_resources.extern", with_new) == words
    advice = sitecustomize.advice("torch_sparse", facts)
    assert "write build_from_source: [torch-sparse] into envbuilder.yaml first" in advice
    assert advice.endswith(":\n  envbuilder add torch-sparse")
    other = facts_of(replace(settings, environment="test"))
    assert sitecustomize.advice("docx", other).endswith(" add --environment test python-docx")


def test_what_is_locked_or_excluded_or_unknown_is_not_suggested(
    settings: Settings, tmp_path: Path
) -> None:
    text = "exclude: [torchvision]  # no wheel for Python 3.8.\n"
    (tmp_path / "envbuilder.yaml").write_text(text)
    settings = replace(settings, definition=Definition(exclude=("torchvision",)))
    facts = facts_of(settings, "wandb")
    assert sitecustomize.advice("wandb", facts) == ""
    assert sitecustomize.advice("torchvision.ops", facts) == (
        "torchvision is left out by exclude: in envbuilder.yaml (no wheel for Python 3.8). To have"
        " it, remove it there, and lock again:\n  envbuilder lock"
    )
    for name in ("utils", "nosuch"):  # the index has a stranger's utils
        assert sitecustomize.advice(name, facts) == (
            f"{name} is in no requirement, and no table says which package brings it"
        )


MISSING = "cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("error", "in_image", "expected"),
    [
        (ImportError(f"libGL.so.1: {MISSING}"), True, "system_packages: [libgl1]\nOr use OpenCV"),
        (OSError(f"/env/lib/libgomp.so.1: {MISSING}"), False, "sudo apt install libgomp1"),
        (RuntimeError("Failed to find C compiler. Please specify"), True, "[g++]"),
        (RuntimeError("No working C++ compiler found in torch"), False, "apt install g++"),
        (ImportError(f"libnosuch.so.1: {MISSING}"), False, ""),
        (ImportError("cannot import name 'libGL.so.1'"), True, ""),
        (OSError(2, "No such file"), True, ""),
    ],
)
def test_a_missing_library_has_an_answer(
    settings: Settings, error: Exception, in_image: bool, expected: str
) -> None:
    folder = project_folder.lay_hook(settings, ["opencv-python"], in_image=in_image)
    assert folder
    answer = sitecustomize.library_advice(str(error), read_json(folder / "facts.json"))
    assert expected in answer
    assert bool(answer) == bool(expected)


@pytest.mark.parametrize("wanted", [True, False])
def test_commands_of_a_project_find_it_from_any_folder(tmp_path: Path, wanted: bool) -> None:
    text = "[project]\nname = 'adder'\n[project.scripts]\nadd = 'adder:main'\n"
    text += "[tool.pdm.build]\npackage-dir = 'lib'\n"
    lay(tmp_path, {"lib/adder/__init__.py": "", "pyproject.toml": text})
    settings = project_settings(tmp_path, f"install_project: {str(wanted).lower()}\n")
    found = access.of_project(settings)
    if not wanted:
        assert found == access.NOTHING
        return
    (own,) = found.own_folders
    assert not own.writable
    assert found.python_path == (tmp_path / "lib", Path(own.source, FOLDER))
    assert found.programs == (Path(own.source, project_folder.PROGRAMS),)
    assert not (tmp_path / ".envbuilder").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nosuch_module.part", "nosuch_module is in no requirement, and no table says"),
        ("utils", "utils is in the project: write python_path: [common]"),
        ("deep", "deep is in the project: write python_path: [a/b]"),
        ("mine.part", "mine is in the project: write python_path: [src]"),
        ("top", "top is in the project: write python_path: [.]"),
        ("json.nosuch", ""),  # its package is there
        ("imp", ""),
        ("_tkinter", ""),
        ("", ""),
        (None, ""),
        ("not a name", ""),
    ],
)
def test_a_missing_module_has_an_answer(tmp_path: Path, name: str | None, expected: str) -> None:
    (tmp_path / "src/mine").mkdir(parents=True)
    lay(tmp_path, dict.fromkeys(("top.py", "common/utils.py", "a/b/deep/__init__.py"), ""))
    nothing: dict[str, object] = {"packages": {}, "excluded": {}, "locked": [], "add": ""}
    answer = sitecustomize.advice(name, {**nothing, "project": str(tmp_path)})
    assert answer.startswith(expected)
    assert bool(answer) == bool(expected)
