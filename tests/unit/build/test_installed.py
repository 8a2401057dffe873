"""The project is installed in a folder of its own, and a missing module is explained."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from envbuilder.build import access, installed
from envbuilder.build.inside import sitecustomize
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings
from envbuilder.project.package import FOLDER, Package

ADDER = Package(name="My.Adder", version="1.0-beta", commands={"add": "adder.cli:main.run"})


def test_it_has_metadata_and_commands_which_go_with_it(tmp_path: Path) -> None:
    installed.lay(tmp_path, installed.FOLDER, ADDER.texts)
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / FOLDER)])
    assert (found.metadata["Name"], found.version) == ("My.Adder", "1.0-beta")
    assert [(each.name, each.value) for each in found.entry_points] == [
        ("add", "adder.cli:main.run")
    ]
    command = tmp_path / installed.PROGRAMS / "add"
    assert os.access(command, os.X_OK)
    assert command.read_text().endswith(
        "import adder.cli\n\nsys.exit(sys.modules['adder.cli'].main.run())\n"
    )
    before = command.stat().st_mtime_ns
    installed.lay(tmp_path, installed.FOLDER, ADDER.texts)
    assert command.stat().st_mtime_ns == before
    installed.lay(tmp_path, installed.FOLDER, Package(name="other").texts)
    names = {path.name for path in (tmp_path / ".envbuilder").rglob("*") if path.is_file()}
    assert names == {"METADATA", "entry_points.txt", ".gitignore"}


@pytest.mark.parametrize("link", [".envbuilder", FOLDER, installed.PROGRAMS])
def test_a_link_in_the_project_leads_nowhere(tmp_path: Path, link: str) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (project / link).parent.mkdir(parents=True)
    (project / link).symlink_to(elsewhere)
    with pytest.raises(InvalidError, match="is a link"):
        installed.lay(project, installed.FOLDER, ADDER.texts)
    assert (installed.lay_hook(project) is None) == (link == ".envbuilder")
    assert not any(elsewhere.iterdir())
    assert installed.lay_hook(tmp_path / "a:b") is None


def test_the_hook_knows_packages_of_other_names(tmp_path: Path) -> None:
    folder = installed.lay_hook(tmp_path)
    assert folder
    names: dict[str, object] = {"__name__": "hook"}
    exec(compile((folder / "sitecustomize.py").read_text(), "hook", "exec"), names)
    advice = names["advice"]
    assert callable(advice)
    assert advice("PIL.Image", "/nowhere").endswith("envbuilder add pillow")
    assert advice("pytorch_grad_cam", "/nowhere").endswith("envbuilder add grad-cam")
    assert advice("docx", "/nowhere") == "docx is in no requirement: envbuilder add python-docx"


@pytest.mark.parametrize("wanted", [True, False])
def test_commands_of_a_project_find_it_from_any_folder(tmp_path: Path, wanted: bool) -> None:
    (tmp_path / "lib" / "adder").mkdir(parents=True)
    (tmp_path / "lib" / "adder" / "__init__.py").write_text("")
    text = "[project]\nname = 'adder'\n[project.scripts]\nadd = 'adder:main'\n"
    (tmp_path / "pyproject.toml").write_text(f"{text}[tool.pdm.build]\npackage-dir = 'lib'\n")
    (tmp_path / "envbuilder.yaml").write_text(f"install_project: {str(wanted).lower()}\n")
    found = access.of_project(
        load_settings({"ENVBUILDER_CONFIG_DIR": str(tmp_path / "c")}, tmp_path)
    )
    expected = (tmp_path / "lib", tmp_path / FOLDER) if wanted else ()
    assert found.python_path == expected
    assert found.programs == ((tmp_path / installed.PROGRAMS,) if wanted else ())
    assert (tmp_path / ".envbuilder").exists() == wanted


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nosuch_module.part", "nosuch_module is in no requirement: envbuilder add nosuch-module"),
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
    (tmp_path / "src" / "mine").mkdir(parents=True)
    (tmp_path / "top.py").write_text("")
    assert sitecustomize.advice(name, str(tmp_path)).startswith(expected)
    assert bool(sitecustomize.advice(name, str(tmp_path))) == bool(expected)
