"""A project as a package, read from whatever describes it without running any of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.project import package
from envbuilder.project.package import Package
from tests.support.repositories import lay


def test_a_project_may_say_that_it_is_not_installed(tmp_path: Path) -> None:
    for stated in ("uv]\npackage", "poetry]\npackage-mode", "pdm]\ndistribution"):
        for value in ("true", "false"):
            lay(tmp_path, {"pyproject.toml": f"{PEP_621}\n[tool.{stated} = {value}\n"})
            assert package.read(tmp_path).is_installed == (value == "true")


def test_its_commands_are_programs() -> None:
    assert Package(name="adder", commands=MAIN).programs == [("-m", "adder.cli")]


PEP_621 = """
[project]
name = "Adder"
version = "1.2"
[project.scripts]
adder = "adder.cli:main"
[project.gui-scripts]
adder-window = "adder.cli:window.open"
"""
POETRY = """
[tool.poetry]
name = "adder"
version = "1.2"
packages = [{include = "adder", from = "lib"}]
[tool.poetry.scripts]
adder = "adder.cli:main"
other = {reference = "adder.cli:other", type = "console"}
"""
SETUP_CFG = """
[metadata]
name = adder
version = attr: adder.__version__
[options]
package_dir =
    = lib
[options.entry_points]
console_scripts =
    adder = adder.cli:main
    adder-all = adder.cli:all [extra]
"""
SETUP_PY = """
import os
from setuptools import setup, find_packages
raise SystemExit("it ran")
NAME = "adder"
where = {"": "lib"}
setup(
    name=NAME, version=open("VERSION").read(), package_dir=where, packages=find_packages("lib"),
    entry_points={"console_scripts": ["adder=adder.cli:main", "odd name=adder"]},
    ext_modules=[CUDAExtension("x")],
)
"""
MAIN = {"adder": "adder.cli:main"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"pyproject.toml": PEP_621, "src/adder/__init__.py": ""},
            ("Adder", "1.2", ("src",), {**MAIN, "adder-window": "adder.cli:window.open"}),
        ),
        (
            {"pyproject.toml": POETRY, "lib/adder/__init__.py": ""},
            ("adder", "1.2", ("lib",), {**MAIN, "other": "adder.cli:other"}),
        ),
        (
            {"setup.cfg": SETUP_CFG, "lib/adder/__init__.py": "__version__ = '1.2'"},
            ("adder", "1.2", ("lib",), {**MAIN, "adder-all": "adder.cli:all"}),
        ),
        (
            {"setup.py": SETUP_PY, "lib/adder/__init__.py": "", "VERSION": "1.2\n"},
            ("adder", "1.2", ("lib",), MAIN),
        ),
        (  # each says what another leaves out
            {
                "pyproject.toml": "[project]\nname = 'b'\ndynamic = ['version']\n"
                "[tool.setuptools.dynamic]\nversion = {file = 'VERSION'}\n",
                "setup.py": SETUP_PY.replace('"lib"', '"src"'),
                "VERSION": "3.0\n",
                "src/b.py": "",
            },
            ("b", "3.0", ("src",), MAIN),
        ),
        (
            {"setup.py": "import setuptools\nsetuptools.setup()"},
            ("my-project", "0+unknown", (".",), {}),
        ),
        ({"pyproject.toml": "[project]\nname = '../x'\n"}, ("my-project", "0+unknown", (".",), {})),
    ],
)
def test_what_describes_it_is_read(tmp_path: Path, files: dict[str, str], expected: Any) -> None:
    project = tmp_path / "My_project"
    found = package.read(lay(project, files))
    assert (found.name, found.version, found.folders, dict(found.commands)) == expected
    odd = "setup.py" in files and "CUDAExtension" in files["setup.py"]
    assert [note.partition(" ")[0] for note in found.notes] == (
        ["commands", "extensions"] if odd else []
    )


@pytest.mark.parametrize(
    "text",
    ["", "[tool.ruff]\n", "[project]\nname = 'a'\n[tool.setuptools.package-dir]\n'' = '../..'\n"],
)
def test_nothing_and_folders_elsewhere(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "setup.py").write_text("print 'Python 2'")
    if "project" in text:
        assert package.read(tmp_path).folders == (".",)
        return
    with pytest.raises(InvalidError, match="must define a package") as refused:
        package.read(tmp_path)
    assert "python_path: [.]" in refused.value.hint


@pytest.mark.parametrize(
    "data",
    [
        "project = 1",
        "[tool.poetry]\nname = 1\npackages = 5\nscripts = [1]",
        "[project]\nname = 'a'\nversion = {file = [3]}\nscripts = {a = {}, 'b/c' = 'd:e', f = ';'}",
    ],
)
def test_values_of_other_kinds_say_nothing(tmp_path: Path, data: str) -> None:
    (tmp_path / "pyproject.toml").write_text(data)
    (tmp_path / "setup.py").write_text(
        "setup(name=f(), entry_points=3, package_dir=[], version=())"
    )
    found = package.read(tmp_path)
    assert (found.folders, dict(found.commands), found.version) == ((".",), {}, "0+unknown")


def test_modules_of_the_top_are_packages_and_files(tmp_path: Path) -> None:
    for name in ("adder/__init__.py", "data/x.csv", "train.py", "setup.py", "lib/y.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert Package(name="a", folders=(".", "lib")).modules(tmp_path) == ("adder", "train.py", "lib")
    assert Package(name="a", folders=("lib",)).modules(tmp_path) == ("lib",)
